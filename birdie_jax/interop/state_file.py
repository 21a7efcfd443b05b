"""A saved state as one file: safetensors whose metadata name the model that it belongs to."""

import dataclasses
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from etils import epath
from safetensors import SafetensorError, TensorSpec, deserialize, serialize

from birdie_jax.interop.interop_error import InteropError
from birdie_jax.interop.model_identity import ModelIdentity
from birdie_jax.models import LanguageModel
from birdie_jax.models.saved_state import SavedState, SavedStateError, cache_from_names, name_cache
from birdie_jax.storage import parse_typed, read_bytes, shown, to_plain, write_whole

_KEY = "birdie_jax"
_FORMAT, _VERSION = "birdie_jax saved state", 1
_WRITTEN = "a file that birdie_jax.generate --save_state wrote"
_TYPES = {"BF16": np.dtype(jnp.bfloat16), "F16": np.dtype("float16"), "F32": np.dtype("float32")}


@dataclass(frozen=True)
class StateDescription:
    """The metadata of a state's file.

    Attributes:
        format: the name of the format.
        format_version: the version of the format.
        model: the model that has read the tokens.
        arm: the name of the objective arm in whose form they were read.
        objective: the name of its objective.
        marker: the token that names it to the model, the first one read; None for none.
        tokens: the number of tokens read.
        context_tokens: the number of these that belong to the context.
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
    """The contents of a state's file.

    Attributes:
        path: the file.
        description: the metadata.
        arrays: the arrays of the cache by name.
    """

    path: epath.Path
    description: StateDescription
    arrays: Mapping[str, np.ndarray]

    def state_of(self, model: LanguageModel, identity: ModelIdentity) -> SavedState:
        """Return the state, for the model that it belongs to.

        Raises:
            InteropError: it belongs to another model or tokenizer.
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
    """Write a state to a file, whole or not at all, and return its size in bytes.

    Args:
        path: the file, on a disk or in a bucket; one of that name is replaced.
        state: the state.
        identity: the model that it belongs to.
        arm: the name of the objective arm in whose form the tokens were read.
        objective: the name of its objective.
        marker: the token that names it to the model; None for none.

    Raises:
        InteropError: the file cannot be written.
    """
    arrays = {name: np.asarray(leaf, order="C") for name, leaf in name_cache(state.cache).items()}
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
    """Read a state's file.

    Raises:
        InteropError: there is none, or it is no such file, of another version, or damaged.
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
            f"{path}: is damaged, or no saved state ({type(error).__name__}: {error}); allowed: {_WRITTEN}"
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
        raise InteropError(f"{path}: is damaged: an array is of no known type ({error})") from error
    found = _checksum(description, arrays)
    if found != description.crc32:
        raise InteropError(
            f"{path}: is damaged: its contents have checksum {found}, and {description.crc32} was written"
        )
    return StoredState(path, description, arrays)


def _checksum(description: StateDescription, arrays: Mapping[str, np.ndarray]) -> int:
    """Return the CRC-32 of the description but for the checksum itself, and of the arrays."""
    plain = to_plain(dataclasses.replace(description, crc32=0))
    shapes = {name: [array.dtype.name, list(array.shape)] for name, array in arrays.items()}
    total = zlib.crc32(json.dumps([plain, shapes], sort_keys=True).encode())
    for name in sorted(arrays):
        total = zlib.crc32(np.ascontiguousarray(arrays[name]).tobytes(), total)
    return total
