"""A new run that continues from a checkpoint of another one, with its optimizer and data position."""

from collections.abc import Callable, Mapping, Set
from typing import NamedTuple

import numpy as np
from etils import epath
from jaxtyping import PyTree

from birdie_jax.engine.checkpoint import Restored, put_together
from birdie_jax.engine.checkpoint_format import check_savable, named_leaves, state_tree, step_folder
from birdie_jax.engine.checkpoint_reading import read_checkpoint
from birdie_jax.engine.state import TrainState
from birdie_jax.errors import CheckpointError, DamagedError
from birdie_jax.storage import absolute, write_whole
from birdie_jax.storage.metric_lines import is_kept, parse_line, read_metric_lines
from birdie_jax.storage.workdir import Workdir


class MovedPosition(NamedTuple):
    """How to convert the position of another run's batches to one of this run.

    Attributes:
        template: a position of the other run.
        move: (a position of the other run) -> one of this run.
    """

    template: PyTree[np.ndarray]
    move: Callable[[PyTree[np.ndarray]], PyTree[np.ndarray]]


class Branch(NamedTuple):
    """The checkpoint of another run where a run begins.

    Attributes:
        source: the workdir of the other run.
        step: the step of its checkpoint.
        renewed: the names of the sections of the train state that start from their initial state.
        moved: how the position changes if the run reads other data; None: it does not change.
    """

    source: Workdir
    step: int
    renewed: Set[str] = frozenset()
    moved: MovedPosition | None = None

    @property
    def folder(self) -> epath.Path:
        """The folder of the checkpoint."""
        return absolute(self.source.checkpoints) / step_folder(self.step)

    def read(
        self,
        abstract_state: TrainState,
        position: PyTree[np.ndarray],
        create_sections: Callable[[], Mapping[str, PyTree]],
        data: str | None,
        growing: Set[str],
    ) -> Restored:
        """Return state and position of the checkpoint; see `Checkpoints.restore`.

        Raises:
            ConfigError: the state has an array that no checkpoint can hold.
            CheckpointError: the checkpoint is damaged or cannot be read, has another structure, or was
                trained on other data.
        """
        if self.moved is not None:
            position, data = self.moved.template, None
        wanted = named_leaves(state_tree(abstract_state))
        check_savable(wanted)
        kept = {name: leaf for name, leaf in wanted.items() if name.split("/", 1)[0] not in self.renewed}
        try:
            read = read_checkpoint(self.folder, kept, named_leaves(position), data, growing)
        except DamagedError as error:
            raise CheckpointError(f"{self.folder}: the checkpoint is damaged ({error})") from error
        new = tuple(name for name in wanted if name not in kept)
        read = read._replace(missing=(*read.missing, *new))
        if self.renewed and read.window:
            # Its sums may belong to other arms.
            seen = read.window["tokens_seen"] + int(read.window["tokens"])
            read = read._replace(window={"tokens_seen": seen})
        restored = put_together(read, abstract_state, position, create_sections)
        if self.moved is not None:
            restored = restored._replace(position=self.moved.move(restored.position))
        return restored

    def copy_metrics(self, workdir: Workdir) -> None:
        """Write the other run's metrics up to the step into the new run's workdir.

        Raises:
            OSError: they cannot be read or written.
        """
        lines = [(line, parse_line(line)) for line in read_metric_lines(self.source)]
        again = True  # The new run calls the hooks that were due at the step.
        kept = [line for line, scalars in lines if scalars and is_kept(scalars, self.step, again)]
        write_whole(workdir.metrics, b"".join(kept))
