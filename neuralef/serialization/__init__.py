"""Files: safetensors with a JSON header, never pickle, and modules that are rebuilt from JSON."""

from neuralef.serialization.files import (
    below,
    check_writable,
    digest,
    fingerprint,
    read_tensors,
    replace_file,
    tensors_alone,
    write_json,
    write_tensors,
)
from neuralef.serialization.modules import describe, passed, rebuild, rebuildable

__all__ = [
    "below",
    "check_writable",
    "describe",
    "digest",
    "fingerprint",
    "passed",
    "read_tensors",
    "rebuild",
    "rebuildable",
    "replace_file",
    "tensors_alone",
    "write_json",
    "write_tensors",
]
