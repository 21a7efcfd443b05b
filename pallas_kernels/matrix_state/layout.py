"""From arrays [batch, length, heads, ...] to chunks in reading order, and back."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.matrix_state.chunks import Sequences, read_chunks
from pallas_kernels.matrix_state.sequences import HeadSequences
from pallas_kernels.matrix_state.token import read_token

DIRECTIONS = ("forward", "reverse", "both")


def read_sequence(
    sequences: HeadSequences,
    initial_state: Float[Array, "batch heads d_k d_v"] | None,
    *,
    direction: str,
    chunk_size: int,
) -> tuple[Float[Array, "batch length heads d_v"], Float[Array, "batch heads d_k d_v"]]:
    """Return what each token reads, in the type of v, and the float32 state after the last one read.

    Args:
        sequences: the arguments.
        initial_state: the state before the first token read; None: zero.
        direction: one of `DIRECTIONS`; "both": the second half of the heads in reverse.
        chunk_size: tokens of a chunk, a power of two.
    """
    ways = {"forward": (False,), "reverse": (True,), "both": (False, True)}[direction]
    batch, length, heads, d_v = sequences.v.shape
    if length == 1:
        return read_token(sequences, initial_state)
    if initial_state is None:
        initial_state = jnp.zeros((batch, heads, sequences.k.shape[-1], d_v), jnp.float32)
    chunk = min(chunk_size, 1 << (length - 1).bit_length())
    groups = sequences.q.shape[2]
    if len(ways) == 2 and groups == 1:
        # One group serves the heads of both directions.
        groups = 2
        shared = sequences.q.repeat(2, axis=2), sequences.k.repeat(2, axis=2)
        sequences = sequences._replace(q=shared[0], k=shared[1])

    def in_chunks(array):
        """Turn [ways * batch, length, ...] into [chunks, ways * batch, ..., chunk, features]."""
        array = jnp.pad(array, [(0, 0), (0, -length % chunk)] + [(0, 0)] * (array.ndim - 2))
        return jnp.moveaxis(array.reshape(array.shape[0], -1, chunk, *array.shape[2:]), 1, 0)

    def in_reading_order(array):
        """Stack the heads of each direction along the batch, each in its reading order."""
        parts = jnp.split(array, len(ways), axis=2)
        return jnp.concatenate(
            [part[:, ::-1] if way else part for part, way in zip(parts, ways, strict=True)]
        )

    def of_groups(array):
        return jnp.moveaxis(in_chunks(in_reading_order(array)), 2, 3)

    def of_heads(array):
        per_group = in_chunks(in_reading_order(array))
        shape = per_group.shape
        per_group = per_group.reshape(*shape[:3], groups // len(ways), heads // groups, *shape[4:])
        return jnp.moveaxis(per_group, 2, 4)

    reset = None
    if sequences.resets is not None:
        turned = [
            reset[:, ::-1] if way else reset for reset, way in zip(sequences.resets, ways, strict=True)
        ]
        reset = in_chunks(jnp.concatenate(turned))
    chunks = Sequences(
        q=of_groups(sequences.q),
        k=of_groups(sequences.k),
        v=of_heads(sequences.v),
        g=of_heads(sequences.g.astype(jnp.float32)),
        beta=None if sequences.beta is None else of_heads(sequences.beta.astype(jnp.float32)),
        reset=reset,
    )
    state = jnp.concatenate(jnp.split(initial_state.astype(jnp.float32), len(ways), axis=1))
    state = state.reshape(state.shape[0], groups // len(ways), heads // groups, *state.shape[2:])
    last, o = read_chunks(state, chunks)
    # [chunks, ways * batch, groups, heads, chunk, d_v] to [ways * batch, length, heads, d_v].
    o = jnp.moveaxis(o, (0, 4), (1, 2))
    o = o.reshape(len(ways) * batch, -1, heads // len(ways), d_v)[:, :length]
    parts = [
        part[:, ::-1] if way else part for part, way in zip(jnp.split(o, len(ways)), ways, strict=True)
    ]
    last = last.reshape(len(ways) * batch, heads // len(ways), *last.shape[3:])
    return jnp.concatenate(parts, axis=2), jnp.concatenate(jnp.split(last, len(ways)), axis=1)
