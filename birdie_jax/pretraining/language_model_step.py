"""The train step of a causal or prefix language model, with sums of the loss by arm."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree, Shaped

from birdie_jax.array_types import ArmVector, Key, RowKeys, TokenIds, TokenMask
from birdie_jax.batch import Batch
from birdie_jax.config import Config
from birdie_jax.engine import LossFunction, ShardedStep, StepTotals, make_step
from birdie_jax.engine.bad_steps import bad_step_rule
from birdie_jax.engine.layer_norms import layer_norms, layer_squares
from birdie_jax.engine.mesh import state_sharding
from birdie_jax.engine.sharded_step import Sections, Summarise
from birdie_jax.metric_names import arm_metric, corpus_metric
from birdie_jax.models.language_model import LanguageModel
from birdie_jax.models.layout import batch_layout
from birdie_jax.models.loss_positions import find_loss_positions, gathered_shape
from birdie_jax.models.token_losses import token_losses
from birdie_jax.optimizers import learning_rate_schedule, optimizer_of_run
from birdie_jax.resolve import ResolvedRun, corpus_names


class ArmSums(NamedTuple):
    """Sums over the target tokens of each arm, then of each corpus if there are several.

    Attributes:
        loss: the summed cross-entropy, in nats.
        correct: the number of tokens whose label has the highest score.
        tokens: the number of target tokens.
    """

    loss: ArmVector
    correct: ArmVector
    tokens: ArmVector


class ArmCounts(NamedTuple):
    """Counts of a batch's rows by arm, then by corpus if there are several.

    Attributes:
        examples: the number of examples.
        positions: the number of their positions, context and target.
    """

    examples: ArmVector
    positions: ArmVector


def make_language_model_step(
    run: ResolvedRun, sections: Sections, *, summarise: Summarise | None = None
) -> ShardedStep:
    """Return the train step of a run.

    Args:
        run: the run; its devices need not be attached until the step is called.
        sections: the functions that create the sections of the hooks, by name.
        summarise: the function from the sums to the logged scalars; None for that of pre-training, which
            logs scalars of all arms together and of each.
    """
    config, model, arms = run.config, run.model, run.mixture.names
    corpora = corpus_names(config)

    def init_params(key: Key) -> PyTree[jax.Array]:
        one = jnp.zeros((1, config.batching.length), jnp.int32)
        return model.init(key, Batch(one, one, one > 0, one, one, one > 0, one))["params"]

    return make_step(
        init_params,
        language_model_loss(
            model,
            len(arms),
            config.train.loss_chunk,
            run.max_loss_positions,
            num_corpora=len(corpora),
        ),
        optimizer_of_run(config, run.policies),
        run.mesh,
        seed=config.seed,
        sections=sections,
        summarise=summarise or partial(_summarise, config, arms, corpora),
        accumulation_steps=config.train.accumulation_steps,
        rule=bad_step_rule(config.train),
        sums_of_update=layer_squares(run.policies) if config.train.layer_norms_every_steps else None,
        param_shardings=partial(state_sharding, run.mesh, policies=run.policies),
    )


def language_model_loss(
    model: LanguageModel,
    num_arms: int,
    loss_chunk: int,
    max_loss_positions: int | None = None,
    *,
    num_corpora: int = 0,
) -> LossFunction:
    """Return the mean cross-entropy over all target tokens of a batch, with sums by arm and corpus.

    Args:
        model: the language model.
        num_arms: the number of arms of the mixture.
        loss_chunk: the number of sequence positions whose logits are in memory at a time.
        max_loss_positions: the maximum number of positions with loss in a row; None: all positions.
        num_corpora: the number of corpora if there are several, else 0.
    """

    def sums(params, batch, row_keys=None):
        by_arm = arm_sums(
            *(model, num_arms, loss_chunk, params, batch, row_keys, max_loss_positions),
            num_corpora=num_corpora,
        )
        counts = counts_by_arm(batch.positions, batch.arm_ids, num_arms, num_corpora=num_corpora)
        return jnp.sum(by_arm.loss[:num_arms]), by_arm._asdict() | counts._asdict()

    def tokens(batch):
        return jnp.sum(batch.segment_ids > 0).astype(jnp.float32)

    return LossFunction(sums, lambda batch: jnp.sum(batch.loss_mask), tokens, takes_row_keys=model.drops)


def arm_sums(  # noqa: PLR0917
    model: LanguageModel,
    num_arms: int,
    loss_chunk: int,
    params: PyTree[jax.Array],
    batch: Batch,
    row_keys: RowKeys | None = None,
    max_loss_positions: int | None = None,
    *,
    num_corpora: int = 0,
) -> ArmSums:
    """Return the loss, correct greedy predictions and target tokens of each arm, then of each corpus.

    Training passes the keys of dropout as `row_keys`; validation passes None. If few positions of a row can
    have loss, only these positions go through the head; the sums are the same. If a row has more of them
    than `max_loss_positions`, the loss is NaN, so no loss is dropped silently.
    """
    x, _ = model.apply(
        {"params": params}, batch.tokens, batch_layout(batch), row_keys=row_keys, method="encode"
    )
    targets, loss_mask = cast(TokenIds, batch.targets), cast(TokenMask, batch.loss_mask)
    arm_ids = cast(TokenIds, batch.arm_ids)
    shape = gathered_shape(max_loss_positions, loss_mask.shape[1], loss_chunk)
    overflow = None
    if shape is not None:
        loss_chunk = shape.chunk
        positions = find_loss_positions(loss_mask, shape.capacity)
        x, loss_mask, overflow = positions.of_activations(x), positions.given, positions.overflow
        targets, arm_ids = positions.of_tokens(targets), positions.of_tokens(arm_ids)
    hidden = cast(Array, model.apply({"params": params}, x, method="transform"))
    table = cast(Array, model.apply({"params": params}, method="head_table"))
    bias = cast(Array | None, model.apply({"params": params}, method="head_bias"))
    losses, correct = token_losses(
        hidden, table, targets, loss_mask, loss_chunk, bias=bias, soft_cap=model.config.logit_soft_cap
    )
    if overflow is not None:
        losses = jnp.where(overflow[:, None], jnp.nan, losses)
    return sums_by_arm(losses, correct, loss_mask, arm_ids, num_arms, num_corpora=num_corpora)


def sums_by_arm(
    losses: Float[Array, "rows length"],
    correct: Bool[Array, "rows length"],
    loss_mask: TokenMask,
    arm_ids: Int[Array, "rows length"],
    num_arms: int,
    *,
    num_corpora: int = 0,
) -> ArmSums:
    """Sum over the tokens of each arm, then of each corpus if there are several.

    The sums are reductions, not a scatter, so they are deterministic on every platform. The bandit's
    decisions depend on them.
    """
    total = _sum_by_arm(arm_ids, num_arms, num_corpora)
    return ArmSums(total(losses), total(correct), total(loss_mask))


def counts_by_arm(
    positions: Int[Array, "rows length"],
    arm_ids: Int[Array, "rows length"],
    num_arms: int,
    *,
    num_corpora: int = 0,
) -> ArmCounts:
    """Count the examples of each arm, which begin where `positions` is 0, and their positions."""
    total = _sum_by_arm(arm_ids, num_arms, num_corpora)
    return ArmCounts(total(positions == 0), total(jnp.ones_like(positions)))


def _sum_by_arm(
    arm_ids: Int[Array, "rows length"], num_arms: int, num_corpora: int
) -> Callable[[Shaped[Array, "rows length"]], ArmVector]:
    def numbered(ids: Int[Array, "rows length"], count: int) -> Bool[Array, "groups rows length"]:
        return ids[None] == jnp.arange(count)[:, None, None]

    member = numbered(arm_ids, num_arms)
    if num_corpora:
        is_text = arm_ids >= 0
        arms = jnp.where(is_text, arm_ids % num_arms, -1)
        corpora = jnp.where(is_text, arm_ids // num_arms, -1)
        member = jnp.concatenate([numbered(arms, num_arms), numbered(corpora, num_corpora)])
    return lambda values: jnp.sum(jnp.where(member, values[None].astype(jnp.float32), 0.0), axis=(1, 2))


def _summarise(
    config: Config, arms: Sequence[str], corpora: Sequence[str], totals: StepTotals
) -> dict[str, float]:
    """Return the scalars of some steps: of all arms together, of each arm, and of each corpus."""
    loss, correct, tokens = (totals.sums[name] for name in ArmSums._fields)
    examples, covered = (totals.sums[name] for name in ArmCounts._fields)
    of_arms = slice(len(arms))
    total = max(tokens[of_arms].sum(), 1.0)
    positions = totals.num_steps * (config.batching.rows * config.batching.length)
    schedule = learning_rate_schedule(config.optimizer, config.train.num_steps)
    scalars = {
        "loss": loss[of_arms].sum() / total,
        "accuracy": correct[of_arms].sum() / total,
        "padding_share": 1.0 - totals.tokens / positions,
        "learning_rate": schedule(totals.step - 1),
    }
    groups = [partial(arm_metric, name) for name in arms] + [
        partial(corpus_metric, name) for name in corpora
    ]
    for number, metric in enumerate(groups):
        scalars[metric("tokens")] = tokens[number]
        scalars[metric("examples")] = examples[number]
        scalars[metric("positions")] = covered[number]
        if tokens[number]:
            scalars[metric("loss")] = loss[number] / tokens[number]
            scalars[metric("accuracy")] = correct[number] / tokens[number]
    every = config.train.layer_norms_every_steps
    if every and totals.step % every == 0:
        scalars |= layer_norms(totals.sums, totals.taken)
    return {name: float(value) for name, value in scalars.items()}
