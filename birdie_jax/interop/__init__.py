"""Model folders that other programs can read, and files of saved states. Both use safetensors."""

from birdie_jax.interop.huggingface_folder import has_counterpart, read_huggingface, write_huggingface
from birdie_jax.interop.model_folder import ExportedModel, read_model, write_model
from birdie_jax.interop.state_file import (
    ModelIdentity,
    StateDescription,
    StoredState,
    identify_model,
    read_state,
    write_state,
)
from birdie_jax.interop.tensor_names import name_parameters, parameters_from_names
from birdie_jax.interop.torch_tokenizer import PromptForm
from birdie_jax.interop.transformers_folder import write_transformers

__all__ = [
    "ExportedModel",
    "ModelIdentity",
    "PromptForm",
    "StateDescription",
    "StoredState",
    "has_counterpart",
    "identify_model",
    "name_parameters",
    "parameters_from_names",
    "read_huggingface",
    "read_model",
    "read_state",
    "write_huggingface",
    "write_model",
    "write_state",
    "write_transformers",
]
