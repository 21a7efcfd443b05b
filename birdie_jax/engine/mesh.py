"""The device mesh, the check that it fits a run, and the shardings of batches and state."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Int64, PyTree

from birdie_jax.config_sections import Config, MeshConfig
from birdie_jax.engine.automatic_sizes import choose_accumulation_steps, choose_fsdp, describe_machine
from birdie_jax.engine.state import TrainState
from birdie_jax.errors import ConfigError
from birdie_jax.models.axes import MESH_AXES, ROW_AXES, LogicalAxes, must_divide, partition_spec
from birdie_jax.models.parameters import ParameterPolicy
from birdie_jax.models.platforms import check_platform
from birdie_jax.models.registry import architecture_of, mixer_config
from birdie_jax.storage import parse_typed, to_plain

# A `jax.Device`; jaxlib has no stubs, so type checkers reject that name as a type.
Device: TypeAlias = Any


def mesh_of(config: MeshConfig | None = None) -> Mesh:
    """Return the mesh of all devices for `config`, for a model that is not a language model.

    `fsdp` = 0, the default, means 1 here: the automatic choice is only for language models.

    Raises:
        ConfigError: a size is invalid, or the sizes do not match the number of devices.
    """
    given = parse_typed(MeshConfig, to_plain(config or MeshConfig()), "config.mesh", ConfigError)
    configured = dataclasses.replace(given, fsdp=given.fsdp or 1)
    devices = jax.devices()
    return arrange(mesh_sizes(configured, len(devices), _count_slices(devices)), devices)


def arrange(sizes: dict[str, int], devices: Sequence[Device]) -> Mesh:
    """Return a mesh with these axis sizes, laid out like the devices' network."""
    slices = _count_slices(devices)
    shape = tuple(sizes.values())
    # Allow axes that are not products of the axes of the torus, instead of raising.
    options = {"allow_split_physical_axes": True}
    if slices > 1:
        inner = (sizes["data"] // slices, *shape[1:])
        outer = (slices, *[1] * len(shape[1:]))
        arranged = mesh_utils.create_hybrid_device_mesh(inner, outer, devices, **options)
    elif devices[0].platform == "tpu":
        arranged = mesh_utils.create_device_mesh(shape, devices, **options)
    else:
        arranged = np.array(devices).reshape(shape)
    return Mesh(arranged, MESH_AXES, axis_types=(AxisType.Auto,) * len(MESH_AXES))


class SizedConfig(NamedTuple):
    """A configuration without automatic sizes.

    Attributes:
        config: the configuration, with numbers for `mesh.fsdp` and `train.accumulation_steps`.
        mesh_sizes: the number of devices along each axis of the mesh.
        explanation: one line with the chosen sizes and their rules; empty if no size was chosen.
    """

    config: Config
    mesh_sizes: dict[str, int]
    explanation: str


def fill_in_sizes(config: Config, vocab_size: int, devices: Sequence[Device]) -> SizedConfig:
    """Choose the automatic sizes of `config`, and check that they divide the run.

    Args:
        config: the configuration of the run; without automatic sizes it is returned unchanged.
        vocab_size: the number of rows of the embedding table. 0: not known yet, and any size divides it.
        devices: the devices of the mesh, which need not be attached.

    Raises:
        ConfigError: as `mesh_sizes` and `check_divisible`; or the model cannot be compiled for the platform
            of the devices.
    """
    machine, reasons = describe_machine(devices), []
    check_platform(config.model, machine.platform)
    if config.mesh.fsdp == 0:
        fsdp = 1
        if config.mesh.data == -1:
            fsdp, reason = choose_fsdp(config, vocab_size, machine)
            if len(devices) > 1:
                reasons.append(f"config.mesh.fsdp = 0 means {reason}")
        config = dataclasses.replace(config, mesh=dataclasses.replace(config.mesh, fsdp=fsdp))
    sizes = mesh_sizes(config.mesh, machine.devices, machine.slices)
    if config.train.accumulation_steps == 0:
        whole = dataclasses.replace(config, mesh=MeshConfig(**sizes))
        parts, reason = choose_accumulation_steps(whole, sizes["data"] * sizes["fsdp"], machine)
        reasons.append(f"config.train.accumulation_steps = 0 means {reason}")
        config = dataclasses.replace(
            config, train=dataclasses.replace(config.train, accumulation_steps=parts)
        )
    check_divisible(config, vocab_size, sizes, machine.devices)
    if not reasons:
        return SizedConfig(config, sizes, "")
    mesh = ", ".join(f"{axis}={size}" for axis, size in sizes.items() if size > 1 or axis == "data")
    explanation = (
        f"mesh {mesh} of {machine.devices} x {machine.kind}, accumulation_steps="
        f"{config.train.accumulation_steps}; {'; '.join(reasons)}"
    )
    return SizedConfig(config, sizes, explanation)


def _count_slices(devices: Sequence[Device]) -> int:
    return len({getattr(device, "slice_index", 0) for device in devices})


def mesh_sizes(config: MeshConfig, num_devices: int, slices: int = 1) -> dict[str, int]:
    """Return the number of devices along each axis, with -1 replaced by the remaining number.

    Args:
        config: the axes, with a number for `fsdp`.
        num_devices: the number of devices.
        slices: the number of slices or hosts that a network connects.

    Raises:
        ConfigError: the product is not the number of devices, or a slice would be cut along another axis
            than `data`.
    """
    configured = dataclasses.asdict(config)
    found = ", ".join(f"{axis}={size}" for axis, size in configured.items())
    fixed = prod(size for size in configured.values() if size != -1)
    sizes = {axis: num_devices // fixed if size == -1 else size for axis, size in configured.items()}
    if prod(sizes.values()) != num_devices:
        fits = " or ".join(_completions(configured, num_devices))
        raise ConfigError(
            f"config.mesh: found {found}; allowed: sizes whose product is {num_devices}, the number of "
            "devices" + (f", such as {fits}" if fits else "")
        )
    if sizes["data"] % slices:
        raise ConfigError(
            f"config.mesh.data: found {sizes['data']}; allowed: a multiple of the {slices} slices, which "
            "only this axis joins"
        )
    return sizes


def _completions(configured: dict[str, int], num_devices: int) -> list[str]:
    """Return for each axis the size that alone would make the product right, if there is one."""
    fits = []
    for axis, size in configured.items():
        others = prod(other for name, other in configured.items() if name != axis and other != -1)
        if size != -1 and num_devices % others == 0:
            fits.append(f"{axis}={num_devices // others}")
    return fits


def check_divisible(config: Config, vocab_size: int, sizes: dict[str, int], num_devices: int) -> None:
    """Check that a mesh divides rows, positions and model evenly.

    Raises:
        ConfigError: an axis does not divide its part; the message names the field and the sizes that fit.
    """
    divisors = [size for size in range(1, num_devices + 1) if num_devices % size == 0]
    for axis, reason in _reasons(config, vocab_size).items():
        why = reason(sizes[axis])
        if why is not None:
            fits = ", ".join(str(size) for size in divisors if reason(size) is None)
            raise ConfigError(f"config.mesh.{axis}: found {sizes[axis]}; allowed: {fits} ({why})")
    rows, parts = config.batching.rows, config.train.accumulation_steps
    row_shards = sizes["data"] * sizes["fsdp"]
    if rows % (row_shards * parts):
        allowed = (
            f"a multiple of mesh.data * mesh.fsdp * train.accumulation_steps = {row_shards} * {parts} = "
            f"{row_shards * parts}"
        )
        if rows % row_shards == 0:
            per_device = rows // row_shards
            fits = [str(size) for size in range(1, per_device + 1) if per_device % size == 0]
            allowed += f", or train.accumulation_steps of {', '.join(fits)}"
        raise ConfigError(f"config.batching.rows: found {rows}; allowed: {allowed}")


def _reasons(config: Config, vocab_size: int) -> dict[str, Callable[[int], str | None]]:
    """Return for each axis a function that returns why a size does not fit, or None."""
    model, length = config.model, config.batching.length
    mixer = mixer_config(model)
    over_tensor = {"the vocabulary": vocab_size}
    if architecture_of(model).has_mlp:
        over_tensor["model.mlp_features"] = model.mlp_features

    def tensor(size):
        return must_divide(size, over_tensor) or mixer.mesh_problem(model, length, "tensor", size)

    def fsdp(size):
        over_fsdp = {"model.features": model.features}
        return must_divide(size, over_fsdp) or mixer.mesh_problem(model, length, "fsdp", size)

    def sequence(size):
        problem = mixer.mesh_problem(model, length, "sequence", size)
        problem = problem or must_divide(size, {"batching.length": length})
        if problem is not None:
            return problem
        own = length // size
        if own % min(config.train.loss_chunk, own):
            chunk = f"train.loss_chunk = {config.train.loss_chunk}"
            return f"the positions of a row that a device has must be a multiple of {chunk}"
        return None

    return {"fsdp": fsdp, "tensor": tensor, "sequence": sequence}


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Return the sharding of a batch, which divides rows and positions over the devices."""
    sequence = "sequence" if mesh.shape["sequence"] > 1 else None
    rows = ROW_AXES if mesh.shape["fsdp"] > 1 else ROW_AXES[:1]
    return NamedSharding(mesh, PartitionSpec(rows, *([sequence] if sequence else [])))


def state_sharding(mesh: Mesh, state: TrainState, policies: PyTree[ParameterPolicy]) -> TrainState:
    """Return the sharding of each array of a train state (or of its shapes).

    Parameters are divided by their policies. Arrays of the optimizer or a section with the shape and name
    of a parameter are divided like that parameter. All other arrays are replicated.
    """
    whole = replicated(mesh)
    policy_of = {_names(path): policy for path, policy in jax.tree_util.tree_leaves_with_path(policies)}
    shape_of = {
        _names(path): leaf.shape for path, leaf in jax.tree_util.tree_leaves_with_path(state.params)
    }

    def follow(path, leaf):
        names = _names(path)
        if shape_of.get(names) != leaf.shape:
            return whole
        return NamedSharding(mesh, partition_spec(policy_of[names].axes, leaf.shape, mesh.shape))

    divided = partial(jax.tree_util.tree_map_with_path, follow)
    return state.replace(
        step=whole,
        params=divided(state.params),
        optimizer=divided(state.optimizer),
        sections={name: divided(section) for name, section in state.sections.items()},
    )


def fitting_sharding(mesh: Mesh, axes: LogicalAxes, shape: Sequence[int]) -> NamedSharding:
    """Return the sharding of an array by its logical axes; an indivisible array is replicated."""
    spec = partition_spec(axes, shape, mesh.shape)
    divided = NamedSharding(mesh, spec)
    try:
        divided.shard_shape(tuple(shape))
    except ValueError:
        return replicated(mesh)
    return divided


def _names(path: tuple) -> tuple[str, ...]:
    """Return the names of a parameter in a path, which may begin with indices of an optimizer's state."""
    return tuple(str(part.key) for part in path if isinstance(part, jax.tree_util.DictKey))


def replicated(mesh: Mesh) -> NamedSharding:
    """Return the sharding of an array that is copied to every device."""
    return NamedSharding(mesh, PartitionSpec())


def replicated_context() -> Any:
    """Return a context in which a program that is traced under a mesh is not divided over its devices.

    The bandit's networks are small, and its decisions must not depend on the mesh.
    """
    return jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ()))


