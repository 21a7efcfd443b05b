"""The format of a checkpoint on disk: named arrays, and a description with its own checksum.

A checkpoint is a folder `checkpoints/<step>` with three items. orbax can read them without this program:

    state     params/..., optimizer/..., step, and one entry for each section, named by tree path
    batches   the position of the batches' source
    meta      JSON, the description: format version, step, shape, type and checksum of every array of the
              other two, the identity of the batches' data, if they have one, and the sums of the steps
              since the last line of metrics

The description contains a checksum of itself. It distinguishes a valid description from the output of a
failing disk.
"""

import json
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree, UInt32

from birdie_jax.engine.state import TrainState
from birdie_jax.errors import ConfigError, DamagedError, OtherCheckpointError

FORMAT_VERSION = 1
STATE, BATCHES, META = "state", "batches", "meta"
# Every state has these entries; its other entries are hooks' sections.
REQUIRED = ("step", "params", "optimizer")
# The integer type with the bits of an element, by the bytes of the element.
_WIDTHS = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}
_SAVED_KINDS = (jnp.bool_, jnp.integer, jnp.floating)


class SavedArray(NamedTuple):
    """The description of an array in a checkpoint.

    Attributes:
        shape: its shape.
        dtype: the name of its type.
        checksum: the checksum of its bits, see `checksums`.
    """

    shape: tuple[int, ...]
    dtype: str
    checksum: int


def step_folder(step: int) -> str:
    """Return the name of the checkpoint folder of `step`."""
    return f"{step:08d}"


def state_tree(state: TrainState) -> dict[str, PyTree]:
    """Return the tree to save for a train state, with sections next to params, optimizer and step."""
    return {"step": state.step, "params": state.params, "optimizer": state.optimizer, **state.sections}


def state_of_tree(tree: Mapping[str, PyTree]) -> TrainState:
    """Return the train state of a tree; the inverse of `state_tree`."""
    sections = {name: section for name, section in tree.items() if name not in REQUIRED}
    return TrainState(tree["step"], tree["params"], tree["optimizer"], sections)


def named_leaves(tree: PyTree) -> dict[str, Any]:
    """Return the leaves of a tree by their paths, such as `params/blocks/mixer/out/kernel`.

    Raises:
        ConfigError: two leaves have the same name, or a node of the tree has parts without names.
    """
    named: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        name = path_name(path)
        if name in named:
            raise ConfigError(f"checkpoint: found two arrays with the name {name}; allowed: one each")
        named[name] = leaf
    return named


def path_name(path: tuple[Any, ...]) -> str:
    """Return a JAX tree path as names and indices joined by `/`."""
    return "/".join(str(_part_name(part)) for part in path)


def _part_name(part: Any) -> str | int:
    match part:
        case jax.tree_util.DictKey():
            return part.key
        case jax.tree_util.GetAttrKey():
            return part.name
        case jax.tree_util.SequenceKey():
            return part.idx
    raise ConfigError(
        f"checkpoint: found a node of the state with the key {part!r}; allowed: dictionaries, sequences, "
        "dataclasses"
    )


def check_savable(named: Mapping[str, Any]) -> None:
    """Check that a checkpoint can hold the types of the state's arrays.

    Raises:
        ConfigError: an array has another type; the message names the array.
    """
    for name, leaf in named.items():
        dtype = getattr(leaf, "dtype", None)
        if (
            dtype is None
            or not any(jnp.issubdtype(dtype, kind) for kind in _SAVED_KINDS)
            or (np.dtype(dtype).itemsize not in _WIDTHS)
        ):
            found = type(leaf).__name__ if dtype is None else dtype
            raise ConfigError(
                f"checkpoint: found the type {found} for {name}; allowed: bool, integers and floats of at "
                "most 32 bits (of a random key save jax.random.key_data(key))"
            )


def nested(named: Mapping[str, Any]) -> dict[str, Any]:
    """Return entries that are named by paths as nested dictionaries."""
    tree: dict[str, Any] = {}
    for name, leaf in named.items():
        *folders, last = name.split("/")
        place = tree
        for folder in folders:
            place = place.setdefault(folder, {})
        place[last] = leaf
    return tree


