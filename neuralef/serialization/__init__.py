"""Files: safetensors with a JSON header, never pickle, and modules that are rebuilt from JSON."""

from neuralef.serialization.files import fingerprint, read_tensors, write_tensors
from neuralef.serialization.modules import rebuildable

__all__ = ["fingerprint", "read_tensors", "rebuildable", "write_tensors"]
