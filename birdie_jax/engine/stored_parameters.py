"""Read the parameters of a run, without the rest of its checkpoint, on any devices."""

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

import jax
from absl import logging
from etils import epath
from jaxtyping import PyTree

from birdie_jax.engine.checkpoint_format import SavedArray, named_leaves, step_folder
from birdie_jax.engine.checkpoint_reading import read_parameters, saved_arrays
from birdie_jax.engine.parameter_average import COUNT as AVERAGE_COUNT
from birdie_jax.engine.parameter_average import NAME
from birdie_jax.engine.parameter_average import PARAMETERS as AVERAGE
from birdie_jax.errors import CheckpointError, DamagedError, OtherCheckpointError
from birdie_jax.storage import absolute
from birdie_jax.storage.workdir import Workdir

PARAMS = "params"
Read = TypeVar("Read")


class StoredParameters(NamedTuple):
    """The parameters of a checkpoint.

    Attributes:
        params: the parameters.
        step: the step at which they were saved.
    """

    params: PyTree[jax.Array]
    step: int


def restore_parameters(
    workdir: Workdir,
    abstract_params: PyTree[jax.ShapeDtypeStruct],
    step: int | None = None,
    *,
    average: bool = False,
) -> StoredParameters:
    """Read and verify the parameters of a checkpoint; nothing in the workdir changes.

    Args:
        workdir: the workdir of a run.
        abstract_params: shapes, types and shardings to restore onto; they may differ from the mesh of the
            checkpoint.
        step: the step of the checkpoint; None: the newest whole one, with a warning for each damaged one.
        average: whether to read the average of the parameters that the hook parameter_average keeps.

    Raises:
        CheckpointError: there is no such checkpoint, it is damaged or cannot be read, or it holds another
            architecture, or no average, or one without any parameters yet.
    """
    where = AVERAGE if average else PARAMS
    wanted = {f"{where}/{name}": leaf for name, leaf in named_leaves(abstract_params).items()}

    def read(folder: epath.Path) -> dict[str, jax.Array]:
        if average:
            _check_average(folder)
        return read_parameters(folder, wanted, exactly=True, where=where)

    found, found_step = _newest_whole(workdir, step, read)
    leaves = [found[name] for name in wanted]
    return StoredParameters(jax.tree.unflatten(jax.tree.structure(abstract_params), leaves), found_step)


def _check_average(folder: epath.Path) -> None:
    """Check that a checkpoint holds an average of one or more parameters.

    Raises:
        CheckpointError: it does not.
    """
    if AVERAGE_COUNT not in saved_arrays(folder):
        raise OtherCheckpointError(
            f"{folder}: has no average of the parameters; allowed: a checkpoint of a run with "
            f"train.hooks={NAME}"
        )
    device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    count = jax.ShapeDtypeStruct((), "int32", sharding=device)
    if not read_parameters(folder, {AVERAGE_COUNT: count}, exactly=False)[AVERAGE_COUNT]:
        raise OtherCheckpointError(
            f"{folder}: found an average without parameters; allowed: a checkpoint after the first "
            "multiple of train.average_every_steps at which its run had the hook"
        )


def read_some_parameters(
    workdir: Workdir,
    abstract_params: PyTree[jax.ShapeDtypeStruct],
    step: int | None = None,
    *,
    free_axes: Mapping[str, int] | None = None,
) -> tuple[dict[str, jax.Array], dict[str, SavedArray], int]:
    """Read the parameters of a checkpoint that match the name, shape and type of a wanted one.

    Args:
        workdir: the workdir of a run.
        abstract_params: shapes, types and shardings of the wanted parameters.
        step: the step of the checkpoint; None as in `restore_parameters`.
        free_axes: a dimension of some parameters, by name. A parameter that differs in the size of this
            dimension is also read, with its saved shape. The dimension must not be divided over devices.

    Returns:
        The read parameters by name (without `params/`), the descriptions of all saved ones, and the step.

    Raises:
        CheckpointError: there is no such checkpoint, or it is damaged or cannot be read.
    """
    wanted = named_leaves({PARAMS: abstract_params})
    free = {f"{PARAMS}/{name}": axis for name, axis in (free_axes or {}).items()}

    def read(folder: epath.Path) -> tuple[dict[str, jax.Array], dict[str, SavedArray]]:
        saved = _saved_parameters(folder)
        fitting = {
            name: jax.ShapeDtypeStruct(saved[name].shape, leaf.dtype, sharding=leaf.sharding)
            for name, leaf in wanted.items()
            if name in saved
            and saved[name].dtype == leaf.dtype.name
            and same_but_for(free.get(name), saved[name].shape, leaf.shape)
        }
        return read_parameters(folder, fitting, exactly=False), saved

    (found, saved), found_step = _newest_whole(workdir, step, read)

    def without_prefix(named):
        return {name.removeprefix(f"{PARAMS}/"): value for name, value in named.items()}

    return without_prefix(found), without_prefix(saved), found_step


def same_but_for(free_axis: int | None, shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Return whether two shapes are the same, or differ only in the size of the dimension `free_axis`."""
    return len(shape) == len(other) and all(
        axis == free_axis or sizes[0] == sizes[1]
        for axis, sizes in enumerate(zip(shape, other, strict=True))
    )


def _saved_parameters(folder: epath.Path) -> dict[str, SavedArray]:
    return {name: array for name, array in saved_arrays(folder).items() if name.startswith(f"{PARAMS}/")}


def _newest_whole(
    workdir: Workdir, step: int | None, read: Callable[[epath.Path], Read]
) -> tuple[Read, int]:
    """Return read(folder) of the checkpoint of `step`, or of the newest undamaged one, and its step."""
    directory = absolute(workdir.checkpoints)
    try:
        steps = workdir.saved_steps()
    except OSError as error:
        raise CheckpointError(f"{directory}: cannot be listed: {error}") from error
    if not steps:
        raise OtherCheckpointError(
            f"{directory}: holds no checkpoint; allowed: the workdir of a run that saved one"
        )
    if step is not None and step not in steps:
        raise OtherCheckpointError(
            f"{directory}: has no checkpoint of step {step}; allowed: {', '.join(map(str, steps))}"
        )
    for candidate in [step] if step is not None else reversed(steps):
        folder = directory / step_folder(candidate)
        try:
            return read(folder), candidate
        except DamagedError as error:
            if step is not None:
                raise CheckpointError(f"{folder}: the checkpoint is damaged ({error})") from error
            logging.warning("%s: the checkpoint is damaged (%s); trying the one before it", folder, error)
    raise CheckpointError(f"{directory}: every checkpoint is damaged (steps {steps})")
