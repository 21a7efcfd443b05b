"""Read and verify one checkpoint; report which side failed.

Reading can fail in three ways:

- The bits differ from the saved ones. This is damage (`DamagedError`): an older checkpoint may be used.
- The checkpoint does not match the run (`CheckpointError`): it has another architecture or format.
- The store or this machine fails (`CheckpointError`): a file cannot be opened, or memory is full.

The checkpoint's description, with its own checksum, says what was saved. If reading fails although the
description matches the run, all bytes can be read and memory is not full, the bytes are damaged.
"""

import errno
import json
import os
from collections.abc import Callable, Mapping, Set
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from jax.experimental import multihost_utils

from birdie_jax.engine.checkpoint_format import (
    BATCHES,
    META,
    REQUIRED,
    STATE,
    Description,
    SavedArray,
    host_checksums,
    named_checksums,
    named_checksums_of_host,
    nested,
    read_description,
)
from birdie_jax.errors import CheckpointError, DamagedError, OtherCheckpointError, one_line, without_secrets
from birdie_jax.storage import list_files, open_bytes, read_bytes
from birdie_jax.storage.object_store import in_words

Result = TypeVar("Result")
# orbax and tensorstore raise these exceptions for invalid bytes, and for other causes.
READING_ERRORS = (ValueError, OSError, KeyError, TypeError, AttributeError, RuntimeError, EOFError)
# Messages of tensorstore, XLA and the system about a failing store or machine.
_FAILING = (
    "RESOURCE_EXHAUSTED",
    "PERMISSION_DENIED",
    "UNAUTHENTICATED",
    "UNAVAILABLE",
    "DEADLINE_EXCEEDED",
    "ABORTED",
    "CANCELLED",
    "Input/output error",
    "Permission denied",
    "Cannot allocate memory",
    "Out of memory",
    "Too many open files",
    "Stale file handle",
    "No space left",
    "timed out",
)


class ReadCheckpoint(NamedTuple):
    """The arrays of a checkpoint that a run requires.

    Attributes:
        state: the arrays of the train state, by name.
        batches: the arrays of the batches' position, by name.
        missing: names of required arrays of hooks' sections that the checkpoint lacks.
        unused: names of arrays of hooks' sections in the checkpoint that are not required.
        window: the steps since the last line of metrics, or None if they are unknown.
    """

    state: dict[str, jax.Array]
    batches: dict[str, np.ndarray]
    missing: tuple[str, ...]
    unused: tuple[str, ...]
    window: dict[str, Any] | None


def read_checkpoint(
    folder: epath.Path,
    state: Mapping[str, jax.ShapeDtypeStruct],
    batches: Mapping[str, np.ndarray],
    data: str | None = None,
    growing: Set[str] = frozenset(),
) -> ReadCheckpoint:
    """Read and verify a checkpoint.

    All processes must call this. It succeeds in all of them, or raises in all.

    Args:
        folder: the folder of the checkpoint.
        state: the shape, type and sharding of each array of the train state, by name. The checkpoint must
            have exactly the same arrays of `params`, `optimizer` and `step`.
        batches: an array of the same shape and type for each array of the batches' position, by name.
        data: the identity of the batches' data; None if they have none.
        growing: the names of arrays of sections that are read with the saved number of rows.

    Raises:
        DamagedError: the bits differ from the saved ones.
        CheckpointError: the checkpoint has another structure or was trained on other data, or the store or
            this machine fails.
    """

    def load() -> tuple[ReadCheckpoint, dict[str, SavedArray]]:
        saved, trained_on, window = _description(folder)
        if None not in (data, trained_on) and data != trained_on:
            raise OtherCheckpointError(
                f"{folder}: was trained on other data: it has the identity {trained_on}; the given data "
                f"has {data}. Nothing was changed"
            )
        requested = {name: _with_saved_rows(name, leaf, saved, growing) for name, leaf in state.items()}
        wanted = {f"{STATE}/{name}": leaf for name, leaf in requested.items()}
        wanted |= {f"{BATCHES}/{name}": leaf for name, leaf in batches.items()}
        check_structure(folder, saved, wanted)
        present = {name: leaf for name, leaf in requested.items() if f"{STATE}/{name}" in saved}
        sections = [name for name in saved if _is_section(name)]
        read = ReadCheckpoint(
            state=_load_arrays(folder, present, saved),
            batches=_guarded(folder, lambda: _read_on_host(folder / BATCHES, list(batches))),
            missing=tuple(name for name in state if name not in present),
            unused=tuple(name.removeprefix(f"{STATE}/") for name in sections if name not in wanted),
            window=window,
        )
        return read, saved

    read, saved = _in_agreement(folder, load)
    _in_agreement(folder, lambda: _compare(folder, BATCHES, host_checksums(read.batches), saved))
    _verify(folder, read.state, saved)
    return read


