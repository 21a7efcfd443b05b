"""Cross-entropy and greedy accuracy on the targets, without all logits in memory at once."""

from math import prod

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from birdie_jax.array_types import Activations, TokenIds, TokenMask
from birdie_jax.models.axes import constrained, dividing_axes, gathered, mesh_platform, mesh_size
from birdie_jax.models.language_model import token_scores

# On a CPU, logits of up to this many bytes stay in memory instead of being computed twice.
HELD_LOGITS_BYTES = 64 << 20


def token_losses(
    hidden: Activations,
    table: Float[Array, "vocab features"],
    targets: TokenIds,
    loss_mask: TokenMask,
    chunk: int,
    *,
    bias: Float[Array, " vocab"] | None = None,
    soft_cap: float = 0.0,
) -> tuple[Float[Array, "rows length"], Bool[Array, "rows length"]]:
    """Return cross-entropy in nats (0 outside of the mask), and whether the greedy choice is the label.

    `table`, `bias` and `soft_cap` are the head's (`token_scores`).

    Float32 logits exist for `chunk` positions of the sequence at a time (per device, if the length is
    divided), and are computed again in the backward pass. So memory is rows * chunk * vocab * 4 bytes for
    any length. On a CPU all logits stay in memory if they take at most `HELD_LOGITS_BYTES`.

    Raises:
        ValueError: `chunk` does not divide the length, or a device's part of it.
    """
    rows, length, _ = hidden.shape
    # If positions are divided over devices, a chunk takes some positions of each device.
    shards = tuple(map(mesh_size, dividing_axes("length", length)))
    own_length = length // prod(shards)
    chunk = min(chunk, own_length)
    if own_length % chunk:
        raise ValueError(f"loss chunk {chunk} does not divide the length {own_length}")
    if mesh_platform() == "cpu" and not shards and 4 * rows * length * table.shape[0] <= HELD_LOGITS_BYTES:
        loss, correct = _held_losses(hidden, table, targets, bias, soft_cap)
        return jnp.where(loss_mask, loss, 0.0), correct & loss_mask
    in_front = 1 + len(shards)

    def in_chunks(x):
        divided = x.reshape(rows, *shards, own_length // chunk, chunk, *x.shape[2:])
        return jnp.moveaxis(divided, in_front, 0)

    # Cast and gather once here instead of for every chunk in the loop.
    table = _gradient_summed_whole(gathered(table.astype(hidden.dtype), ("vocab", "features")))

    @jax.checkpoint
    def one_chunk(table, bias, hidden, targets):
        logits = token_scores(hidden, table, bias, soft_cap)
        logits = constrained(logits, "rows", *["length"] * len(shards), None, "vocab")
        label_logits = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
        loss = jax.nn.logsumexp(logits, axis=-1) - label_logits
        return loss, jnp.argmax(logits, axis=-1) == targets

    _, (loss, correct) = jax.lax.scan(
        lambda carry, inputs: (carry, one_chunk(table, bias, *inputs)),
        None,
        (in_chunks(hidden), in_chunks(targets)),
    )
    loss, correct = (jnp.moveaxis(x, 0, in_front).reshape(rows, length) for x in (loss, correct))
    return jnp.where(loss_mask, loss, 0.0), correct & loss_mask


def _held_losses(
    hidden: Activations,
    table: Float[Array, "vocab features"],
    targets: TokenIds,
    bias: Float[Array, " vocab"] | None,
    soft_cap: float,
) -> tuple[Float[Array, "rows length"], Bool[Array, "rows length"]]:
    """Return the results of `token_losses` before its mask, in a form that is fast on a CPU."""
    table = gathered(table.astype(hidden.dtype), ("vocab", "features"))
    labels = targets.reshape(-1, 1)
    # One axis of positions. With two axes, the table's gradient takes 1.6 times as long.
    logits = token_scores(hidden.reshape(-1, hidden.shape[-1]), table, bias, soft_cap)
    label_logits = jnp.take_along_axis(logits, labels, axis=-1)
    loss = jax.nn.logsumexp(logits, axis=-1) - label_logits[:, 0]
    # The label is the greedy choice if its score is above all others, or the first of equal ones. XLA
    # computes this four times as fast as argmax, a reduction of pairs.
    numbers = jnp.arange(table.shape[0])
    correct = jnp.all((logits < label_logits) | ((logits == label_logits) & (numbers >= labels)), axis=-1)
    return loss.reshape(targets.shape), correct.reshape(targets.shape)


@jax.custom_vjp
def _gradient_summed_whole(table: Float[Array, "vocab features"]) -> Float[Array, "vocab features"]:
    """Return `table`; each device sums its gradient over the chunks before the devices exchange it.

    If the sum were divided over `fsdp` like the parameter, every chunk's gradient would have to be
    scattered.
    """
    return table


_gradient_summed_whole.defvjp(
    lambda table: (table, None), lambda _, gradient: (constrained(gradient, "vocab", None),)
)
