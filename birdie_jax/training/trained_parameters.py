"""The parameters of a run, without the rest of its checkpoint, on whatever devices there are."""

from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp
from absl import logging

from birdie_jax.config import OptimizerConfig
from birdie_jax.models.parameters import ParameterPolicy
from birdie_jax.training.checkpoint import UNREADABLE, CheckpointError, fingerprints, leaf_name
from birdie_jax.training.optimizer import make_optimizer


class TrainedParameters(NamedTuple):
    """Parameters, and the step at which they were saved."""

    params: Any
    step: int


def restore_parameters(
    workdir: Path, abstract_params: Any, optimizer: OptimizerConfig, step: int | None = None
) -> TrainedParameters:
    """Read and verify the parameters of a checkpoint; nothing in the workdir changes.

    Args:
        workdir: of the run.
        abstract_params: shapes, types and shardings to restore onto; the mesh that the checkpoint was made
            on does not matter.
        optimizer: the run's, whose state lies behind the parameters in a checkpoint.
        step: of the checkpoint; None = the newest that is whole, with a warning for each that is not.

    Raises:
        CheckpointError: there is no such checkpoint, it is damaged, or it holds another architecture.
    """
    directory = workdir / "checkpoints"
    steps = saved_steps(directory)
    if not steps:
        raise CheckpointError(
            f"{directory}: holds no checkpoint; allowed: the workdir of a run that saved one"
        )
    if step is not None and step not in steps:
        raise CheckpointError(
            f"{directory}: has no checkpoint of step {step}; allowed: {', '.join(map(str, steps))}"
        )
    for candidate in [step] if step is not None else reversed(steps):
        folder = directory / f"{candidate:08d}"
        try:
            return TrainedParameters(_restore(folder, abstract_params, optimizer), candidate)
        except CheckpointError:
            raise
        except UNREADABLE as error:
            first_line = (str(error).strip() or type(error).__name__).splitlines()[0][:500]
            if step is not None:
                raise CheckpointError(f"{folder}: the checkpoint is damaged ({first_line})") from error
            logging.warning(
                "%s: the checkpoint is damaged (%s); trying the one before it", folder, first_line
            )
    raise CheckpointError(f"{directory}: every checkpoint is damaged (steps {steps})")


def saved_steps(directory: Path) -> list[int]:
    """Return the steps of the checkpoints in a folder, in order."""
    if not directory.is_dir():
        return []
    return sorted(int(path.name) for path in directory.iterdir() if path.name.isdigit())


def _restore(folder: Path, abstract_params: Any, optimizer: OptimizerConfig) -> Any:
    meta: Any = ocp.JsonCheckpointHandler().restore(folder.absolute() / "meta", args=ocp.args.JsonRestore())
    handler = ocp.PyTreeCheckpointHandler()
    state = folder.absolute() / "state"
    _check_architecture(folder, handler.metadata(state).tree, abstract_params, optimizer)
    leaves, structure = jax.tree.flatten(abstract_params)
    names = [leaf_name(number) for number in range(1, len(leaves) + 1)]
    wanted = dict(zip(names, leaves, strict=True))
    loaded = handler.restore(
        state,
        args=ocp.args.PyTreeRestore(
            item=wanted,
            restore_args=ocp.checkpoint_utils.construct_restore_args(wanted),
            partial_restore=True,
        ),
    )
    params = jax.tree.unflatten(structure, [loaded[name] for name in names])
    prints = [int(p) for p in np.asarray(fingerprints(params))]
    if prints != meta["fingerprints"][1 : len(leaves) + 1]:
        raise ValueError("its arrays differ from those that were saved: a file has changed")
    return params


def _check_architecture(folder: Path, saved: Any, abstract_params: Any, optimizer: OptimizerConfig) -> None:
    """Compare step, parameters and optimizer, as they lie in a checkpoint, with what the model wants."""
    # Neither weight decay nor learning-rate factors show in the shapes of an optimizer's state.
    policies = jax.tree.map(lambda leaf: ParameterPolicy((None,) * leaf.ndim, False), abstract_params)
    state = {
        "0 step": jax.ShapeDtypeStruct((), np.int32),
        "1 parameter": abstract_params,
        "2 optimizer": jax.eval_shape(make_optimizer(optimizer, 1, policies).init, abstract_params),
    }
    for number, (path, leaf) in enumerate(jax.tree_util.tree_leaves_with_path(state)):
        found = saved.get(leaf_name(number))
        if found is not None and tuple(found.shape) == leaf.shape and found.dtype == leaf.dtype:
            continue
        name = ".".join(str(getattr(part, "key", part)) for part in path[1:])
        if name == "embedding" and found is not None and tuple(found.shape[1:]) == leaf.shape[1:]:
            raise CheckpointError(
                f"{folder}: the tokenizer does not fit the weights: the embedding table has "
                f"{found.shape[0]} rows; the tokenizer asks for {leaf.shape[0]}"
            )
        held = "nothing" if found is None else f"{found.dtype}{list(found.shape)}"
        raise CheckpointError(
            f"{folder}: a checkpoint of another architecture: in the place of {path[0].key[2:]} {name} it "
            f"has {held}; config.json asks for {leaf.dtype}{list(leaf.shape)}"
        )