def _with_saved_rows(
    name: str, leaf: jax.ShapeDtypeStruct, saved: Mapping[str, SavedArray], growing: Set[str]
) -> jax.ShapeDtypeStruct:
    """Return `leaf` with the saved number of rows, if it is one of `growing`."""
    array = saved.get(f"{STATE}/{name}")
    if array is None or name not in growing or array.shape[1:] != leaf.shape[1:]:
        return leaf
    return jax.ShapeDtypeStruct(array.shape, leaf.dtype, sharding=leaf.sharding)


def read_parameters(
    folder: epath.Path,
    params: Mapping[str, jax.ShapeDtypeStruct],
    *,
    exactly: bool,
    where: str = "params",
) -> dict[str, jax.Array]:
    """Read and verify parameters of a checkpoint; ignore the rest of its state.

    All processes must call this. It succeeds in all of them, or raises in all.

    Args:
        folder: the folder of the checkpoint.
        params: the shape, type and sharding of each parameter, by its name in the state (`params/...`).
        exactly: whether the checkpoint must have no other parameters.
        where: the prefix of the names in the checkpoint that replaces `params`.

    Raises:
        DamagedError: the bits differ from the saved ones.
        CheckpointError: a parameter is missing or has another shape or type, or the store or this machine
            fails.
    """

    def load() -> tuple[dict[str, jax.Array], dict[str, SavedArray]]:
        saved = _description(folder).arrays
        if exactly:
            wanted = {f"{STATE}/{name}": leaf for name, leaf in params.items()}
            prefix = f"{STATE}/{where}/"
            found = {name: array for name, array in saved.items() if name.startswith(prefix)}
            check_structure(folder, found, wanted)
        return _load_arrays(folder, params, saved), saved

    found, saved = _in_agreement(folder, load)
    _verify(folder, found, saved)
    return found


def saved_arrays(folder: epath.Path) -> dict[str, SavedArray]:
    """Return the descriptions of the arrays of a checkpoint's state, by name.

    Raises:
        DamagedError: the checkpoint's description is damaged.
        CheckpointError: the checkpoint has another format, or the store fails.
    """
    prefix = f"{STATE}/"
    return {
        name.removeprefix(prefix): array
        for name, array in _description(folder).arrays.items()
        if name.startswith(prefix)
    }


def check_structure(folder: epath.Path, saved: Mapping[str, SavedArray], wanted: Mapping[str, Any]) -> None:
    """Check that the saved arrays match the wanted ones, except for missing or extra arrays of sections.

    Raises:
        CheckpointError: they do not match; the message names the first array that differs.
    """
    for name, leaf in wanted.items():
        array = saved.get(name)
        if array is None and _is_section(name):
            continue
        _check_array(folder, name.split("/", 1)[1], array, leaf)
    for name in saved:
        if name not in wanted and not _is_section(name):
            raise OtherCheckpointError(
                f"{folder}: a checkpoint of another architecture: it has {name.split('/', 1)[1]} "
                f"({_in_words(saved[name])}); the configuration has no such array. Nothing was changed"
            )


def _in_agreement(folder: epath.Path, action: Callable[[], Result]) -> Result:
    """Return action() if it succeeds in every process; else raise in every process.

    `action` must not wait for another process: if one failed, the others would wait forever.
    """
    result: list[Result] = []
    error: DamagedError | CheckpointError | None = None
    try:
        result.append(action())
    except (DamagedError, CheckpointError) as raised:
        error = raised
    if not _on_every_process(not isinstance(error, CheckpointError)):
        if isinstance(error, CheckpointError):
            raise error
        raise CheckpointError(f"{folder}: another process cannot read it. Nothing was changed")
    if not _on_every_process(error is None):
        raise error or DamagedError("another process reads other bits")
    return result[0]


def _on_every_process(holds: bool) -> bool:
    """Return whether a condition holds on every process; the processes wait for each other here."""
    return bool(np.all(multihost_utils.process_allgather(np.array(holds))))


def _verify(folder: epath.Path, found: Mapping[str, jax.Array], saved: Mapping[str, SavedArray]) -> None:
    """Compare arrays of the state with their checksums; all processes compute them together."""
    sums = _guarded(folder, lambda: named_checksums(found))
    _compare(folder, STATE, sums, saved)


def _load_arrays(
    folder: epath.Path, wanted: Mapping[str, jax.ShapeDtypeStruct], saved: Mapping[str, SavedArray]
) -> dict[str, jax.Array]:
    """Read some arrays of the state onto their shardings."""
    if not wanted:
        return {}
    try:
        return _guarded(folder, lambda: _read_on_devices(folder / STATE, wanted))
    except DamagedError as error:
        # orbax raises these about names in its own files; a device raises others.
        if isinstance(error.__cause__, AttributeError | KeyError):
            raise
        # Read the arrays on the host and compare checksums to decide which side failed.
        try:
            arrays = _guarded(folder, lambda: _read_on_host(folder / STATE, list(wanted)))
            _compare(folder, STATE, named_checksums_of_host(arrays), saved)
        except DamagedError:
            raise error from None
        raise CheckpointError(
            f"{folder}: its arrays are whole, but cannot be placed on the devices: {error}. "
            "Nothing was changed"
        ) from error


