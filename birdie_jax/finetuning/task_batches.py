"""Packed batches of task examples: the engine's `Batches`, as a function of the step only."""

from collections.abc import Sequence
from typing import Any

import grain
import numpy as np
from jax.sharding import Mesh
from jaxtyping import PyTree

from birdie_jax.batch import Batch
from birdie_jax.batching import close_prefetched, pack_rows, prefetch_batches
from birdie_jax.batching.pipeline import BatchWithState, RowsDataset
from birdie_jax.config import Config
from birdie_jax.engine.mesh import LocalRows
from birdie_jax.engine.state import TrainState
from birdie_jax.errors import ConfigError
from birdie_jax.finetuning.stage_sequence import StageSequence

# The name of the step in the position that a checkpoint saves.
_STEP = "step"


class TaskRows(RowsDataset):
    """A grain dataset of the rows that one process makes, from `first_step` on.

    Attributes:
        rows: the numbers of the rows within the global batch, for the first stage.
    """

    def __init__(
        self, sequence: StageSequence, rows: Sequence[Sequence[int]], spacing: int, first_step: int
    ):
        """Prepare to make rows of every stage.

        Args:
            sequence: the stages.
            rows: for each stage, the numbers of the rows to make.
            spacing: the padding positions between two examples of a row.
            first_step: the 0-based step of the first batch.
        """
        super().__init__()
        self.sequence, self.spacing, self.first_step = sequence, spacing, first_step
        self.rows_of_stages = [list(numbers) for numbers in rows]
        self.rows = self.rows_of_stages[0]

    def set_slice(self, sl: slice, sequential_slice: bool = False) -> None:
        """Keep one block of the rows of each stage; grain calls this in worker sl.start of sl.step."""
        del sequential_slice
        worker, workers = sl.start or 0, sl.step or 1
        for number, rows in enumerate(self.rows_of_stages):
            block = len(rows) // workers
            self.rows_of_stages[number] = rows[worker * block : (worker + 1) * block]
        self.rows = self.rows_of_stages[0]

    def __iter__(self) -> "TaskRowsIterator":
        return TaskRowsIterator(self)


class TaskRowsIterator(grain.DatasetIterator):
    """Iterator of `TaskRows`; its state is the step."""

    def __init__(self, dataset: TaskRows):
        super().__init__()
        self._dataset = dataset
        self._step = dataset.first_step

    def __next__(self) -> BatchWithState:
        dataset = self._dataset
        if self._step >= dataset.sequence.num_steps:
            raise StopIteration
        number, step = dataset.sequence.find(self._step)
        stage, rows = dataset.sequence.stages[number], dataset.sequence.rows[number]
        own = dataset.rows_of_stages[number]
        batch = pack_rows([rows.examples(step, row) for row in own], stage.length, dataset.spacing)
        self._step += 1
        # Rows have no state; a checkpoint needs only the step.
        return BatchWithState(batch, np.zeros((len(own), 0), np.int64))

    def get_state(self) -> dict[str, Any]:
        """Return the step; grain calls this after every batch."""
        return {_STEP: self._step}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from a state that `get_state` returned."""
        self._step = state[_STEP]


class TaskBatches:
    """Batches of packed rows of examples; batch s is a function of the stages and s only.

    Attributes:
        identity: the hash of the examples, for comparison on resume.
    """

    def __init__(self, config: Config, sequence: StageSequence, mesh: Mesh):
        """Prepare to make the rows that this process's devices hold, wholly or in part.

        Raises:
            ConfigError: the workers cannot divide the rows.
        """
        self.identity = sequence.identity
        self._config, self._sequence = config, sequence
        self._local = [LocalRows(stage.rows, stage.length, mesh) for stage in sequence.stages]
        workers = config.batching.workers
        for stage, local in zip(sequence.stages, self._local, strict=True):
            if workers and len(local.numbers) % workers:
                raise ConfigError(
                    f"config.batching.workers: found {workers}; allowed: 0 or a divisor of "
                    f"{len(local.numbers)}, the rows of {stage.where} that a process makes"
                )
        self._made = None
        self._step = 0

    def first_position(self) -> PyTree[np.ndarray]:
        """Return the number of the first step."""
        return {_STEP: np.zeros((), np.int64)}

    def restore(self, position: PyTree[np.ndarray], state: TrainState) -> None:
        """Start the makers of batches at a position."""
        del state
        self._step = int(position[_STEP])
        batching = self._config.batching
        own = [local.numbers for local in self._local]
        rows = TaskRows(self._sequence, own, batching.spacing, self._step)
        self._made = iter(prefetch_batches(rows, workers=batching.workers, prefetch=batching.prefetch))

    def __next__(self) -> tuple[Batch, int]:
        """Return the next global batch on the devices, and the number of the step after it."""
        if self._made is None:
            raise ValueError("task batches: not started; call restore first")
        made = next(self._made)
        number, _ = self._sequence.find(self._step)
        self._step += 1
        return self._local[number].put(made.batch), self._step

    def gather(self, position: int) -> PyTree[np.ndarray]:
        """Return the position that a checkpoint saves."""
        return {_STEP: np.asarray(position, np.int64)}

    def close(self) -> None:
        """Stop the makers of batches."""
        if self._made is not None:
            close_prefetched(self._made)