def describe(
    step: int,
    named: Mapping[str, Any],
    sums: Mapping[str, int],
    data: str | None = None,
    window: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the JSON of `meta` for named arrays, their checksums, the data and the window."""
    arrays = {
        name: [list(leaf.shape), np.dtype(leaf.dtype).name, sums[name]] for name, leaf in named.items()
    }
    contents = {"format_version": FORMAT_VERSION, "step": step, "arrays": arrays}
    if data is not None:
        contents["data"] = data
    if window is not None:
        contents["window"] = window
    return {"contents": contents, "crc32": _crc32(contents)}


class Description(NamedTuple):
    """The description of a checkpoint.

    Attributes:
        arrays: the description of each array, by its name.
        data: the identity of the data that it was trained on, or None if it is unknown.
        window: the steps since the last line of metrics (`OpenWindow`), or None if they are unknown.
    """

    arrays: dict[str, SavedArray]
    data: str | None
    window: dict[str, Any] | None = None


def read_description(meta: Any) -> Description:
    """Return the description in `meta`.

    Raises:
        OtherCheckpointError: the description has another format version.
        DamagedError: the description is damaged.
    """
    if isinstance(meta, dict) and "fingerprints" in meta:
        raise OtherCheckpointError(
            f"its format is older than version {FORMAT_VERSION}, the one that this program reads and writes"
        )
    if not isinstance(meta, dict) or meta.keys() != {"contents", "crc32"}:
        raise DamagedError("its description has other fields than the written ones")
    contents = meta["contents"]
    if _crc32(contents) != meta["crc32"]:
        raise DamagedError("its description does not have its checksum")
    if contents["format_version"] != FORMAT_VERSION:
        raise OtherCheckpointError(
            f"its format version is {contents['format_version']}; this program reads {FORMAT_VERSION}"
        )
    try:
        arrays = {
            name: SavedArray(tuple(shape), dtype, checksum)
            for name, (shape, dtype, checksum) in contents["arrays"].items()
        }
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise DamagedError("its description is not of arrays") from error
    return Description(arrays, contents.get("data"), contents.get("window"))


@jax.jit
def checksums(tree: PyTree) -> UInt32[Array, " leaves"]:
    """Return a checksum of the bits of each array: a position-weighted sum modulo 2^32.

    Integer sums do not depend on their order, so the checksum is the same on any mesh.
    """

    def one(leaf):
        leaf = jnp.asarray(leaf)
        if leaf.dtype == jnp.bool_:
            leaf = leaf.astype(jnp.uint8)
        width = _WIDTHS[leaf.dtype.itemsize]
        bits = jax.lax.bitcast_convert_type(leaf, width).astype(jnp.uint32)
        # Compute the index in the flattened array without flattening it: a leaf may not fit on one device.
        index = jnp.zeros(bits.shape, jnp.uint32)
        for axis, size in enumerate(bits.shape):
            index = index * jnp.uint32(size) + jax.lax.broadcasted_iota(jnp.uint32, bits.shape, axis)
        weights = index * jnp.uint32(2654435761) | jnp.uint32(1)
        return jnp.sum(bits * weights, dtype=jnp.uint32)

    return jnp.stack([one(leaf) for leaf in jax.tree.leaves(tree)])


def named_checksums(named: Mapping[str, Any]) -> dict[str, int]:
    """Return the checksum of each array by name, computed on the devices."""
    if not named:
        return {}
    values = np.asarray(checksums(list(named.values())))
    return {name: int(value) for name, value in zip(named, values, strict=True)}


def named_checksums_of_host(named: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Return the same checksums as `named_checksums`, computed on the host."""

    def one(array: np.ndarray) -> int:
        array = np.ascontiguousarray(array)
        width = np.dtype(f"u{array.dtype.itemsize}")
        bits = array.reshape(-1).view(width).astype(np.uint32)
        weights = np.arange(bits.size, dtype=np.uint32) * np.uint32(2654435761) | np.uint32(1)
        return int(np.sum(bits * weights, dtype=np.uint32))

    return {name: one(array) for name, array in named.items()}


def host_checksums(named: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Return the CRC-32 of each array on the host, by name; supports types that no device has."""
    return {name: zlib.crc32(np.ascontiguousarray(array).tobytes()) for name, array in named.items()}


def _crc32(contents: Any) -> int:
    return zlib.crc32(json.dumps(contents, sort_keys=True).encode())
