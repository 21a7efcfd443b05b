"""The resumable pipeline: row streams as a grain dataset, and the stream states for checkpoints."""

import itertools
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
from jaxtyping import Float64, Int64

from birdie_jax.batch import Batch
from birdie_jax.batching.mixture_history import DecisionSchedule, MixtureHistory
from birdie_jax.batching.packing import empty_rows, pack_rows
from birdie_jax.batching.row_stream import RowSettings, RowStream
from birdie_jax.batching.stream_state import StreamLayout
from birdie_jax.errors import HistoryClosed
from birdie_jax.objectives import Arm
from birdie_jax.text.corpora import Corpora, RowText


def validation_batches(
    text: RowText, arms: tuple[Arm, ...], settings: RowSettings, batches_per_arm: int
) -> list[list[Batch]]:
    """Return the batches of each arm; every row contains examples of that arm only.

    All arms read the same rows of text. `settings.rows` is the number of rows of a validation batch.

    Raises:
        DataError: no example of an arm can be made from the validation text; names the arm.
    """
    return [
        _make_batches(text, arms, settings, np.eye(len(arms))[number], batches_per_arm)
        for number in range(len(arms))
    ]


def split_into_chunks(batches: Sequence[Sequence[Batch]], rows: int) -> list[Batch]:
    """Concatenate the rows of all arms' batches, and split them into batches of `rows` rows.

    The last batch is padded with empty rows. Sums by arm over all chunks equal those over all batches.
    """
    fields = [np.concatenate(parts) for parts in zip(*itertools.chain(*batches), strict=True)]
    padding = empty_rows(-len(fields[0]) % rows, fields[0].shape[1])
    filled = [np.concatenate([field, rest]) for field, rest in zip(fields, padding, strict=True)]
    return [
        Batch(*(field[begin : begin + rows] for field in filled))
        for begin in range(0, len(filled[0]), rows)
    ]


def _make_batches(
    text: RowText,
    arms: tuple[Arm, ...],
    settings: RowSettings,
    probabilities: Float64[np.ndarray, " arms"],
    count: int,
) -> list[Batch]:
    streams = [RowStream(text, arms, settings, row) for row in range(settings.rows)]
    for stream in streams:
        stream.set_mixture(probabilities)
    return [
        pack_rows(
            [stream.next_row() for stream in streams],
            settings.length,
            settings.spacing,
            num_arms=len(arms),
        )
        for _ in range(count)
    ]


_MAX_CLOSE_ATTEMPTS = 64

StreamStates = Int64[np.ndarray, "rows state"]


class BatchWithState(NamedTuple):
    """A batch, and the states of its rows' streams after it.

    Each batch carries its states. So a checkpoint saves the states after the last trained batch, however
    many batches were made ahead and by however many workers.

    Attributes:
        batch: the packed rows, on the host.
        stream_states: the state of each row's stream before the next batch.
    """

    batch: Batch
    stream_states: StreamStates


def initial_stream_states(text: RowText, arms: Sequence[Arm], settings: RowSettings) -> StreamStates:
    """Return the states of all row streams before their first examples."""
    state = StreamLayout.of(Corpora.of(text).names, arms, settings.lookahead).initial()
    return np.tile(state, (settings.rows, 1))


class RowsDataset(grain.IterDataset):
    """A grain dataset of batches of some rows of the global batch, each a `BatchWithState`.

    In each worker, grain calls `set_slice`, which keeps one block of the rows.

    Attributes:
        rows: the numbers of the rows within the global batch.
    """

    rows: Sequence[int]


class RowStreams(RowsDataset):
    """A grain dataset of batches of some rows of the global batch, starting at `first_step`.

    The batch of step s is made under the mixture of decision `schedule.governing(s)`; the dataset waits
    until that mixture is published.
    """

    def __init__(
        self,
        text: RowText,
        arms: tuple[Arm, ...],
        settings: RowSettings,
        mixtures: MixtureHistory,
        *,
        first_step: int,
        schedule: DecisionSchedule,
        stream_states: StreamStates | None = None,
        rows: Sequence[int] | None = None,
    ):
        """Set up the streams of the given rows, each from its state.

        Args:
            text: the training split, of one corpus or several.
            arms: the arms, in the order of the mixture.
            settings: the settings that all rows share.
            mixtures: the mixture of each decision.
            first_step: the 0-based step of the first batch.
            schedule: the decision that governs each step.
            stream_states: the state of each row's stream before the first batch; None: the initial states.
            rows: the row number of each of `stream_states`; None for 0, 1, 2, ...
        """
        super().__init__()
        self.text, self.arms, self.settings, self.mixtures = text, arms, settings, mixtures
        self.first_step, self.schedule = first_step, schedule
        if stream_states is None:
            stream_states = initial_stream_states(text, arms, settings)
        self.stream_states = stream_states
        self.rows = list(range(len(stream_states)) if rows is None else rows)

    def set_slice(self, sl: slice, sequential_slice: bool = False) -> None:
        """Keep one block of rows; grain calls this in worker `sl.start` of `sl.step`."""
        del sequential_slice
        worker, workers = sl.start or 0, sl.step or 1
        block = len(self.rows) // workers
        own = slice(worker * block, (worker + 1) * block)
        self.rows, self.stream_states = self.rows[own], self.stream_states[own]

    def __iter__(self) -> "RowStreamsIterator":
        return RowStreamsIterator(self)


