"""Check the arguments of the engine before a run starts; each message names the argument."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from birdie_jax.engine.bad_steps import SECTION
from birdie_jax.engine.checkpoint_format import named_leaves, state_tree
from birdie_jax.engine.mesh import replicated_context
from birdie_jax.engine.protocols import Batches, Hook, HookResult, Step
from birdie_jax.engine.state import TrainState
from birdie_jax.errors import ConfigError, shown


def check_parts(step: object, batches: object, hooks: object) -> None:
    """Check that a step, batches and hooks match each other.

    Raises:
        ConfigError: a part lacks a method of its protocol, two hooks have the same name, or the step was
            made for other hooks.
    """
    _check_protocol("step", step, Step)
    _check_protocol("batches", batches, Batches)
    if not isinstance(hooks, Sequence) or isinstance(hooks, str):
        raise ConfigError(f"hooks: found {kind_of(hooks)}; allowed: a list of hooks")
    for number, hook in enumerate(hooks):
        _check_protocol(f"hooks[{number}]", hook, Hook)
    check_names(hooks)
    assert isinstance(step, Step)
    with jax.set_mesh(step.mesh):
        _check_sections(step, hooks)


def check_workdir(root: str, argument: str = "workdir") -> None:
    """Check that a folder can hold checkpoints.

    Raises:
        ConfigError: it cannot; the message names `argument`.
    """
    if not root:
        raise ConfigError(f"{argument}: found ''; allowed: the name of a folder, or gs://BUCKET/...")
    if root.startswith("s3://"):
        raise ConfigError(
            f"{argument}: found {root}; allowed: a folder or gs://BUCKET/...: orbax, which writes "
            "checkpoints, does not write s3://; use a file system that the hosts share, and s3:// for "
            "text and exports"
        )


def check_names(hooks: Sequence[Hook]) -> None:
    """Check that the names of hooks are unique.

    Raises:
        ConfigError: two hooks have the same name.
    """
    names = [hook.name for hook in hooks]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"hooks: found {names.count(name)} with the name {name!r}; allowed: one each")


def check_batch(batch: PyTree, step: int) -> None:
    """Check that the batch of a step has arrays, and that none is empty.

    Raises:
        ConfigError: the batch has no array, or one is empty; the message names the step and the array.
    """
    arrays = jax.tree_util.tree_leaves_with_path(batch)
    if not arrays:
        raise ConfigError(f"batches: the batch of step {step} has no arrays; allowed: one or more")
    for path, array in arrays:
        shape = getattr(array, "shape", ())
        if not shape or 0 in shape:
            name = jax.tree_util.keystr(path, simple=True, separator="/") or "the only array"
            found = f"shape {tuple(shape)}" if hasattr(array, "shape") else kind_of(array)
            raise ConfigError(
                f"batches: found {found} for {name} in the batch of step {step}; allowed: an array with 1 "
                "row or more"
            )


def check_state(owner: str, state: object, wanted: TrainState) -> None:
    """Check that a train state has the same arrays as the first state of the run, so the run can resume.

    Args:
        owner: the part that returned the state, for messages: "step", or "hook 'best'".
        state: the returned state.
        wanted: shapes and types of the first state.

    Raises:
        ConfigError: an array is missing, new or of another shape or type; the message names it.
    """
    if not isinstance(state, TrainState):
        raise ConfigError(f"{owner}: found {kind_of(state)} for the state; allowed: a TrainState")
    try:
        returned, first = state_tree(state), state_tree(wanted)
    except TypeError as error:
        raise ConfigError(f"{owner}: found sections that are {kind_of(state.sections)}") from error
    check_same_arrays(owner, returned, first)


def check_position(position: PyTree) -> PyTree[np.ndarray]:
    """Check that all leaves of a position of batches are arrays, and return it.

    Raises:
        ConfigError: a leaf is not an array; the message names the first such leaf.
    """
    for name, leaf in named_leaves(position).items():
        if not isinstance(leaf, np.ndarray | np.generic | jax.Array):
            raise ConfigError(
                f"batches: found {kind_of(leaf)} for {name or 'the position'} in their first position; "
                "allowed: a NumPy array"
            )
    return position


def check_same_arrays(owner: str, found: PyTree, wanted: PyTree) -> None:
    """Check that two trees have the same nodes, and arrays of the same names, shapes and types.

    Args:
        owner: the source of the tree, for messages.
        found: the tree.
        wanted: a tree of arrays, or of shapes and types.

    Raises:
        ConfigError: the trees differ; the message names the first different array.
    """
    arrays, first = named_leaves(found), named_leaves(wanted)
    for name in [*first, *(name for name in arrays if name not in first)]:
        if _in_words(arrays, name) != _in_words(first, name):
            raise ConfigError(
                f"{owner}: found {_in_words(arrays, name)} for {name or 'the only array'}; allowed: "
                f"{_in_words(first, name)}"
            )
    if jax.tree.structure(found) != jax.tree.structure(wanted):
        raise ConfigError(
            f"{owner}: found {kind_of(found)} with other nodes, such as a dictionary in place of a named "
            "tuple; allowed: its nodes at the start of the run"
        )


def check_hook_result(hook: Hook, result: object, wanted: TrainState) -> dict[str, float]:
    """Check the result of a hook; return its scalars as floats.

    Args:
        hook: the hook.
        result: the return value of its `run`.
        wanted: shapes and types of the first state of the run.

    Raises:
        ConfigError: the result is not a `HookResult`, its state has other arrays than the first one, or a
            scalar is not a number; the message names the hook and the array or scalar.
    """
    owner = f"hook {hook.name!r}"
    if not isinstance(result, HookResult):
        raise ConfigError(
            f"{owner}: run returned {kind_of(result)}; allowed: a HookResult, or None if "
            "call.should_stop() was true"
        )
    check_state(owner, result.state, wanted)
    if not isinstance(result.scalars, Mapping):
        raise ConfigError(
            f"{owner}: found {kind_of(result.scalars)} for the scalars; allowed: a dictionary"
        )
    numbers = {}
    for name, value in result.scalars.items():
        try:
            numbers[name] = float(value)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"{owner}: found {shown(value)} for the scalar {name!r}; allowed: a number"
            ) from error
    return numbers


def _check_sections(step: Step, hooks: Sequence[Hook]) -> None:
    """Check that the sections of a step belong to the hooks."""
    kept = {name: section for name, section in step.abstract_state.sections.items() if name != SECTION}
    for hook in hooks:
        with replicated_context():
            created = jax.eval_shape(hook.create_section, jax.random.key(0))
        if not jax.tree.leaves(created):
            continue
        if hook.name not in kept:
            raise ConfigError(
                f"hook {hook.name!r}: keeps arrays, but the step has no section for them; allowed: the "
                "hooks of make_step(..., sections=sections_of(hooks))"
            )
        check_same_arrays(f"step: its section {hook.name!r}", kept.pop(hook.name), created)
    for name in kept:
        raise ConfigError(
            f"step: has the section {name!r}, but there is no hook of that name; allowed: the hooks of "
            "make_step(..., sections=sections_of(hooks))"
        )


def _check_protocol(argument: str, value: object, protocol: type) -> None:
    names = [name for name in vars(protocol) if name in ("__call__", "__next__") or name[0] != "_"]
    missing = [name for name in names if not hasattr(value, name)]
    if missing or isinstance(value, type):
        found = f"the class {value.__name__}" if isinstance(value, type) else kind_of(value)
        without = f" without {', '.join(missing)}" if missing else ""
        raise ConfigError(
            f"{argument}: found {found}{without}; allowed: a birdie_jax.engine.{protocol.__name__}"
        )


def _in_words(arrays: Mapping[str, Any], name: str) -> str:
    if name not in arrays:
        return "nothing"
    return kind_of(arrays[name])


def kind_of(value: object) -> str:
    """Describe a value in messages: the type and shape of an array, else the class."""
    if isinstance(value, np.ndarray | jax.Array | jax.ShapeDtypeStruct):
        return f"{value.dtype}{list(value.shape)}"
    return "None" if value is None else f"a value of type {type(value).__name__}"
