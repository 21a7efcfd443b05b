"""Cross-entropy and greedy accuracy on the targets, without ever holding all of many logits."""

from math import prod

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from birdie_jax.array_types import Activations, TokenIds, TokenMask
from birdie_jax.models.axes import constrained, dividing_axes, gathered, mesh_platform, mesh_size
from birdie_jax.models.language_model import token_scores

# On a CPU, logits of so many bytes are held rather than computed twice.
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
    """Return cross-entropy in nats (0 off the mask), and whether the greedy choice is the label.

    `table`, `bias` and `soft_cap` are those of the head (`token_scores`).

    Logits exist for `chunk` sequence positions at a time (of each device, where the length is divided), in
    float32, and are computed again in the backward pass, so memory is rows * chunk * vocab * 4 bytes
    whatever the length. On a CPU all of them are held where they take at most `HELD_LOGITS_BYTES`.

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
    if mesh_platform() == "cpu" and not shards and 4 * rows * length * table.shape[0] <= HELD_LOGITS_BYTES:
        loss, correct = _held_losses(hidden, table, targets, bias, soft_cap)
        return jnp.where(loss_mask, loss, 0.0), correct & loss_mask
    in_front = 1 + len(shards)

    def in_chunks(x):
        divided = x.reshape(rows, *shards, own_length // chunk, chunk, *x.shape[2:])
        return jnp.moveaxis(divided, in_front, 0)

    # Cast and gathered once here; inside the loop it would be done for every chunk.
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
    """Return cross-entropy and whether the greedy choice is the label, as XLA's CPU compiler does well."""
    table = gathered(table.astype(hidden.dtype), ("vocab", "features"))
    labels = targets.reshape(-1, 1)
    # One axis of positions: of two, the table's gradient takes 1.6 times as long.
    logits = token_scores(hidden.reshape(-1, hidden.shape[-1]), table, bias, soft_cap)
    label_logits = jnp.take_along_axis(logits, labels, axis=-1)
    loss = jax.nn.logsumexp(logits, axis=-1) - label_logits[:, 0]
    # The label is the greedy choice where it is above every other score, or the first of equal ones. XLA
    # computes that four times as fast as argmax, a reduction of pairs.
    numbers = jnp.arange(table.shape[0])
    correct = jnp.all((logits < label_logits) | ((logits == label_logits) & (numbers >= labels)), axis=-1)
    return loss.reshape(targets.shape), correct.reshape(targets.shape)


@jax.custom_vjp
def _gradient_summed_whole(table: Float[Array, "vocab features"]) -> Float[Array, "vocab features"]:
    """Return `table`; what the chunks add to its gradient is summed by each device before they exchange it.

    Were the sum divided over `fsdp` like the parameter, every chunk would have to be taken apart.
    """
    return table


_gradient_summed_whole.defvjp(
    lambda table: (table, None), lambda _, gradient: (constrained(gradient, "vocab", None),)
)
