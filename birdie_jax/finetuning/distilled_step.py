"""The train step of distillation: cross-entropy of the labels, and losses from a teacher on the same rows.

The loss of the scores follows Hinton et al. 2015 (arXiv 1503.02531, section 2): the divergence between
softened distributions, times the square of the temperature. The loss of the hidden states compares cosines
between pairs of tokens, as Park et al. 2019 (arXiv 1904.05068) compare pairs of examples. It needs no
further parameters, so teachers may have any width. The choice of pairs is this project's.
"""

from functools import partial
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from birdie_jax.array_types import Activations, ArmVector, TokenIds, TokenMask
from birdie_jax.batch import Batch
from birdie_jax.config_sections import FinetuneTeacherConfig
from birdie_jax.engine import LossFunction, ShardedStep
from birdie_jax.engine.sharded_step import Sections, Summarise
from birdie_jax.finetuning.run_step import make_run_step
from birdie_jax.finetuning.teacher import find_teacher
from birdie_jax.models import LanguageModel
from birdie_jax.models.language_model import token_scores
from birdie_jax.models.layout import batch_layout
from birdie_jax.pretraining.language_model_step import counts_by_arm, sums_by_arm
from birdie_jax.resolve import ResolvedRun

# The distances between the tokens of a pair.
_DISTANCES = (1, 2, 4, 8, 16, 32, 64, 128)

TokenLosses = Float[Array, "rows length"]


class TaughtSums(NamedTuple):
    """Sums over the target tokens of each stage.

    Attributes:
        teacher_loss: the cross-entropy of the teacher, in nats.
        divergence: the divergence of the student's softened distribution from the teacher's, in nats.
        relations: the mean squared difference of the cosines between hidden states.
    """

    teacher_loss: ArmVector
    divergence: ArmVector
    relations: ArmVector


class Scorer(NamedTuple):
    """Hidden states and the head that computes token scores from them.

    Attributes:
        hidden: the hidden states of a batch.
        table: the weights of the head.
        bias: the term added to the score of each token; None: no bias.
        soft_cap: the bound of the scores; 0: none.
    """

    hidden: Activations
    table: Float[Array, "vocab features"]
    bias: Float[Array, " vocab"] | None
    soft_cap: float

    @classmethod
    def of(cls, model: LanguageModel, params: PyTree, hidden: Activations) -> "Scorer":
        """Return the scorer of the hidden states of a model."""
        table = cast(Array, model.apply({"params": params}, method="head_table"))
        bias = cast(Array | None, model.apply({"params": params}, method="head_bias"))
        return cls(hidden, table.astype(hidden.dtype), bias, model.config.logit_soft_cap)

    def scores(self, hidden: Activations) -> Float[Array, "rows length vocab"]:
        """Return the float32 token scores of `hidden`."""
        return token_scores(hidden, self.table, self.bias, self.soft_cap)


def make_distilled_step(run: ResolvedRun, sections: Sections, *, summarise: Summarise) -> ShardedStep:
    """Return the train step for the batches of a stage; pass the teacher's parameters to `with_frozen`.

    Args:
        run: the run, with the batches of the stage.
        sections: the functions that create the sections of the hooks, by name.
        summarise: computes the logged scalars from `ArmSums`, `ArmCounts` and `TaughtSums`.

    Raises:
        ConfigError: see `find_teacher`.
    """
    config, model = run.config, run.model
    teacher = find_teacher(run)
    loss = partial(
        distilled_loss,
        *(model, teacher.model, len(run.mixture.arms), config.train.loss_chunk, config.finetune.teacher),
    )
    return make_run_step(run, loss, sections, summarise=summarise, frozen=teacher.params)


def distilled_loss(  # noqa: PLR0917
    model: LanguageModel,
    teacher: LanguageModel,
    num_arms: int,
    loss_chunk: int,
    settings: FinetuneTeacherConfig,
    teacher_params: PyTree[jax.Array],
) -> LossFunction:
    """Return the loss: the mean over target tokens of the losses from the labels and from the teacher.

    Args:
        model: the student.
        teacher: the teacher.
        num_arms: the number of stages; each has its own sums.
        loss_chunk: the number of sequence positions with scores in memory at a time.
        settings: the weights of the losses.
        teacher_params: the parameters of the teacher.
    """

    def sums(params, batch, row_keys=None):
        layout = batch_layout(batch)
        hidden, _ = model.apply(
            {"params": params}, batch.tokens, layout, row_keys=row_keys, method="hidden"
        )
        theirs, _ = teacher.apply({"params": teacher_params}, batch.tokens, layout, method="hidden")
        found = taught_losses(
            Scorer.of(model, params, hidden),
            Scorer.of(teacher, teacher_params, theirs),
            batch,
            loss_chunk,
            settings.temperature,
        )
        relations = jnp.zeros_like(found.loss)
        if settings.hidden:
            relations = relation_losses(hidden, theirs, batch)
        share = settings.logits
        loss = (1 - share) * found.loss + share * settings.temperature**2 * found.divergence
        mask, arm_ids = batch.loss_mask, batch.arm_ids
        by_arm = sums_by_arm(found.loss, found.correct, mask, arm_ids, num_arms)
        taught = (
            sums_by_arm(each, mask, mask, arm_ids, num_arms).loss
            for each in (found.teacher_loss, found.divergence, relations)
        )
        counts = counts_by_arm(batch.positions, arm_ids, num_arms)
        named = by_arm._asdict() | counts._asdict() | TaughtSums(*taught)._asdict()
        return jnp.sum(loss + settings.hidden * relations), named

    def tokens(batch):
        return jnp.sum(batch.segment_ids > 0).astype(jnp.float32)

    return LossFunction(sums, lambda batch: jnp.sum(batch.loss_mask), tokens, takes_row_keys=model.drops)


