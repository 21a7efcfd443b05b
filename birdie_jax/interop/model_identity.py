"""Which model something belongs to: hashes of architecture, parameters and tokenizer, and names."""

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from birdie_jax.config import Config, default_config, to_dict
from birdie_jax.interop.tensor_names import name_parameters
from birdie_jax.text import Tokenizer

# As many characters of a hash as a message needs to tell two apart.
_SHOWN = 12


@dataclass(frozen=True)
class ModelIdentity:
    """A trained model. The hashes identify it; the other fields are for people.

    Attributes:
        name: the name of its architecture, `config.model.name`.
        origin: the folder and the step, in words.
        step: the train step of its parameters.
        dtype: the type of its computation, `config.model.dtype`.
        architecture_sha256: the hash of the fields of `config.model` that are not at their defaults.
        parameters_sha256: the hash of the names, shapes, types and bytes of its parameters.
        tokenizer_sha256: the hash of its tokenizer.
    """

    name: str
    origin: str
    step: int
    dtype: str
    architecture_sha256: str
    parameters_sha256: str
    tokenizer_sha256: str

    def difference(self, other: "ModelIdentity") -> str | None:
        """Return why what belongs to this model cannot be used with another; None if both are one."""
        if (self.architecture_sha256, self.parameters_sha256) != (
            other.architecture_sha256,
            other.parameters_sha256,
        ):
            return (
                f"belongs to {self._in_words()}; found {other._in_words()}; allowed: the model that read it"
            )
        if self.tokenizer_sha256 != other.tokenizer_sha256:
            return (
                f"was read with the tokenizer {self.tokenizer_sha256[:_SHOWN]} of {self.origin}; found the "
                f"tokenizer {other.tokenizer_sha256[:_SHOWN]} of {other.origin}; allowed: the same"
            )
        return None

    def _in_words(self) -> str:
        hashes = f"config {self.architecture_sha256[:_SHOWN]}, parameters {self.parameters_sha256[:_SHOWN]}"
        return f"{self.name} of {self.origin} ({hashes})"


def identify_model(
    config: Config, params: PyTree, tokenizer: Tokenizer, *, origin: str, step: int
) -> ModelIdentity:
    """Return the identity of a trained model, by reading all of its parameters.

    Args:
        config: the configuration of the run that trained it.
        params: the parameters as they were trained.
        tokenizer: the tokenizer of the run.
        origin: the folder and the step, in words.
        step: the train step of the parameters.
    """
    # A field that is newer than a file, and at its default, leaves the hash as it was.
    changed = _changed(to_dict(config)["model"], default_config().to_dict()["model"])
    return ModelIdentity(
        name=config.model.name,
        origin=origin,
        step=step,
        dtype=config.model.dtype,
        architecture_sha256=hashlib.sha256(json.dumps(changed, sort_keys=True).encode()).hexdigest(),
        parameters_sha256=_hash_parameters(params),
        tokenizer_sha256=tokenizer.sha256,
    )


def _changed(values: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    changed = {}
    for name, value in values.items():
        inner = _changed(value, defaults[name]) if isinstance(value, dict) else value
        if inner != ({} if isinstance(value, dict) else defaults[name]):
            changed[name] = inner
    return changed


def _hash_parameters(params: PyTree) -> str:
    total = hashlib.sha256()
    for name, leaf in sorted(name_parameters(params).items()):
        array = np.asarray(jax.device_get(leaf), order="C")
        total.update(f"{name} {array.dtype.name} {array.shape}\n".encode())
        total.update(array.reshape(-1).view(np.uint8).data)
    return total.hexdigest()
