"""The three protocols of training: `Batches`, `Step` and `Hook`."""

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

import jax
import numpy as np
from jaxtyping import PyTree

from birdie_jax.array_types import Key
from birdie_jax.engine.state import StepMetrics, StepTotals, TrainState

Position = TypeVar("Position")
"""The position of the source of batches, for one process."""


@runtime_checkable
class Batches(Protocol[Position]):
    """An iterator over global batches on the devices, with the position of their source after each."""

    def first_position(self) -> PyTree[np.ndarray]:
        """Return the position before the first batch: a tree of dictionaries of NumPy arrays."""
        ...

    def restore(self, position: PyTree[np.ndarray], state: TrainState) -> None:
        """Start at the position of a checkpoint, for the step after `state.step`; called once."""
        ...

    def __next__(self) -> tuple[PyTree[jax.Array], Position]:
        """Return the next batch, and this process's position after it."""
        ...

    def gather(self, position: Position) -> PyTree[np.ndarray]:
        """Return the position of all processes, to save it; all processes must call this together."""
        ...

    def close(self) -> None:
        """Stop the prefetching of batches."""
        ...


@runtime_checkable
class IdentifiedBatches(Batches[Position], Protocol[Position]):
    """`Batches` with an identity of their data: a run cannot resume with other data.

    Attributes:
        identity: a hash of the data; equal for equal data, wherever it is stored.
    """

    @property
    def identity(self) -> str: ...  # noqa: D102


@runtime_checkable
class Step(Protocol):
    """One optimizer step, compiled for a mesh.

    Attributes:
        mesh: the device mesh of the run.
        abstract_state: shapes, types and shardings of the train state.
    """

    @property
    def mesh(self) -> jax.sharding.Mesh: ...  # noqa: D102

    @property
    def abstract_state(self) -> TrainState: ...  # noqa: D102

    def create_state(self) -> TrainState:
        """Return the state before the first step."""
        ...

    def create_sections(self) -> Mapping[str, PyTree]:
        """Return the hooks' sections before the first step."""
        ...

    def __call__(self, state: TrainState, batch: PyTree[jax.Array]) -> tuple[TrainState, StepMetrics]:
        """Take one step; the memory of `state` is reused."""
        ...

    def summarise(self, totals: StepTotals) -> dict[str, float]:
        """Return scalars to log for some steps; a `loss` among them replaces their mean loss."""
        ...


class HookCall(NamedTuple):
    """The circumstances of a hook's call.

    Attributes:
        step: the number of train steps done.
        num_steps: the number of train steps of the whole run.
        is_first: whether this process calls the hook for the first time, and so may have to compile.
        heartbeat: reports the hook's current phase to the watch. All processes must call it at the same
            points, at least every `train.hung_seconds`.
        should_stop: () -> whether the run must stop. All processes must call it at the same points.
    """

    step: int
    num_steps: int
    is_first: bool
    heartbeat: Callable[[str], None]
    should_stop: Callable[[], bool]

    @property
    def is_last(self) -> bool:
        """Whether this is the last step of the run."""
        return self.step == self.num_steps


class HookResult(NamedTuple):
    """The result of a hook.

    Attributes:
        state: the new train state, with the hook's own section changed if it has one.
        scalars: the scalars to log at this step.
        ends_run: whether the run ends at this step, before its planned end. All processes must return the
            same value.
    """

    state: TrainState
    scalars: Mapping[str, float]
    ends_run: bool = False


@runtime_checkable
class Hook(Protocol):
    """An action between train steps.

    A hook that is due at step s runs after the checkpoint of step s and before step s + 1. A run that
    resumes from that checkpoint calls the hook again with the same state, so its result must depend only on
    the state. At the last step it runs before the last checkpoint.

    Attributes:
        name: the name of the hook in messages, and of its section in the train state and checkpoints.
    """

    @property
    def name(self) -> str: ...  # noqa: D102

    def create_section(self, key: Key) -> PyTree:
        """Return the arrays that the hook keeps, before the first step; `{}` for none. Traced by JAX.

        Every hook gets the same key. Fold in the hook's name if another hook also draws random numbers.
        """
        ...

    def resume(self, state: TrainState) -> None:
        """Prepare for calls at steps from `state.step` on; called once in each process."""
        ...

    def is_due(self, step: int, num_steps: int) -> bool:
        """Return whether the hook runs at `step`, which is `num_steps` at the end."""
        ...

    def run(self, state: TrainState, call: HookCall) -> HookResult | None:
        """Run the hook; return None if `call.should_stop()` was true and the hook changed nothing."""
        ...

    def close(self) -> None:
        """Release the hook's resources: the run has ended, with or without an error."""
        ...


@runtime_checkable
class GrowingHook(Hook, Protocol):
    """A `Hook` with arrays whose number of rows depends on the steps of the run.

    Attributes:
        growing: the names of these arrays in its section. A longer run keeps their rows, followed by those
            of a new section.
    """

    @property
    def growing(self) -> tuple[str, ...]: ...  # noqa: D102
