"""Start a new run from a checkpoint of another run, with its optimizer and data position."""

import json
from collections.abc import Callable, Mapping, Set
from typing import Any, NamedTuple

import numpy as np
from etils import epath
from jaxtyping import PyTree

from birdie_jax.engine.checkpoint import Restored, put_together
from birdie_jax.engine.checkpoint_format import check_savable, named_leaves, state_tree, step_folder
from birdie_jax.engine.checkpoint_reading import read_checkpoint
from birdie_jax.engine.state import TrainState
from birdie_jax.errors import CheckpointError, DamagedError
from birdie_jax.storage import absolute, write_whole
from birdie_jax.storage.metric_lines import is_kept, is_time_use, parse_line, read_metric_lines
from birdie_jax.storage.workdir import Workdir


class MovedPosition(NamedTuple):
    """Converts a position in another run's batches to a position in this run's batches.

    Attributes:
        template: a position of the other run.
        move: a position of the other run -> a position of this run.
    """

    template: PyTree[np.ndarray]
    move: Callable[[PyTree[np.ndarray]], PyTree[np.ndarray]]


class Branch(NamedTuple):
    """The checkpoint of another run that a run starts from.

    Attributes:
        source: the workdir of the other run.
        step: the step of its checkpoint.
        renewed: the names of the sections of the train state that start from their initial state.
        moved: the conversion of the position if the run reads other data; None: the same position.
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
        """Return the state and position of the checkpoint; see `Checkpoints.restore`.

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
            # The sums of the open window may belong to other arms.
            seen = read.window["tokens_seen"] + int(read.window["tokens"])
            read = read._replace(window={"tokens_seen": seen})
        restored = put_together(read, abstract_state, position, create_sections)
        if self.moved is not None:
            restored = restored._replace(position=self.moved.move(restored.position))
        return restored

    def copy_metrics(self, workdir: Workdir) -> None:
        """Copy the other run's metrics up to the branch's step into the new run's workdir.

        The lines lose the times of the other run, because a resumed run adds to the times of its lines.

        Raises:
            OSError: the metrics cannot be read or written.
        """
        lines = [(line, parse_line(line)) for line in read_metric_lines(self.source)]
        again = True  # The new run calls the hooks that were due at the step.
        kept = [
            _without_times(line, scalars)
            for line, scalars in lines
            if scalars and is_kept(scalars, self.step, again)
        ]
        write_whole(workdir.metrics, b"".join(kept))


def _without_times(line: bytes, scalars: Mapping[str, Any]) -> bytes:
    """Return a line of metrics without the scalars of `TimeUse`."""
    rest = {name: value for name, value in scalars.items() if not is_time_use(name)}
    return line if len(rest) == len(scalars) else (json.dumps(rest) + "\n").encode()
