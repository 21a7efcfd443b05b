"""A hook of the engine that validates every arm and takes the bandit's decision."""

from collections.abc import Iterator, Sequence
from functools import partial, reduce

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from jaxtyping import PyTree

from birdie_jax.array_types import ArmVector, Key
from birdie_jax.bandit import BanditState, find_policy, observe, propose
from birdie_jax.batch import Batch
from birdie_jax.batching import split_into_chunks, validation_batches
from birdie_jax.config import corpora_of
from birdie_jax.engine.mesh import replicated_context
from birdie_jax.engine.protocols import HookCall, HookResult
from birdie_jax.engine.state import TrainState
from birdie_jax.metric_names import EARNED_REWARD, PREDICTED_REWARD, arm_metric, corpus_metric
from birdie_jax.pretraining.gradient_gains import GradientGains, Measure
from birdie_jax.pretraining.language_model_step import ArmSums, arm_sums
from birdie_jax.pretraining.mixture_batches import MixtureBatches
from birdie_jax.resolve import ResolvedRun, corpus_names, create_bandit
from birdie_jax.text.corpora import RowText

# The name of the bandit's section of the train state.
SECTION = "bandit"


class _StopError(Exception):
    """The run must stop before all arms are measured."""


class ArmValidation:
    """Measures every arm on its fixed rows, updates the bandit, and publishes the next mixture.

    Attributes:
        name: the name of the bandit's section of the train state.
        growing: the arrays of the section with one row per decision.
    """

    name = SECTION
    growing = ("losses", "actions", "rewards")

    def __init__(self, run: ResolvedRun, text: RowText, batches: MixtureBatches):
        """Make the validation rows of every arm.

        Args:
            run: the run.
            text: the validation split.
            batches: the training batches, which use the mixtures published here.

        Raises:
            DataError: no example of an arm can be made from the validation text.
        """
        config, mixture, rows = run.config, run.mixture, run.rows
        self._observed: int | None = None
        self._config, self._mixture, self._batches = config, mixture, batches
        self._chunks = split_into_chunks(
            validation_batches(
                text,
                mixture.arms,
                rows._replace(rows=config.eval.rows),
                config.eval.batches_per_arm,
            ),
            rows.rows // config.train.accumulation_steps,
        )
        measure = partial(arm_sums, run.model, len(mixture.arms), config.train.loss_chunk)
        self._corpora = corpus_names(config)
        self._exceeded: set[str] = set()
        measure = partial(
            measure, max_loss_positions=run.max_loss_positions, num_corpora=len(self._corpora)
        )
        self._measure = jax.jit(measure)
        reads_gains = find_policy(config.bandit.policy).reads_gains
        self._measure_gains = (
            GradientGains(config.optimizer, run.policies, partial(_of_arms, measure, len(mixture.arms)))
            if reads_gains
            else None
        )

    def create_section(self, key: Key) -> BanditState:
        """Return the bandit before its first observation."""
        return create_bandit(self._config, self._mixture, key)

    def resume(self, state: TrainState) -> None:
        """Publish the mixtures of all past decisions, or of all decisions if the mixture never changes."""
        taken = self._batches.schedule.taken_before(int(state.step))
        # A run that was extended has already observed at its former last step.
        if int(state.sections[self.name].count) > taken:
            self._observed = int(state.step)
        past = self._batches.schedule.num_mixtures
        if self._steers:
            # Only the last of these mixtures can be read, so the values of the earlier ones do not matter.
            past = taken
        for _ in range(past):
            self._batches.publish(np.asarray(state.sections[self.name].mixture))

    def is_due(self, step: int, num_steps: int) -> bool:
        """Return whether to measure every arm at `step`: at each decision, and at the end."""
        return self._batches.schedule.is_due(step) or step == num_steps

    def run(self, state: TrainState, call: HookCall) -> HookResult | None:
        """Measure every arm, update the bandit and, if steps follow, take a decision."""
        before = state.sections[self.name]
        try:
            parts = [self._measure(state.params, batch) for batch in self._rows(call)]
            sums = reduce(partial(jax.tree.map, jnp.add), parts)
            gains = None
            if self._measure_gains:
                rows = partial(self._rows, call)
                tokens = sums.tokens[: len(self._mixture.arms)]
                gains = self._measure_gains(state, rows, tokens, before.class_scale)
        except _StopError:
            return None
        arms = len(self._mixture.arms)
        whole = sums.loss / sums.tokens, sums.correct / sums.tokens
        losses, accuracies = (values[:arms] for values in whole)
        predicted: dict[str, float] = {}
        with replicated_context():
            bandit = before
            if call.step != self._observed:
                bandit = observe(before, losses, accuracies, gains)
            if not call.is_last:
                bandit = propose(bandit)
                if predict := find_policy(self._config.bandit.policy).predict:
                    predicted[PREDICTED_REWARD] = float(predict(bandit))
        if not call.is_last and self._steers:
            self._batches.publish(np.asarray(bandit.mixture))
        scalars = _scalars(self._mixture.names, bandit, losses, accuracies) | predicted
        scalars |= self._of_corpora(*jax.device_get([values[arms:] for values in whole]))
        if call.step % self._batches.schedule.every_steps:
            # Not a decision step: if the run is extended, no decision is taken here. Keep the old bandit.
            return HookResult(state, scalars)
        return HookResult(state.with_section(self.name, bandit), scalars)

    def _rows(self, call: HookCall, purpose: str = "") -> Iterator[Batch]:
        """Yield the validation rows in parts; raise `_StopError` if the run must stop."""
        for number, chunk in enumerate(self._chunks):
            call.heartbeat(f"{purpose and purpose + ', '}part {number + 1} of {len(self._chunks)}")
            yield self._batches.put_replicated(chunk)
            if call.should_stop():
                raise _StopError

    def close(self) -> None:
        """Do nothing: the bandit's state is in the train state."""

    def _of_corpora(self, losses: np.ndarray, accuracies: np.ndarray) -> dict[str, float]:
        """Return the scalars of each corpus, and the epochs that the first row has read of it.

        Warn once of a corpus that was read more often than its `max_epochs`.
        """
        if not self._corpora:
            return {}
        scalars = {}
        epochs = self._batches.epochs()
        for number, (name, corpus) in enumerate(corpora_of(self._config.data).items()):
            scalars[corpus_metric(name, "epochs")] = epochs[number]
            if 0 < corpus.max_epochs < epochs[number] and name not in self._exceeded:
                self._exceeded.add(name)
                logging.warning(
                    "config.data.corpora.%s.max_epochs: the run has read this corpus %.3g times; "
                    "allowed: %g. The run continues.",
                    *(name, epochs[number], corpus.max_epochs),
                )
            # The validation rows may contain no text of a corpus.
            if np.isfinite(accuracies[number]):
                scalars[corpus_metric(name, "validation_loss")] = float(losses[number])
                scalars[corpus_metric(name, "validation_accuracy")] = float(accuracies[number])
        return scalars

    @property
    def _steers(self) -> bool:
        """Whether the mixture changes during the run."""
        return find_policy(self._config.bandit.policy).changes_mixture


def _of_arms(measure: Measure, num_arms: int, params: PyTree, batch: Batch) -> ArmSums:
    """Return the sums of the arms alone."""
    return ArmSums(*(values[:num_arms] for values in measure(params, batch)))


def _scalars(
    names: Sequence[str], bandit: BanditState, losses: ArmVector, accuracies: ArmVector
) -> dict[str, float]:
    """Return the measured scalars, the new mixture, and the rewards of the previous mixture."""
    bandit, losses, accuracies = jax.device_get((bandit, losses, accuracies))
    scalars = {}
    for arm, name in enumerate(names):
        scalars[arm_metric(name, "validation_loss")] = float(losses[arm])
        scalars[arm_metric(name, "validation_accuracy")] = float(accuracies[arm])
        scalars[arm_metric(name, "probability")] = float(bandit.mixture[arm])
        if bandit.count > 1:
            scalars[arm_metric(name, "reward")] = float(bandit.rewards[bandit.count - 2][arm])
    if bandit.count > 1:
        scalars[EARNED_REWARD] = float(np.sum(bandit.rewards[bandit.count - 2] * bandit.class_scale))
    return scalars
