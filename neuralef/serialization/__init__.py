"""Files: safetensors with a JSON header, never pickle."""
