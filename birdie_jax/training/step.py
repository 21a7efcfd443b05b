"""The train step and the validation step: pure functions of (state, batch)."""

from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import optax

from birdie_jax.array_types import Scalar
from birdie_jax.batch import Batch
from birdie_jax.models.language_model import LanguageModel
from birdie_jax.models.layout import packed_layout
from birdie_jax.training.loss import ArmSums, sums_by_arm, token_losses


@flax.struct.dataclass
class TrainState:
    """Everything on the device that a run carries from step to step, and that a checkpoint holds.

    Attributes:
        step: train steps done, int32.
        params: the model's parameters, float32.
        optimizer: the optimizer's state.
        bandit: history, critic, its optimizer, random key and the mixture in force.
    """

    step: Any
    params: Any
    optimizer: Any
    bandit: Any


class StepMetrics(NamedTuple):
    """What a train step tells, all on the device until it is read.

    Attributes:
        loss: mean cross-entropy over the batch's target tokens, in nats.
        grad_norm: global norm of the gradient before clipping.
        arms: sums over the target tokens of each arm.
        sample_tokens: context and target positions that are not padding.
    """

    loss: Scalar
    grad_norm: Scalar
    arms: ArmSums
    sample_tokens: Scalar


class StepSettings(NamedTuple):
    """Static settings of the steps.

    Attributes:
        num_arms: arms of the mixture.
        accumulation_steps: parts in which the gradient of a batch is computed.
        loss_chunk: sequence positions whose logits are held at a time.
    """

    num_arms: int
    accumulation_steps: int
    loss_chunk: int


def train_step(
    model: LanguageModel,
    optimizer: optax.GradientTransformation,
    settings: StepSettings,
    state: TrainState,
    batch: Batch,
) -> tuple[TrainState, StepMetrics]:
    """Take one optimizer step on the mean loss over all target tokens of `batch`.

    The mean is over the whole batch however many parts its gradient is accumulated in, so that
    `accumulation_steps` changes memory and rounding only.
    """
    total = jnp.maximum(jnp.sum(batch.loss_mask), 1).astype(jnp.float32)

    def loss_of_part(params, part):
        sums = arm_sums(model, settings, params, part)
        return jnp.sum(sums.loss) / total, sums

    gradient = jax.value_and_grad(loss_of_part, has_aux=True)
    if settings.accumulation_steps == 1:
        (loss, sums), grads = gradient(state.params, batch)
    else:

        def add_part(carried, part):
            (loss, sums), grads = gradient(state.params, part)
            return jax.tree.map(jnp.add, carried, (loss, sums, grads)), None

        zero = jnp.zeros((), jnp.float32)
        no_sums = ArmSums(*(jnp.zeros(settings.num_arms, jnp.float32),) * 3)
        start = (zero, no_sums, jax.tree.map(jnp.zeros_like, state.params))
        (loss, sums, grads), _ = jax.lax.scan(add_part, start, _in_parts(batch, settings))

    updates, optimizer_state = optimizer.update(grads, state.optimizer, state.params)
    new_state = state.replace(
        step=state.step + 1,
        params=optax.apply_updates(state.params, updates),
        optimizer=optimizer_state,
    )
    sample_tokens = jnp.sum(batch.segment_ids > 0).astype(jnp.float32)
    return new_state, StepMetrics(loss, optax.tree.norm(grads), sums, sample_tokens)


def arm_sums(model: LanguageModel, settings: StepSettings, params: Any, batch: Batch) -> ArmSums:
    """Return loss, correct greedy choices and target tokens of each arm; also the validation step."""
    layout = packed_layout(batch.segment_ids, batch.bidirectional)
    hidden, _ = model.apply({"params": params}, batch.tokens, layout, method=LanguageModel.hidden)
    table = model.apply({"params": params}, method=LanguageModel.head_table)
    losses, correct = token_losses(hidden, table, batch.targets, batch.loss_mask, settings.loss_chunk)
    return sums_by_arm(losses, correct, batch.loss_mask, batch.arm_ids, settings.num_arms)


def _in_parts(batch: Batch, settings: StepSettings) -> Batch:
    """Cut the rows so that every device keeps rows of its own in every part."""
    parts = settings.accumulation_steps

    def cut(x):
        return jnp.swapaxes(x.reshape(x.shape[0] // parts, parts, *x.shape[1:]), 0, 1)

    return jax.tree.map(cut, batch)
