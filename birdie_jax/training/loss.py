"""Cross-entropy and greedy accuracy on the targets, without ever holding all logits."""

from math import prod
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from birdie_jax.array_types import Activations, ArmVector, TokenIds, TokenMask
from birdie_jax.models.axes import constrained, dividing_axes, gathered, mesh_size
from birdie_jax.models.language_model import token_scores


class ArmSums(NamedTuple):
    """Sums over the target tokens of each arm.

    Attributes:
        loss: cross-entropy, in nats.
        correct: tokens whose label has the highest score.
        tokens: target tokens.
    """

    loss: ArmVector
    correct: ArmVector
    tokens: ArmVector


def token_losses(
    hidden: Activations,
    table: Float[Array, "vocab features"],
    targets: TokenIds,
    loss_mask: TokenMask,
    chunk: int,
) -> tuple[Float[Array, "rows length"], Bool[Array, "rows length"]]:
    """Return cross-entropy in nats (0 off the mask), and whether the greedy choice is the label.

    Logits exist for `chunk` sequence positions at a time (of each device, where the length is divided), in
    float32, and are computed again in the backward pass, so that memory is rows * chunk * vocab * 4 bytes
    whatever the length.

    Raises:
        ValueError: `chunk` does not divide the length, or a device's part of it.
    """
    rows, length, _ = hidden.shape
    # Positions that are divided over devices stay so: a chunk takes some of each device.
    shards = tuple(map(mesh_size, dividing_axes("length", length)))
    own_length = length // prod(shards)
    chunk = min(chunk, own_length)
    if own_length % chunk:
        raise ValueError(f"loss chunk {chunk} does not divide the length {own_length}")
    in_front = 1 + len(shards)

    def in_chunks(x):
        divided = x.reshape(rows, *shards, own_length // chunk, chunk, *x.shape[2:])
        return jnp.moveaxis(divided, in_front, 0)

    # Cast and gathered once here; inside the loop it would be done for every chunk.
    table = _gradient_summed_whole(gathered(table.astype(hidden.dtype), ("vocab", "features")))

    @jax.checkpoint
    def one_chunk(table, hidden, targets):
        logits = token_scores(hidden, table)
        logits = constrained(logits, "rows", *["length"] * len(shards), None, "vocab")
        label_logits = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
        loss = jax.nn.logsumexp(logits, axis=-1) - label_logits
        return loss, jnp.argmax(logits, axis=-1) == targets

    _, (loss, correct) = jax.lax.scan(
        lambda carry, inputs: (carry, one_chunk(table, *inputs)),
        None,
        (in_chunks(hidden), in_chunks(targets)),
    )
    loss, correct = (jnp.moveaxis(x, 0, in_front).reshape(rows, length) for x in (loss, correct))
    return jnp.where(loss_mask, loss, 0.0), correct & loss_mask


@jax.custom_vjp
def _gradient_summed_whole(table: Float[Array, "vocab features"]) -> Float[Array, "vocab features"]:
    """Return `table`; what the chunks add to its gradient is summed by each device before they exchange it.

    Were the sum divided over `fsdp` like the parameter, every chunk would have to be taken apart.
    """
    return table


_gradient_summed_whole.defvjp(
    lambda table: (table, None), lambda _, gradient: (constrained(gradient, "vocab", None),)
)


def sums_by_arm(
    losses: Float[Array, "rows length"],
    correct: Bool[Array, "rows length"],
    loss_mask: TokenMask,
    arm_ids: Int[Array, "rows length"],
    num_arms: int,
) -> ArmSums:
    """Sum over the tokens of each arm.

    As reductions, not as a scatter: sums come out the same on every run on every platform, and the
    bandit's decisions hang on them.
    """
    of_arm = arm_ids[None] == jnp.arange(num_arms)[:, None, None]

    def total(values):
        return jnp.sum(jnp.where(of_arm, values[None].astype(jnp.float32), 0.0), axis=(1, 2))

    return ArmSums(total(losses), total(correct), total(loss_mask))
