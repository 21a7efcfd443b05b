"""The train step of a fine-tuning run, for a language model or a head, compiled once for each shape."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import PyTree

from birdie_jax.batch import Batch
from birdie_jax.config import Config
from birdie_jax.engine import LossFunction, ShardedStep, StepTotals
from birdie_jax.engine.sharded_step import Sections, Summarise
from birdie_jax.engine.state import StepMetrics, TrainState
from birdie_jax.finetuning.distilled_step import TaughtSums, make_distilled_step
from birdie_jax.finetuning.pruned_step import PrunedSums, make_pruned_step
from birdie_jax.finetuning.run_step import make_run_step
from birdie_jax.finetuning.stage_sequence import StageSequence
from birdie_jax.metric_names import PRUNED_LOSS, SURVIVING_SHARE, TEACHER_QUANTITIES, stage_metric
from birdie_jax.models import LanguageModel
from birdie_jax.models.sample_scores import sample_losses
from birdie_jax.models.task_head import head_type
from birdie_jax.optimizers import learning_rate_schedule
from birdie_jax.pretraining.language_model_step import ArmSums, make_language_model_step, sums_by_arm
from birdie_jax.resolve import ResolvedRun

# The metric name of each further sum; its mean over target tokens is logged.
_FURTHER = dict(zip(PrunedSums._fields, (PRUNED_LOSS, SURVIVING_SHARE), strict=True)) | dict(
    zip(TaughtSums._fields, TEACHER_QUANTITIES, strict=True)
)


def make_stage_step(run: ResolvedRun, sections: Sections, *, summarise: Summarise) -> ShardedStep:
    """Return the train step for the batches of a stage, with its head, teacher or pruning, if any.

    Args:
        run: the run, with the batches of the stage.
        sections: the functions that create the sections of the hooks, by name.
        summarise: computes the logged scalars from the sums.
    """
    if run.config.model.head:
        return make_head_step(run, sections, summarise=summarise)
    if run.config.finetune.teacher.from_:
        return make_distilled_step(run, sections, summarise=summarise)
    if run.config.finetune.pruning.max_pruned:
        return make_pruned_step(run, sections, summarise=summarise)
    return make_language_model_step(run, sections, summarise=summarise)


def make_head_step(run: ResolvedRun, sections: Sections, *, summarise: Summarise) -> ShardedStep:
    """Return the train step of a head for the batches of a stage.

    Args:
        run: the run, with its head, and with the batches of the stage.
        sections: the functions that create the sections of the hooks, by name.
        summarise: computes the logged scalars from `ArmSums`, which count samples instead of tokens.
    """
    loss = head_loss(run.model, len(run.mixture.arms), run.max_samples)
    return make_run_step(run, loss, sections, summarise=summarise)


def head_loss(model: LanguageModel, num_stages: int, max_samples: int) -> LossFunction:
    """Return the mean loss over all samples of a batch, with sums by stage.

    Args:
        model: a model with a head.
        num_stages: the number of stages.
        max_samples: the maximum number of samples in a row; a row with more makes the loss NaN.
    """

    def sums(params, batch, row_keys=None):
        found, given, arm_ids = sample_losses(model, max_samples, params, batch, row_keys)
        by_stage = sums_by_arm(found.losses, found.correct > 0, given, arm_ids, num_stages)
        return jnp.sum(by_stage.loss), by_stage._asdict()

    def tokens(batch):
        return jnp.sum(batch.segment_ids > 0).astype(jnp.float32)

    return LossFunction(sums, lambda batch: jnp.sum(batch.loss_mask), tokens, takes_row_keys=model.drops)


@dataclass(frozen=True)
class StagedStep:
    """A `Step` (see engine/protocols.py) for batches of several shapes.

    Attributes:
        first: the step of the first stage, which creates the state.
        by_shape: the step for each shape [rows, length] of a batch.
    """

    first: ShardedStep
    by_shape: Mapping[tuple[int, int], ShardedStep]

    @property
    def mesh(self) -> Mesh:
        """The device mesh of the run."""
        return self.first.mesh

    @property
    def abstract_state(self) -> TrainState:
        """Shapes, types and shardings of the train state."""
        return self.first.abstract_state

    def create_state(self) -> TrainState:
        """Return the state before the first step."""
        return self.first.create_state()

    def create_sections(self) -> dict[str, PyTree]:
        """Return the hooks' sections before the first step."""
        return self.first.create_sections()

    def summarise(self, totals: StepTotals) -> dict[str, float]:
        """Return the scalars to log for some steps, which may span several stages."""
        return self.first.summarise(totals)

    def __call__(self, state: TrainState, batch: Batch) -> tuple[TrainState, StepMetrics]:
        """Take one step."""
        rows, length = batch.tokens.shape
        return self.by_shape[rows, length](state, batch)

    def starting_from(
        self, initial_params: Callable[[PyTree[jax.ShapeDtypeStruct]], Callable[[PyTree], PyTree]]
    ) -> "StagedStep":
        """Return the same step with other initial parameters; see `ShardedStep`."""
        return replace(self, first=self.first.starting_from(initial_params))

    def with_frozen(self, frozen: PyTree[jax.Array]) -> "StagedStep":
        """Return the same step with its frozen arrays; see `ShardedStep`."""
        by_shape = {shape: step.with_frozen(frozen) for shape, step in self.by_shape.items()}
        return replace(self, first=self.first.with_frozen(frozen), by_shape=by_shape)


