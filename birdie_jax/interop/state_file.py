"""Saved states as safetensors files. The metadata identifies the model of the state."""

import dataclasses
import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from jaxtyping import PyTree
from safetensors import SafetensorError, TensorSpec, deserialize, serialize

from birdie_jax.config import Config, default_config, to_dict
from birdie_jax.errors import InteropError, SavedStateError, shown
from birdie_jax.interop.tensor_names import name_parameters
from birdie_jax.models import LanguageModel
from birdie_jax.models.saved_state import SavedState, cache_from_names, name_cache
from birdie_jax.storage import parse_typed, read_bytes, to_plain, write_whole
from birdie_jax.text import Tokenizer

# The number of characters of a hash that messages show.
_SHOWN = 12


@dataclass(frozen=True)
class ModelIdentity:
    """The identity of a trained model. The hashes identify it; the other fields are for people.

    Attributes:
        name: the name of the architecture, `config.model.name`.
        origin: the folder and the step, as text.
        step: the train step of the parameters.
        dtype: the type of the computation, `config.model.dtype`.
        architecture_sha256: the hash of the fields of `config.model` that differ from their defaults.
        parameters_sha256: the hash of the names, shapes, types and bytes of the parameters.
        tokenizer_sha256: the hash of the tokenizer.
    """

    name: str
    origin: str
    step: int
    dtype: str
    architecture_sha256: str
    parameters_sha256: str
    tokenizer_sha256: str

    def difference(self, other: "ModelIdentity") -> str | None:
        """Return why another model cannot use data of this model, or None if both are the same."""
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
    """Return the identity of a trained model. This reads all of its parameters.

    Args:
        config: the configuration of the run that trained the model.
        params: the trained parameters, unchanged.
        tokenizer: the tokenizer of the run.
        origin: the folder and the step, as text.
        step: the train step of the parameters.
    """
    # The hash covers only changed fields, so a new field at its default does not change the hash.
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


_KEY = "birdie_jax"
_FORMAT, _VERSION = "birdie_jax saved state", 1
_WRITTEN = "a file that birdie_jax.generate --save_state wrote"
# The types of cache arrays, including integers for counts and booleans for masks.
_TYPES = {
    "BF16": np.dtype(jnp.bfloat16),
    "F16": np.dtype("float16"),
    "F32": np.dtype("float32"),
    "I32": np.dtype("int32"),
    "BOOL": np.dtype("bool"),
}


@dataclass(frozen=True)
class StateDescription:
    """The metadata of a state file.

    Attributes:
        format: the name of the format.
        format_version: the version of the format.
        model: the model that read the tokens.
        arm: the name of the objective arm that gives the format of the prompt.
        objective: the name of the arm's objective.
        marker: the objective's marker, which is the first token read; None for none.
        tokens: the number of tokens read.
        context_tokens: the number of tokens read that belong to the context.
        tokens_crc32: the CRC-32 of the tokens read, as little-endian int32.
        crc32: the CRC-32 of everything else in the file.
    """

    format: str
    format_version: int
    model: ModelIdentity
    arm: str
    objective: str
    marker: int | None
    tokens: int
    context_tokens: int
    tokens_crc32: int
    crc32: int


class StoredState(NamedTuple):
    """The contents of a state file.

    Attributes:
        path: the file.
        description: the metadata.
        arrays: the arrays of the cache, by name.
    """

    path: epath.Path
    description: StateDescription
    arrays: Mapping[str, np.ndarray]

    def state_of(self, model: LanguageModel, identity: ModelIdentity) -> SavedState:
        """Return the state for its own model.

        Raises:
            InteropError: the state belongs to another model or tokenizer.
        """
        described = self.description
        problem = described.model.difference(identity)
        if problem is not None:
            raise InteropError(f"{self.path}: {problem}")
        try:
            cache = cache_from_names(model, self.arrays)
        except SavedStateError as error:
            raise InteropError(f"{self.path}: does not fit {identity.name}: {error}") from error
        return SavedState(cache, described.tokens, described.context_tokens, described.tokens_crc32)


