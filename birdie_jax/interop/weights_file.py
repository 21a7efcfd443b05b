"""Read and write safetensors files with a checksum for each tensor, which the format itself lacks."""

import json
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, TensorSpec, safe_open, serialize_file

from birdie_jax.errors import InteropError
from birdie_jax.storage.json_text import parse_json

TYPES = ("float16", "bfloat16", "float32", "float64")
_CHECKSUMS = "crc32"


def write_weights(
    path: Path, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str] | None = None
) -> None:
    """Write `tensors` to `path`.

    Args:
        path: the file.
        tensors: name -> tensor.
        metadata: metadata for the file's header, in addition to the checksums.

    Raises:
        InteropError: the type of a tensor is not in `TYPES`, or the file cannot be written.
    """
    whole = {name: np.asarray(tensor, order="C") for name, tensor in tensors.items()}
    for name, tensor in whole.items():
        if tensor.dtype.name not in TYPES:
            raise InteropError(
                f"{path}: tensor {name!r} is of type {tensor.dtype}; allowed: {', '.join(TYPES)}"
            )
    checksums = json.dumps({name: _checksum(tensor) for name, tensor in whole.items()})
    specifications = {
        name: TensorSpec(
            dtype=tensor.dtype.name,
            shape=tensor.shape,
            data_ptr=tensor.ctypes.data,
            data_len=tensor.nbytes,
        )
        for name, tensor in whole.items()
    }
    try:
        serialize_file(specifications, path, metadata={**(metadata or {}), _CHECKSUMS: checksums})
    except (SafetensorError, OSError) as error:
        raise InteropError(f"{path}: cannot be written: {error}") from error


def read_weights(
    path: Path, shapes: Mapping[str, tuple[int, ...]], described_by: str
) -> dict[str, np.ndarray]:
    """Read the tensors of `path`, which must have exactly the names and shapes of `shapes`.

    Tensors keep the types of the file.

    Args:
        path: the safetensors file.
        shapes: name -> shape of every tensor of the model.
        described_by: the source of the shapes, for messages.

    Raises:
        InteropError: the file cannot be read, is damaged, or contains other tensors.
    """
    try:
        with safe_open(path, framework="np") as file:
            _check_names(path, set(file.keys()), set(shapes), described_by)
            checksums = _checksums(path, file.metadata())
            tensors = {}
            for name, shape in shapes.items():
                part = file.get_slice(name)
                if tuple(part.get_shape()) != shape:
                    raise InteropError(
                        f"{path}: tensor {name!r} has shape {part.get_shape()}; {described_by} requires "
                        f"{list(shape)}"
                    )
                tensors[name] = checked_tensor(path, name, file)
                if checksums is not None and checksums.get(name) != _checksum(tensors[name]):
                    raise InteropError(
                        f"{path}: tensor {name!r} is damaged: its bytes have checksum "
                        f"{_checksum(tensors[name])}, and {checksums.get(name)} was written"
                    )
    except FileNotFoundError as error:
        raise InteropError(f"{path}: not found; allowed: a folder that birdie_jax.export wrote") from error
    except (SafetensorError, OSError) as error:
        raise InteropError(f"{path}: is damaged, or is not a safetensors file ({error})") from error
    return tensors


def _check_names(path: Path, found: set[str], expected: set[str], described_by: str) -> None:
    for names, what, other in (
        (expected - found, "lacks", f"which {described_by} requires"),
        (found - expected, "holds", f"which {described_by} does not describe"),
    ):
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise InteropError(f"{path}: {what} the tensor {min(names)!r}{more}, {other}")


def checked_tensor(path: Path, name: str, file: safe_open) -> np.ndarray:
    """Return a tensor of an open file.

    Raises:
        InteropError: the type of the tensor is not a supported floating-point type.
    """
    kind = file.get_slice(name).get_dtype()
    allowed = {"F16", "BF16", "F32", "F64"}
    if kind not in allowed:
        raise InteropError(
            f"{path}: tensor {name!r} is of type {kind}; allowed: {', '.join(sorted(allowed))}"
        )
    return file.get_tensor(name)


def _checksums(path: Path, metadata: Mapping[str, str] | None) -> dict[str, int] | None:
    """Return the checksums in the file's metadata, or None for a file of another program."""
    if not metadata or _CHECKSUMS not in metadata:
        return None
    try:
        return dict(parse_json(metadata[_CHECKSUMS]))
    except (ValueError, TypeError) as error:
        raise InteropError(f"{path}: is damaged: its checksums cannot be read ({error})") from error


def _checksum(tensor: np.ndarray) -> int:
    return zlib.crc32(np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data)