class TaughtLosses(NamedTuple):
    """Losses of tokens; 0 for tokens without a target.

    Attributes:
        loss: the student's cross-entropy, in nats.
        correct: whether the student's greedy choice is the label.
        teacher_loss: the teacher's cross-entropy.
        divergence: KL(teacher || student) of the softened distributions over the tokens that the student
            can predict, in nats.
    """

    loss: TokenLosses
    correct: Bool[Array, "rows length"]
    teacher_loss: TokenLosses
    divergence: TokenLosses


def taught_losses(
    student: Scorer, teacher: Scorer, batch: Batch, chunk: int, temperature: float
) -> TaughtLosses:
    """Return the losses of each token; compute the scores of `chunk` positions at a time.

    The backward pass computes the scores again. No gradient reaches the teacher.
    """
    targets, mask = cast(TokenIds, batch.targets), cast(TokenMask, batch.loss_mask)
    rows, length = targets.shape
    chunk = min(chunk, length)

    def in_chunks(x: Array) -> Array:
        return jnp.moveaxis(x.reshape(rows, length // chunk, chunk, *x.shape[2:]), 1, 0)

    @jax.checkpoint
    def one_chunk(hidden, theirs, targets):
        scores = student.scores(hidden)
        goal = jax.lax.stop_gradient(teacher.scores(theirs))

        def loss(scores):
            label = jnp.take_along_axis(scores, targets[..., None], axis=-1)[..., 0]
            return jax.nn.logsumexp(scores, axis=-1) - label

        # A token that the student bars would make the divergence as large as the bias that bars it.
        shared = goal if student.bias is None else goal + student.bias
        log_goal, log_own = (jax.nn.log_softmax(each / temperature) for each in (shared, scores))
        divergence = jnp.sum(jnp.exp(log_goal) * (log_goal - log_own), axis=-1)
        return loss(scores), jnp.argmax(scores, axis=-1) == targets, loss(goal), divergence

    chunks = in_chunks(student.hidden), in_chunks(teacher.hidden), in_chunks(targets)
    _, found = jax.lax.scan(lambda carry, each: (carry, one_chunk(*each)), None, chunks)
    whole = TaughtLosses(*(jnp.moveaxis(each, 0, 1).reshape(rows, length) for each in found))
    return TaughtLosses(*(jnp.where(mask, each, jnp.zeros_like(each)) for each in whole))


def relation_losses(
    hidden: Activations, teacher_hidden: Float[Array, "rows length teacher_features"], batch: Batch
) -> TokenLosses:
    """Return, for each target, the mean squared difference of its cosines to earlier targets of its sample.

    The earlier targets are 1, 2, 4, ... 128 positions before it. A target without earlier targets gets 0.
    """
    segment_ids, mask = cast(TokenIds, batch.segment_ids), cast(TokenMask, batch.loss_mask)
    own, theirs = (
        _normalised(each.astype(jnp.float32)) for each in (hidden, jax.lax.stop_gradient(teacher_hidden))
    )
    total, pairs = jnp.zeros(mask.shape), jnp.zeros(mask.shape)
    for distance in _DISTANCES:
        if distance >= mask.shape[1]:
            break
        both = mask[:, distance:] & mask[:, :-distance]
        both &= segment_ids[:, distance:] == segment_ids[:, :-distance]
        cosines = (jnp.sum(each[:, distance:] * each[:, :-distance], axis=-1) for each in (own, theirs))
        ours, goal = cosines
        total = total.at[:, distance:].add(jnp.where(both, (ours - goal) ** 2, 0.0))
        pairs = pairs.at[:, distance:].add(both)
    return total / jnp.maximum(pairs, 1)


def _normalised(hidden: Float[Array, "rows length features"]) -> Float[Array, "rows length features"]:
    return hidden * jax.lax.rsqrt(jnp.sum(hidden**2, axis=-1, keepdims=True) + 1e-12)
