"""Models as folders that other programs can read: model.safetensors, config.json, tokenizer.model."""

from birdie_jax.interop.errors import InteropError
from birdie_jax.interop.folder import ReadModel, read_model, write_model
from birdie_jax.interop.names import from_names, to_names

__all__ = ["InteropError", "ReadModel", "from_names", "read_model", "to_names", "write_model"]
