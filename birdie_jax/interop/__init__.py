"""Models as folders that other programs can read: model.safetensors, config.json, tokenizer.model."""

from birdie_jax.interop.interop_error import InteropError
from birdie_jax.interop.model_folder import ExportedModel, read_model, write_model
from birdie_jax.interop.tensor_names import name_parameters, parameters_from_names

__all__ = [
    "ExportedModel",
    "InteropError",
    "name_parameters",
    "parameters_from_names",
    "read_model",
    "write_model",
]
