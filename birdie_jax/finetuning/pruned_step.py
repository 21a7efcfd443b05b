"""The train step of fine-tuning for pruned prompts: the dense loss plus a loss with dropped tokens.

The second loss is the next-token loss on the tokens that the last layer reads. Each predicts the token that
followed it in the sample before pruning (Simba, appendix A.3).
"""

from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from birdie_jax.array_types import ArmVector, RowKeys, TokenIds, TokenMask
from birdie_jax.batch import Batch
from birdie_jax.engine import LossFunction, ShardedStep
from birdie_jax.engine.sharded_step import Sections, Summarise
from birdie_jax.finetuning.run_step import make_run_step
from birdie_jax.models import LanguageModel
from birdie_jax.models.token_losses import token_losses
from birdie_jax.pretraining.language_model_step import language_model_loss, sums_by_arm
from birdie_jax.pruning import PruningSettings, encode_pruned, finetune_settings
from birdie_jax.pruning.samples import TokenNumbers, samples_sum
from birdie_jax.resolve import ResolvedRun

# Separates the shares from dropout, which folds layer numbers into the same keys.
_DRAW_SHARES = 0x7072756E


class PrunedSums(NamedTuple):
    """Sums over the tokens of each arm that remain after the last layer.

    Attributes:
        pruned_loss: the mean cross-entropy of a sample's survivors, in nats, times the number of its target
            tokens, summed over samples; it has the same divisor as the dense loss.
        surviving: the number of target tokens that remain.
    """

    pruned_loss: ArmVector
    surviving: ArmVector


def make_pruned_step(run: ResolvedRun, sections: Sections, *, summarise: Summarise) -> ShardedStep:
    """Return the train step for the batches of a stage, with both losses.

    Args:
        run: the run, with the batches of the stage.
        sections: the functions that create the sections of the hooks, by name.
        summarise: computes the logged scalars from `ArmSums`, `ArmCounts` and `PrunedSums`.
    """
    config, model, pruning = run.config, run.model, run.config.finetune.pruning
    num_stages = len(run.mixture.arms)
    loss = dense_and_pruned_loss(
        model, num_stages, config.train.loss_chunk, finetune_settings(pruning), pruning.max_pruned
    )
    return make_run_step(run, loss, sections, summarise=summarise)


def dense_and_pruned_loss(
    model: LanguageModel, num_arms: int, loss_chunk: int, settings: PruningSettings, max_pruned: float
) -> LossFunction:
    """Return the sum of two mean losses: the dense one, and the loss of a pass that drops tokens.

    Args:
        model: the language model.
        num_arms: the number of arms; each has its own sums.
        loss_chunk: the number of sequence positions with logits in memory at a time.
        settings: the settings of pruning.
        max_pruned: the maximum share of a sample's tokens to drop.
    """
    dense = language_model_loss(model, num_arms, loss_chunk)

    def sums(params, batch, row_keys=None):
        keys = cast(RowKeys, row_keys)
        keep = draw_kept_shares(keys, batch.segment_ids, max_pruned)
        dense_loss, by_arm = dense.sums(params, batch, row_keys if model.drops else None)
        pruned = pruned_sums(model, num_arms, loss_chunk, settings, params, batch, keep, keys)
        return dense_loss + jnp.sum(pruned.pruned_loss), by_arm | pruned._asdict()

    return LossFunction(sums, dense.weight, dense.tokens, takes_row_keys=True)


def draw_kept_shares(row_keys: RowKeys, segment_ids: TokenIds, max_pruned: float) -> TokenNumbers:
    """Return, for each token, the kept share of its sample, uniform on (1 - max_pruned, 1].

    The share is a function of the row's key and of the sample's number in the row.
    """

    def of_row(key: Array, samples: Array) -> Array:
        of_shares = jax.random.fold_in(key, _DRAW_SHARES)
        return jax.vmap(lambda sample: jax.random.uniform(jax.random.fold_in(of_shares, sample)))(samples)

    return 1 - max_pruned * jax.vmap(of_row)(row_keys, segment_ids)


def pruned_sums(  # noqa: PLR0917
    model: LanguageModel,
    num_arms: int,
    loss_chunk: int,
    settings: PruningSettings,
    params: PyTree,
    batch: Batch,
    keep: TokenNumbers,
    row_keys: RowKeys,
) -> PrunedSums:
    """Return the loss of the tokens that remain after the last layer, by arm.

    Each sample has the same weight as in the dense loss, for any number of remaining tokens.
    """
    hidden, tokens = encode_pruned(model, params, batch, keep, row_keys, settings)

    def left(values: Array) -> Array:
        return jnp.take_along_axis(values, tokens.index, axis=1)

    loss_mask = cast(TokenMask, batch.loss_mask)
    given = left(loss_mask) & (tokens.segment_ids > 0)
    table = cast(Array, model.apply({"params": params}, method="head_table"))
    bias = cast(Array | None, model.apply({"params": params}, method="head_bias"))
    targets = left(cast(TokenIds, batch.targets))
    losses, correct = token_losses(
        hidden, table, targets, given, loss_chunk, bias=bias, soft_cap=model.config.logit_soft_cap
    )
    of_sample = left(samples_sum(loss_mask, cast(TokenIds, batch.segment_ids)))
    survivors = jnp.maximum(samples_sum(given, tokens.segment_ids), 1)
    losses = losses * (of_sample / survivors)
    sums = sums_by_arm(losses, correct, given, left(cast(TokenIds, batch.arm_ids)), num_arms)
    return PrunedSums(sums.loss, sums.tokens)
