"""The tensors of a Hugging Face folder: one safetensors file, or shards with an index."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open

from birdie_jax.errors import ConfigError, InteropError, shown
from birdie_jax.interop.weights_file import checked_tensor
from birdie_jax.saved_config import read_json

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")


class StoredTensors(NamedTuple):
    """The tensors of a folder, which are read on access.

    Attributes:
        where: the file that lists the tensors, for messages.
        files: name -> the open file with the tensor, and its path.
    """

    where: Path
    files: Mapping[str, tuple[safe_open, Path]]

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor."""
        return tuple(self.files[name][0].get_slice(name).get_shape())

    def read(self, name: str) -> np.ndarray:
        """Return a tensor in its own type, or in float32 if it is float64.

        Raises:
            InteropError: the tensor cannot be read, or has another type.
        """
        file, path = self.files[name]
        try:
            tensor = checked_tensor(path, name, file)
        except (SafetensorError, OSError) as error:
            raise InteropError(f"{path}: tensor {name!r} cannot be read ({error})") from error
        return tensor.astype(np.float32) if tensor.dtype == np.float64 else tensor

    def check(self, shapes: Mapping[str, tuple[int, ...]], described_by: str) -> None:
        """Check that the tensors have the names and shapes of `shapes`.

        Args:
            shapes: name -> shape of every tensor of the model.
            described_by: the source of the shapes, for messages.

        Raises:
            InteropError: a tensor is missing, unknown, or has another shape.
        """
        for names, what, other in (
            (shapes.keys() - self.files, "lacks", f"which {described_by} requires"),
            (self.files.keys() - shapes, "holds", f"which {described_by} does not describe"),
        ):
            if names:
                more = f" and {len(names) - 1} more" if len(names) > 1 else ""
                raise InteropError(f"{self.where}: {what} the tensor {min(names)!r}{more}, {other}")
        for name, shape in shapes.items():
            if self.shape(name) != shape:
                raise InteropError(
                    f"{self.files[name][1]}: tensor {name!r} has shape {list(self.shape(name))}; "
                    f"{described_by} requires {list(shape)}"
                )


@contextlib.contextmanager
def open_tensors(folder: Path) -> Iterator[StoredTensors]:
    """Yield the tensors of a folder.

    Raises:
        InteropError: there are no tensors, a shard is missing or damaged, or the shards do not match their
            index. Pickle files are always refused.
    """
    index = folder / INDEX
    listed = _read_index(index) if index.exists() else None
    paths = [folder / SINGLE] if listed is None else [folder / name for name in sorted({*listed.values()})]
    if listed is None and not paths[0].exists():
        pickles = [name for name in _PICKLES if (folder / name).exists()]
        found = f"found {pickles[0]}, a pickle, which is never read" if pickles else "not found"
        raise InteropError(f"{paths[0]}: {found}; allowed: {SINGLE}, or shards with {INDEX}")
    with contextlib.ExitStack() as held:
        files: dict[str, tuple[safe_open, Path]] = {}
        for path in paths:
            file = held.enter_context(_open(path))
            for name in file.keys():  # noqa: SIM118 - it is no mapping
                files[name] = (file, path)
        if listed is not None:
            _check_index(index, listed, files)
        yield StoredTensors(paths[0] if listed is None else index, files)


def _open(path: Path) -> safe_open:
    try:
        return safe_open(path, framework="np")
    except FileNotFoundError as error:
        raise InteropError(f"{path}: not found; allowed: all shards that {INDEX} names") from error
    except (SafetensorError, OSError) as error:
        raise InteropError(f"{path}: is damaged, or is not a safetensors file ({error})") from error


def _read_index(path: Path) -> dict[str, str]:
    allowed = "an object whose weight_map has the name of a file for each tensor"
    try:
        listed = read_json(path, allowed).get("weight_map")
    except ConfigError as error:
        raise InteropError(str(error)) from error
    if not isinstance(listed, dict) or not listed:
        raise InteropError(f"{path}: weight_map: found {shown(listed)}; allowed: {allowed}")
    for tensor, name in listed.items():
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise InteropError(
                f"{path}: weight_map: {tensor!r}: found {shown(name)}; allowed: the name of a safetensors "
                "file in the same folder"
            )
    return listed


def _check_index(
    path: Path, listed: Mapping[str, str], files: Mapping[str, tuple[safe_open, Path]]
) -> None:
    for name in sorted({*listed, *files}):
        found = files[name][1].name if name in files else "no shard"
        if listed.get(name) != found:
            raise InteropError(
                f"{path}: tensor {name!r} is in {listed.get(name, 'no shard')} by the index, and is in "
                f"{found}; allowed: an index that matches the shards"
            )