class LocalRows:
    """The rows of the global batch that devices of this process hold, in whole or in part.

    Each process makes only its own rows. If devices of several processes hold parts or copies of a row,
    each of them makes it, with the same result.

    Attributes:
        numbers: the numbers of the rows within the global batch, in order.
    """

    def __init__(self, rows: int, length: int, mesh: Mesh):
        """Compute the rows of a global batch of [rows, length] that `mesh` gives this process."""
        shape = (rows, length)
        self._global_rows = rows
        self._sharding = batch_sharding(mesh)
        self._by_row = NamedSharding(mesh, PartitionSpec(self._sharding.spec[0]))
        self._gather = jax.jit(lambda array: array, out_shardings=replicated(mesh))
        indices = filter(None, self._sharding.addressable_devices_indices_map(shape).values())
        self.numbers = sorted({row for held, *_ in indices for row in range(*held.indices(rows))})

    def put(self, batch: PyTree[np.ndarray]) -> PyTree[jax.Array]:
        """Return the global batch on the devices, from this process's rows on the host."""
        return jax.tree.map(lambda field: self._put(field, self._sharding), batch)

    def put_replicated(self, batch: PyTree[np.ndarray]) -> PyTree[jax.Array]:
        """Return a batch on the devices, from the whole batch on the host of every process."""

        def put(field: np.ndarray) -> jax.Array:
            return jax.make_array_from_callback(field.shape, self._sharding, lambda index: field[index])

        return jax.tree.map(put, batch)

    def gather(self, states: Int64[np.ndarray, "local_rows size"]) -> Int64[np.ndarray, "rows size"]:
        """Return some integers of every row, collected from every process's own rows.

        All processes must call this at the same place.
        """
        # Split into two halves, because the device has no 64-bit integers.
        halves = np.ascontiguousarray(states).view(np.uint32)
        everywhere = self._gather(self._put(halves, self._by_row))
        return np.asarray(everywhere).view(np.int64)

    def select(self, states: Int64[np.ndarray, "rows size"]) -> Int64[np.ndarray, "local_rows size"]:
        """Return this process's rows of some integers of every row."""
        return states[self.numbers]

    def _put(self, own: np.ndarray, sharding: NamedSharding) -> jax.Array:
        def block(index: Any) -> np.ndarray:
            begin, end, _ = index[0].indices(self._global_rows)
            first = self.numbers.index(begin)
            return own[(slice(first, first + end - begin), *index[1:])]

        return jax.make_array_from_callback((self._global_rows, *own.shape[1:]), sharding, block)
