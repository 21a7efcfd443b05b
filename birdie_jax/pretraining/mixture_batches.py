"""Packed batches under the bandit's mixtures, as the engine's `Batches`."""

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
    """Batches of packed rows; batch s is made under the mixture of the decision that governs it.

    Attributes:
        identity: the hash of the text; a resumed run compares it.
        history: the probabilities of drawing each arm, by decision; makers of batches wait for them.
        schedule: the decision that governs each step.
    """

    def __init__(self, run: ResolvedRun, shares: MixtureShares, text: RowText):
        """Prepare to make the rows that this process's devices hold a part of.

        Args:
            run: the run.
            shares: what the probabilities of its mixtures are shares of.
            text: the training split.

        Raises:
            ConfigError: they cannot be divided among the workers that make them.
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
        """Make the batches of the next decision under `mixture`, whatever it has shares of."""
        probabilities = self._shares.sampling(mixture)
        if not (np.isfinite(probabilities).all() and probabilities.sum() > 0):
            policy = self._config.bandit.policy
            raise TrainingDiverged(
                f"config.bandit.policy: {policy!r} returned an invalid mixture: {mixture}"
            )
        self.history.publish(probabilities)

    def first_position(self) -> PyTree[np.ndarray]:
        """Return the position from which nothing was drawn."""
        return {ROW_STREAMS: initial_stream_states(self._text, self._mixture.arms, self._rows)}

    def restore(self, position: PyTree[np.ndarray], state: TrainState) -> None:
        """Start the makers of batches at a position, for the step after `state.step`."""
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
        """Return how often the first row of this process has gone through each corpus."""
        if self._last_states is None:
            raise ValueError("mixture batches: not started; call restore first")
        texts, rows = Corpora.of(self._text), self._rows
        layout = StreamLayout.of(texts.names, self._mixture.arms, rows.lookahead)
        return layout.epochs(self._last_states[0], rows.rows, [len(text) for text in texts.texts])

    def gather(self, position: StreamStates) -> PyTree[np.ndarray]:
        """Return the stream states of the rows of all processes."""
        return {ROW_STREAMS: self._local.gather(position)}

    def put_replicated(self, batch: Batch) -> PyTree[jax.Array]:
        """Return a batch on the devices that every process has all of on the host."""
        return self._local.put_replicated(batch)

    def close(self) -> None:
        """Stop the makers of batches."""
        # First the history: makers of batches may be waiting for a mixture that will not come.
        self.history.close()
        if self._made is not None:
            close_prefetched(self._made)
