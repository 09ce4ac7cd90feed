"""Files: safetensors with a JSON header, never pickle, and modules that are rebuilt from JSON."""

from neuralef.serialization.modules import rebuildable

__all__ = ["rebuildable"]