def _read_on_devices(item: epath.Path, wanted: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, jax.Array]:
    # The handler reads without waiting for other processes: if one of them cannot read a file, the others
    # must not wait.
    tree = nested(wanted)
    arguments = ocp.args.PyTreeRestore(
        item=tree,
        restore_args=ocp.checkpoint_utils.construct_restore_args(tree),
        partial_restore=True,
    )
    loaded: Any = ocp.PyTreeCheckpointHandler().restore(item, args=arguments)
    return {name: jnp.asarray(_at(loaded, name)) for name in wanted}


def _read_on_host(item: epath.Path, names: list[str]) -> dict[str, np.ndarray]:
    if not names:
        return {}
    tree = nested(dict.fromkeys(names, ocp.RestoreArgs(restore_type=np.ndarray)))
    arguments = ocp.args.PyTreeRestore(item=tree, restore_args=tree, partial_restore=True)
    loaded: Any = ocp.PyTreeCheckpointHandler().restore(item, args=arguments)
    return {name: np.asarray(_at(loaded, name)) for name in names}


def _at(tree: Any, name: str) -> Any:
    for part in name.split("/"):
        tree = tree[part]
    return tree


def _description(folder: epath.Path) -> Description:
    path = folder / META / "metadata"
    meta = _guarded(folder, lambda: json.loads(read_bytes(path)))
    try:
        return read_description(meta)
    except CheckpointError as error:
        raise OtherCheckpointError(f"{folder}: {error}. Nothing was changed") from error


def _guarded(folder: epath.Path, read: Callable[[], Result]) -> Result:
    """Return read(), or raise the error that describes its failure."""
    try:
        return read()
    except MemoryError as error:
        raise _failure(folder, error) from error
    except Exception as error:
        # orbax raises a plain `Exception` from tensorstore's error about an array.
        said = error.__cause__ if type(error) is Exception else error
        if not isinstance(said, READING_ERRORS):
            raise
        fault = said if _is_failing(said, folder) else _unreadable_file(folder)
        if fault is not None:
            raise _failure(folder, fault) from error
        raise DamagedError(first_line(said)) from error


def _is_failing(error: BaseException, folder: epath.Path) -> bool:
    """Return whether an exception means that the store or the machine fails, not that bytes are damaged."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno not in (errno.ENOENT, errno.EINVAL, errno.ENOTDIR, errno.EISDIR)
    # The name of a folder may contain such a word.
    text = str(error).replace(os.fspath(folder), "")
    return any(sign.lower() in text.lower() for sign in _FAILING)


def _unreadable_file(folder: epath.Path) -> OSError | None:
    """Return the error of the first file of a checkpoint that cannot be read to its end, or None."""
    try:
        for name in list_files(folder):
            with open_bytes(folder / name) as file:
                while file.read(1 << 24):
                    pass
    except OSError as error:
        return error
    return None


def _failure(folder: epath.Path, error: BaseException) -> CheckpointError:
    return CheckpointError(
        f"{folder}: cannot be read: {first_line(error)}. Nothing was changed; the same command tries again"
    )


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message, shortened, and without secrets.

    A long line is shortened in the middle, because tensorstore names the cause after several long paths.
    The even longer specification that follows the cause is removed.
    """
    text = without_secrets(str(error)).strip() or type(error).__name__
    if text.startswith("Forbidden:"):
        # The first line is the address; the reason follows.
        return in_words(error)
    return one_line(_without_specification(text.splitlines()[0]), 500)


def _without_specification(text: str) -> str:
    return text.partition(" [tensorstore_spec=")[0]


def _check_array(folder: epath.Path, name: str, saved: SavedArray | None, wanted: Any) -> None:
    shape, dtype = tuple(wanted.shape), np.dtype(wanted.dtype).name
    if saved is not None and (saved.shape, saved.dtype) == (shape, dtype):
        return
    if name == "params/embedding" and saved is not None and saved.shape[1:] == shape[1:]:
        raise OtherCheckpointError(
            f"{folder}: the tokenizer does not fit the weights: the embedding table has {saved.shape[0]} "
            f"rows; the tokenizer needs {shape[0]}"
        )
    found = "nothing" if saved is None else _in_words(saved)
    raise OtherCheckpointError(
        f"{folder}: a checkpoint of another architecture: for {name} it has {found}; "
        f"the configuration needs {dtype}{list(shape)}. Nothing was changed"
    )


def _compare(
    folder: epath.Path, item: str, found: Mapping[str, int], saved: Mapping[str, SavedArray]
) -> None:
    for name, checksum in found.items():
        if checksum != saved[f"{item}/{name}"].checksum:
            raise DamagedError(f"{name} differs from the saved array: a file of {folder.name} has changed")


def _is_section(name: str) -> bool:
    item, path = name.split("/", 1)
    return item == STATE and path.split("/", 1)[0] not in REQUIRED


def _in_words(array: SavedArray) -> str:
    return f"{array.dtype}{list(array.shape)}"