class RowStreamsIterator(grain.DatasetIterator):
    """The iterator of `RowStreams`; its state is the step and the stream states."""

    def __init__(self, dataset: RowStreams):
        super().__init__()
        self._dataset = dataset
        self._restore(dataset.first_step, dataset.stream_states)

    def __next__(self) -> BatchWithState:
        dataset = self._dataset
        decision = dataset.schedule.governing(self._step)
        if decision != self._decision:
            try:
                mixture = dataset.mixtures.wait_for(decision)
            except HistoryClosed:
                raise StopIteration from None
            for stream in self._streams:
                stream.set_mixture(mixture)
            self._decision = decision
        rows = [stream.next_row() for stream in self._streams]
        settings, num_arms = dataset.settings, len(dataset.arms)
        batch = pack_rows(rows, settings.length, settings.spacing, num_arms=num_arms)
        self._step += 1
        return BatchWithState(batch, self._stream_states())

    def get_state(self) -> dict[str, Any]:
        """Return the step and the stream states; grain calls this after every batch."""
        return {"step": self._step, "stream_states": self._stream_states()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from a state that `get_state` returned."""
        self._restore(state["step"], state["stream_states"])

    def _stream_states(self) -> StreamStates:
        return np.stack([stream.state() for stream in self._streams])

    def _restore(self, step: int, stream_states: StreamStates) -> None:
        dataset = self._dataset
        self._step, self._decision = step, -1
        self._streams = [
            RowStream(dataset.text, dataset.arms, dataset.settings, row, state)
            for row, state in zip(dataset.rows, stream_states, strict=True)
        ]


def prefetch_batches(streams: RowsDataset, *, workers: int, prefetch: int) -> grain.IterDataset:
    """Make batches ahead: in `workers` processes, each with a block of the rows, or in a thread if 0.

    The batches are the same for any number of workers. Close the mixture history of `RowStreams` before you
    close an iterator of this dataset: threads and processes may be waiting for a mixture.

    Args:
        streams: the dataset of all rows that this process makes.
        workers: the number of processes; a divisor of the number of rows, or 0.
        prefetch: the number of batches to make ahead, per worker if there are workers.

    Raises:
        ValueError: the rows cannot be divided evenly among the workers.
    """
    if not workers:
        return ThreadPrefetchIterDataset(streams, prefetch_buffer_size=prefetch)
    rows = len(streams.rows)
    if rows % workers:
        raise ValueError(f"workers: found {workers} for {rows} rows; allowed: 0 or a divisor of {rows}")
    if not flags.FLAGS.is_parsed():
        # Grain reads its worker settings from absl flags, even if the program parses none.
        flags.FLAGS.mark_as_parsed()
    options = grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=prefetch)
    blocks = streams.mp_prefetch(options, worker_init_fn=_tie_worker_to_parent)
    # A remainder consists of batches that some workers made before the history was closed.
    return blocks.batch(workers, drop_remainder=True, batch_fn=concatenate_rows)


def close_prefetched(batches: grain.DatasetIterator) -> None:
    """Stop all workers of an iterator of `prefetch_batches`.

    If a worker fails, a thread of grain stops it too. `close` then raises AttributeError at a process that
    is already gone, before it has stopped the others. Each further call gets past one such process.
    """
    for _ in range(_MAX_CLOSE_ATTEMPTS):
        try:
            batches.close()
        except AttributeError:
            continue
        return
    batches.close()


def _tie_worker_to_parent(worker: int, workers: int) -> None:
    """Ignore the signals that the parent handles by stopping its workers; exit when the parent is gone."""
    del worker, workers
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def concatenate_rows(parts: Sequence[BatchWithState]) -> BatchWithState:
    """Concatenate the rows of all `parts` into one batch, in order."""
    return BatchWithState(
        Batch(*(np.concatenate(fields) for fields in zip(*(part.batch for part in parts), strict=True))),
        np.concatenate([part.stream_states for part in parts]),
    )
