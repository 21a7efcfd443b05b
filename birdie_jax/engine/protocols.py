"""The three protocols by which something is trained: `Batches`, `Step` and `Hook`."""

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

import jax
import numpy as np
from jaxtyping import PyTree

from birdie_jax.array_types import Key
from birdie_jax.engine.state import StepMetrics, StepTotals, TrainState

Position = TypeVar("Position")
"""Where the source of batches stands, as one process knows it."""


@runtime_checkable
class Batches(Protocol[Position]):
    """Global batches on the devices, one after another, and where their source stands after each."""

    def first_position(self) -> PyTree[np.ndarray]:
        """Return the position before the first batch: a tree of dictionaries of NumPy arrays."""
        ...

    def restore(self, position: PyTree[np.ndarray], state: TrainState) -> None:
        """Start at a position that a checkpoint holds, for the step after `state.step`; called once."""
        ...

    def __next__(self) -> tuple[PyTree[jax.Array], Position]:
        """Return the next batch, and the position after it as this process knows it."""
        ...

    def gather(self, position: Position) -> PyTree[np.ndarray]:
        """Return the position of all processes, to be saved; all of them call this together."""
        ...

    def close(self) -> None:
        """Stop whatever makes batches ahead."""
        ...


@runtime_checkable
class IdentifiedBatches(Batches[Position], Protocol[Position]):
    """`Batches` that know what they are made of: a run goes on with no other data than it began with.

    Attributes:
        identity: a hash of the data; equal for equal data, wherever it is.
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
        """Return the hooks' sections of that state."""
        ...

    def __call__(self, state: TrainState, batch: PyTree[jax.Array]) -> tuple[TrainState, StepMetrics]:
        """Take one step; the memory of `state` is given up."""
        ...

    def summarise(self, totals: StepTotals) -> dict[str, float]:
        """Return scalars to log of some steps; a `loss` among them stands for the mean of theirs."""
        ...


class HookCall(NamedTuple):
    """When and how a hook is called.

    Attributes:
        step: the number of train steps done.
        num_steps: the number of train steps of the whole run.
        is_first: whether this process calls the hook for the first time, and so may have to compile.
        heartbeat: tells the watch that the hook does what its argument says; to be called at least every
            `train.hung_seconds`, and by all processes alike.
        should_stop: whether the run was asked to stop; to be called by all processes alike.
    """

    step: int
    num_steps: int
    is_first: bool
    heartbeat: Callable[[str], None]
    should_stop: Callable[[], bool]

    @property
    def is_last(self) -> bool:
        """Whether no train step follows."""
        return self.step == self.num_steps


class HookResult(NamedTuple):
    """What a hook did.

    Attributes:
        state: the train state from now on, with the hook's own section changed if it has one.
        scalars: what is logged at this step.
        ends_run: whether this step is the last of the run, however many were planned. All processes have to
            return the same.
    """

    state: TrainState
    scalars: Mapping[str, float]
    ends_run: bool = False


@runtime_checkable
class Hook(Protocol):
    """Something that is done between train steps.

    A hook that is due at step s runs before step s + 1, and after the checkpoint of step s: a run that goes
    on from that checkpoint calls the hook again, with the same state, so that its result must depend on
    nothing else. At the last step it runs before the checkpoint, which is the last one.

    Attributes:
        name: the name of its section of the train state, of checkpoints and of messages.
    """

    @property
    def name(self) -> str: ...  # noqa: D102

    def create_section(self, key: Key) -> PyTree:
        """Return the arrays that the hook keeps, before the first step; `{}` for none. Traced by JAX.

        The key is the same for every hook: fold the hook's name in where another hook draws too.
        """
        ...

    def resume(self, state: TrainState) -> None:
        """Get ready to be called for steps from `state.step` on; called once in each process."""
        ...

    def is_due(self, step: int, num_steps: int) -> bool:
        """Whether the hook runs at `step`, which is `num_steps` at the end."""
        ...

    def run(self, state: TrainState, call: HookCall) -> HookResult | None:
        """Do it. None: `call.should_stop()` was true before it was done, and nothing has changed."""
        ...

    def close(self) -> None:
        """Release what the hook holds: the run has ended, well or not."""
        ...


@runtime_checkable
class GrowingHook(Hook, Protocol):
    """A `Hook` with arrays whose rows are counted by the steps of the run.

    Attributes:
        growing: the names of these arrays in its section. A run that is made longer keeps their rows, and
            has those of a new section behind them.
    """

    @property
    def growing(self) -> tuple[str, ...]: ...  # noqa: D102
