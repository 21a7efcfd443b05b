"""Packed batches under the bandit's mixtures; implements the engine's `Batches`."""

import jax
import numpy as np
from jaxtyping import Float, PyTree

from birdie_jax.batch import Batch
from birdie_jax.batching import (
    DecisionSchedule,
    MixtureHistory,
    RowStreams,
    StreamLayout,
    StreamStates,
    close_prefetched,
    initial_stream_states,
    prefetch_batches,
)
from birdie_jax.engine.mesh import LocalRows
from birdie_jax.engine.state import TrainState
from birdie_jax.errors import ConfigError, TrainingDiverged
from birdie_jax.pretraining.mixture_shares import MixtureShares
from birdie_jax.resolve import ResolvedRun
from birdie_jax.text.corpora import Corpora, RowText

# The name of the rows' stream states in the position that a checkpoint saves.
ROW_STREAMS = "row_streams"


class MixtureBatches:
    """Batches of packed rows; each batch is made under the mixture of the decision that governs it.

    Attributes:
        identity: the hash of the text; a resumed run compares it.
        history: the probabilities of drawing each arm, by decision; the makers of batches wait for them.
        schedule: the decision that governs each step.
    """

    def __init__(self, run: ResolvedRun, shares: MixtureShares, text: RowText):
        """Prepare to make the rows that this process's devices need.

        Args:
            run: the run.
            shares: the unit of the mixtures' probabilities.
            text: the training split.

        Raises:
            ConfigError: the rows cannot be divided evenly among the workers.
        """
        config = run.config
        self.schedule = DecisionSchedule(config.bandit.every_steps, config.train.num_steps)
        self.history = MixtureHistory(len(run.mixture.arms), self.schedule.num_mixtures)
        self.identity = Corpora.of(text).sha256
        self._config, self._mixture, self._shares, self._text = config, run.mixture, shares, text
        self._rows = run.rows
        self._local = LocalRows(self._rows.rows, self._rows.length, run.mesh)
        workers = config.batching.workers
        if workers and len(self._local.numbers) % workers:
            raise ConfigError(
                f"config.batching.workers: found {workers}; allowed: 0 or a divisor of "
                f"{len(self._local.numbers)}, the rows that a process makes"
            )
        self._made = None
        self._last_states: StreamStates | None = None

    def publish(self, mixture: Float[np.ndarray, " arms"]) -> None:
        """Publish `mixture` for the batches of the next decision, in the unit of the run's mixtures."""
        probabilities = self._shares.sampling(mixture)
        if not (np.isfinite(probabilities).all() and probabilities.sum() > 0):
            policy = self._config.bandit.policy
            raise TrainingDiverged(
                f"config.bandit.policy: {policy!r} returned an invalid mixture: {mixture}"
            )
        self.history.publish(probabilities)

    def first_position(self) -> PyTree[np.ndarray]:
        """Return the position before the first batch."""
        return {ROW_STREAMS: initial_stream_states(self._text, self._mixture.arms, self._rows)}

    def restore(self, position: PyTree[np.ndarray], state: TrainState) -> None:
        """Start making batches at a position, for the step after `state.step`."""
        self._last_states = self._local.select(position[ROW_STREAMS])
        streams = RowStreams(
            self._text,
            self._mixture.arms,
            self._rows,
            self.history,
            first_step=int(state.step),
            schedule=self.schedule,
            stream_states=self._last_states,
            rows=self._local.numbers,
        )
        batching = self._config.batching
        self._made = iter(prefetch_batches(streams, workers=batching.workers, prefetch=batching.prefetch))

    def __next__(self) -> tuple[Batch, StreamStates]:
        """Return the next global batch on the devices, and the stream states of this process's rows."""
        if self._made is None:
            raise ValueError("mixture batches: not started; call restore first")
        made = next(self._made)
        self._last_states = made.stream_states
        return self._local.put(made.batch), made.stream_states

    def epochs(self) -> list[float]:
        """Return the number of epochs of each corpus that the first row of this process has read."""
        if self._last_states is None:
            raise ValueError("mixture batches: not started; call restore first")
        texts, rows = Corpora.of(self._text), self._rows
        layout = StreamLayout.of(texts.names, self._mixture.arms, rows.lookahead)
        return layout.epochs(self._last_states[0], rows.rows, [len(text) for text in texts.texts])

    def gather(self, position: StreamStates) -> PyTree[np.ndarray]:
        """Return the stream states of the rows of all processes."""
        return {ROW_STREAMS: self._local.gather(position)}

    def put_replicated(self, batch: Batch) -> PyTree[jax.Array]:
        """Return on the devices a batch that every process has in full on the host."""
        return self._local.put_replicated(batch)

    def close(self) -> None:
        """Stop making batches."""
        # Close the history first: makers of batches may be waiting for a mixture that never comes.
        self.history.close()
        if self._made is not None:
            close_prefetched(self._made)
