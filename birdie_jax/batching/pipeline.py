"""The resumable pipeline: row streams under grain, and the position that a checkpoint saves."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import grain
import numpy as np
from absl import flags
from grain.experimental import ThreadPrefetchIterDataset
from jaxtyping import Int64

from birdie_jax.batch import Batch
from birdie_jax.batching.mixture_board import BoardClosed, MixtureBoard
from birdie_jax.batching.packing import pack_rows
from birdie_jax.batching.row_stream import RowSettings, RowStream, first_position
from birdie_jax.objectives import Arm
from birdie_jax.text import TokenShards

Positions = Int64[np.ndarray, "rows position"]


class MadeBatch(NamedTuple):
    """A batch, and where the streams of its rows stand after it.

    The position travels with the batch, so that a checkpoint saves that of the last batch trained on,
    however many were made ahead and by however many workers.
    """

    batch: Batch
    positions: Positions


def first_positions(rows: int, lookahead: int) -> Positions:
    """Return the positions of `rows` rows from which nothing was drawn."""
    return np.tile(first_position(lookahead), (rows, 1))


class RowStreams(grain.IterDataset):
    """Batches of some rows of the global batch, from `first_step` on, as a grain dataset.

    Batch s is made under the mixture of decision s // every_steps, for which it waits if need be.
    """

    def __init__(
        self,
        text: TokenShards,
        arms: tuple[Arm, ...],
        settings: RowSettings,
        board: MixtureBoard,
        *,
        first_step: int,
        every_steps: int,
        positions: Positions,
        rows: Sequence[int] | None = None,
    ):
        """Make the rows of these numbers, each from its position; None = rows 0 .. len(positions) - 1."""
        super().__init__()
        self.text, self.arms, self.settings, self.board = text, arms, settings, board
        self.first_step, self.every_steps = first_step, every_steps
        self.positions = positions
        self.rows = list(range(len(positions)) if rows is None else rows)

    def set_slice(self, sl: slice, sequential_slice: bool = False) -> None:
        """Keep one block of rows: grain calls this in worker sl.start of sl.step."""
        del sequential_slice
        worker, workers = sl.start or 0, sl.step or 1
        block = len(self.rows) // workers
        own = slice(worker * block, (worker + 1) * block)
        self.rows, self.positions = self.rows[own], self.positions[own]

    def __iter__(self) -> "RowStreamsIterator":
        return RowStreamsIterator(self)


class RowStreamsIterator(grain.DatasetIterator):
    """Iterator of `RowStreams`; its state is the step and the positions."""

    def __init__(self, dataset: RowStreams):
        super().__init__()
        self._dataset = dataset
        self._restore(dataset.first_step, dataset.positions)

    def __next__(self) -> MadeBatch:
        dataset = self._dataset
        decision = self._step // dataset.every_steps
        if decision != self._decision:
            try:
                mixture = dataset.board.wait_for(decision)
            except BoardClosed:
                raise StopIteration from None
            for stream in self._streams:
                stream.set_mixture(mixture)
            self._decision = decision
        rows = [stream.next_row() for stream in self._streams]
        batch = pack_rows(rows, dataset.settings.length, dataset.settings.spacing)
        self._step += 1
        return MadeBatch(batch, self._positions())

    def get_state(self) -> dict[str, Any]:
        """Return the step and the positions; grain asks for them after every batch."""
        return {"step": self._step, "positions": self._positions()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from a state that `get_state` returned."""
        self._restore(state["step"], state["positions"])

    def _positions(self) -> Positions:
        return np.stack([stream.position() for stream in self._streams])

    def _restore(self, step: int, positions: Positions) -> None:
        dataset = self._dataset
        self._step, self._decision = step, -1
        self._streams = [
            RowStream(dataset.text, dataset.arms, dataset.settings, row, position)
            for row, position in zip(dataset.rows, positions, strict=True)
        ]


def prefetched(streams: RowStreams, *, workers: int, prefetch: int) -> grain.IterDataset:
    """Make batches ahead: in `workers` processes, each with a block of the rows, or in a thread if 0.

    The batches are the same for any number of workers. Close the streams' board before an iterator of
    this, for its makers may be waiting there.

    Args:
        streams: all rows that this process makes.
        workers: must divide the number of rows.
        prefetch: batches that are made ahead; with workers at least 1, for each of them.

    Raises:
        ValueError: the rows cannot be divided evenly among the workers.
    """
    if not workers:
        return ThreadPrefetchIterDataset(streams, prefetch_buffer_size=prefetch)
    rows = len(streams.positions)
    if rows % workers:
        raise ValueError(f"workers: found {workers} for {rows} rows; allowed: 0 or a divisor of {rows}")
    if not flags.FLAGS.is_parsed():
        # Grain asks absl for settings of its workers, also in a program that has no flags.
        flags.FLAGS.mark_as_parsed()
    options = grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=prefetch)
    blocks = streams.mp_prefetch(options, worker_init_fn=_live_and_die_with_parent)
    # A remainder is what some workers made before they saw the board closed.
    return blocks.batch(workers, drop_remainder=True, batch_fn=join_rows)


def _live_and_die_with_parent(worker: int, workers: int) -> None:
    """Leave signals to the parent, which stops its workers in good order, and outlive it by no more."""
    del worker, workers
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_exit_after, args=(multiprocessing.parent_process(),), daemon=True).start()


def _exit_after(parent: Any) -> None:
    parent.join()
    os._exit(1)


def join_rows(parts: Sequence[MadeBatch]) -> MadeBatch:
    """Put blocks of rows under one another."""
    return MadeBatch(
        Batch(*(np.concatenate(fields) for fields in zip(*(part.batch for part in parts), strict=True))),
        np.concatenate([part.positions for part in parts]),
    )
