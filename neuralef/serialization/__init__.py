"""Files: safetensors with a JSON header, never pickle, and modules that are rebuilt from JSON."""

from neuralef.checks import fingerprint
from neuralef.serialization.files import FileFormatError, read_tensors, write_tensors
from neuralef.serialization.modules import rebuildable

__all__ = ["FileFormatError", "fingerprint", "read_tensors", "rebuildable", "write_tensors"]