def write_state(
    path: epath.Path,
    state: SavedState,
    identity: ModelIdentity,
    *,
    arm: str,
    objective: str,
    marker: int | None,
) -> int:
    """Write a state to a file and return the file's size in bytes. The write is atomic.

    Args:
        path: the file, on a disk or in a bucket. An existing file is replaced.
        state: the state.
        identity: the model of the state.
        arm: the name of the objective arm that gives the format of the prompt.
        objective: the name of the arm's objective.
        marker: the objective's marker; None for none.

    Raises:
        InteropError: the file cannot be written.
        SavedStateError: an array has a type that `read_state` does not support.
    """
    arrays = {name: np.asarray(leaf, order="C") for name, leaf in name_cache(state.cache).items()}
    for name, array in arrays.items():
        if array.dtype not in _TYPES.values():
            allowed = ", ".join(kind.name for kind in _TYPES.values())
            raise SavedStateError(f"array {name!r} is of type {array.dtype}; allowed: {allowed}")
    description = StateDescription(
        _FORMAT,
        _VERSION,
        identity,
        arm,
        objective,
        marker,
        state.tokens,
        state.context_tokens,
        state.checksum,
        crc32=0,
    )
    description = dataclasses.replace(description, crc32=_checksum(description, arrays))
    specifications = {
        name: TensorSpec(
            dtype=array.dtype.name, shape=array.shape, data_ptr=array.ctypes.data, data_len=array.nbytes
        )
        for name, array in arrays.items()
    }
    contents = serialize(specifications, metadata={_KEY: json.dumps(to_plain(description))})
    try:
        write_whole(path, contents)
    except OSError as error:
        raise InteropError(f"{path}: cannot be written: {error}") from error
    return len(contents)


def read_state(path: epath.Path) -> StoredState:
    """Read a state file.

    Raises:
        InteropError: the file is missing, damaged, of another version, or not a saved state.
    """
    try:
        contents = read_bytes(path)
    except FileNotFoundError as error:
        raise InteropError(f"{path}: not found; allowed: {_WRITTEN}") from error
    except OSError as error:
        raise InteropError(f"{path}: cannot be read: {error}") from error
    try:
        tensors = deserialize(contents)
        length = int.from_bytes(contents[:8], "little")
        described = json.loads(json.loads(contents[8 : 8 + length])["__metadata__"][_KEY])
        kind, version = described["format"], described["format_version"]
    except (SafetensorError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise InteropError(
            f"{path}: is damaged, or is not a saved state ({type(error).__name__}: {error}); "
            f"allowed: {_WRITTEN}"
        ) from error
    if (kind, version) != (_FORMAT, _VERSION):
        raise InteropError(
            f"{path}: found format {shown(kind)}, version {shown(version)}; allowed: {_FORMAT!r}, version "
            f"{_VERSION}"
        )
    description = parse_typed(StateDescription, described, str(path), InteropError)
    try:
        arrays = {
            name: np.frombuffer(tensor["data"], _TYPES[tensor["dtype"]]).reshape(tensor["shape"])
            for name, tensor in tensors
        }
    except (KeyError, ValueError) as error:
        raise InteropError(f"{path}: is damaged: an array has an unknown type ({error})") from error
    found = _checksum(description, arrays)
    if found != description.crc32:
        raise InteropError(
            f"{path}: is damaged: its contents have checksum {found}, and {description.crc32} was written"
        )
    return StoredState(path, description, arrays)


def _checksum(description: StateDescription, arrays: Mapping[str, np.ndarray]) -> int:
    """Return the CRC-32 of the description without its checksum, and of the arrays."""
    plain = to_plain(dataclasses.replace(description, crc32=0))
    shapes = {name: [array.dtype.name, list(array.shape)] for name, array in arrays.items()}
    total = zlib.crc32(json.dumps([plain, shapes], sort_keys=True).encode())
    for name in sorted(arrays):
        total = zlib.crc32(np.ascontiguousarray(arrays[name]).tobytes(), total)
    return total