def make_staged_step(
    runs: Sequence[ResolvedRun], sequence: StageSequence, sections: Sections
) -> StagedStep:
    """Return the train step of a fine-tuning run.

    The loss is the mean over the target tokens of the global batch, or over its samples for a model with a
    head. `finetune.pruning` adds the loss of a pass that drops tokens. `finetune.teacher` adds the losses
    from a teacher.

    Args:
        runs: the run with the batches of each stage; see `resolve_stages`.
        sequence: the stages of the run.
        sections: the functions that create the sections of the hooks, by name.
    """
    summarise = partial(_summarise, runs[0].config, sequence)
    by_shape: dict[tuple[int, int], ShardedStep] = {}
    for run in runs:
        shape = run.rows.rows, run.rows.length
        if shape not in by_shape:
            by_shape[shape] = make_stage_step(run, sections, summarise=summarise)
    return StagedStep(next(iter(by_shape.values())), by_shape)


def _summarise(config: Config, sequence: StageSequence, totals: StepTotals) -> dict[str, float]:
    """Return the scalars of some steps, overall and for each of their stages.

    A head counts samples, and logs accuracy only if an answer is right or wrong. The losses of a pass that
    drops tokens and of a teacher are separate scalars.
    """
    unit = "samples" if config.model.head else "tokens"
    has_accuracy = not config.model.head or head_type(config.model).has_accuracy
    loss, correct, tokens = (totals.sums[name] for name in ArmSums._fields)
    total = max(tokens.sum(), 1.0)
    further = {metric: totals.sums[name] for name, metric in _FURTHER.items() if name in totals.sums}
    positions = sequence.positions(totals.step - totals.num_steps, totals.step)
    schedule = learning_rate_schedule(config.optimizer, sequence.num_steps)
    scalars = {
        "loss": loss.sum() / total,
        **({"accuracy": correct.sum() / total} if has_accuracy else {}),
        "padding_share": 1.0 - totals.tokens / positions,
        "learning_rate": schedule(totals.step - 1),
    }
    scalars |= {metric: sums.sum() / total for metric, sums in further.items()}
    for number, stage in enumerate(sequence.stages):
        if tokens[number]:
            scalars[stage_metric(stage.name, unit)] = tokens[number]
            scalars[stage_metric(stage.name, "loss")] = loss[number] / tokens[number]
            if has_accuracy:
                scalars[stage_metric(stage.name, "accuracy")] = correct[number] / tokens[number]
            for metric, sums in further.items():
                scalars[stage_metric(stage.name, metric)] = sums[number] / tokens[number]
    return {name: float(value) for name, value in scalars.items()}
