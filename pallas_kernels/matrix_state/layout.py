"""Conversion of arrays [batch, length, heads, ...] to chunks in reading order, and back."""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.matrix_state import gpu, tpu, tpu_grid
from pallas_kernels.matrix_state.chunks import Sequences, read_chunks
from pallas_kernels.matrix_state.sequences import HeadSequences, ValueWeights, pad_state, pad_tokens
from pallas_kernels.matrix_state.token import read_token
from pallas_kernels.rematerialisation import named

State = Float[Array, "batch heads d_k d_v"]

DIRECTIONS = ("forward", "reverse", "both")
IMPLEMENTATIONS: dict[str, tuple[str, ...]] = {
    "xla": ("cpu", "gpu", "tpu"),
    "pallas_tpu": ("tpu",),
    "pallas_gpu": ("gpu",),
    "pallas_interpret": ("cpu", "gpu", "tpu"),
}
"""The implementations and the platforms that they compile for."""

# On a CPU, shorter chunks cost more in calls than they save in products.
_LEAST_CHUNK = 16


class _Settings(NamedTuple):
    """The static arguments of a kernel.

    Attributes:
        direction: one of `DIRECTIONS`.
        chunk: the number of tokens of a chunk.
        interpret: whether the kernel runs in the interpreter.
    """

    direction: str
    chunk: int
    interpret: bool


def read_sequence(
    sequences: HeadSequences,
    initial_state: State | None,
    values: ValueWeights | None = None,
    *,
    direction: str,
    chunk_size: int,
    implementation: str | None,
) -> tuple[Float[Array, "batch length heads d_v"], State]:
    """Return the output of each token, in v's dtype, and the float32 state after the last token read.

    Args:
        sequences: the arguments.
        initial_state: the state before the first token in reading order; zero if None.
        values: the weights of the values; all 1 in the state and none in the output if None.
        direction: one of `DIRECTIONS`; "both" reads the second half of the heads in reverse.
        chunk_size: the largest number of tokens of a chunk, a power of two.
        implementation: one of `IMPLEMENTATIONS`, or None for the best one for the target platform.

    Raises:
        ValueError: the implementation is a kernel and the decays are by channel.
    """
    batch, length, heads, d_v = sequences.v.shape
    d_k, by_channel = sequences.k.shape[-1], sequences.g.ndim == 4
    if length == 1:
        return _weighted(read_token, sequences, values, initial_state)
    if initial_state is None:
        initial_state = jnp.zeros((batch, heads, d_k, d_v), jnp.float32)
    initial_state = initial_state.astype(jnp.float32)
    longest = _power_of_two(length)
    chunk, of_kernel = min(chunk_size, longest), _Settings(direction, min(tpu_grid.CHUNK, longest), False)
    if implementation not in (None, "xla"):
        if by_channel:
            raise ValueError(
                f"implementation: found {implementation!r} for decays by channel; allowed: None, 'xla'"
            )
        if implementation == "pallas_gpu":
            by_gpu = partial(gpu.read_sequence, direction=direction)
            return _weighted(by_gpu, sequences, values, initial_state)
        if implementation == "pallas_interpret":
            of_kernel = _Settings(direction, chunk, True)
        return _by_kernel(of_kernel, sequences, values, initial_state)
    of_cpu = min(chunk, _fewest_products(d_k, d_v))
    programs = {
        "cpu": partial(_weighted, partial(_in_float32, partial(_by_chunks, direction, of_cpu))),
        "default": partial(_weighted, partial(_by_chunks, direction, chunk)),
    }
    suits = length >= tpu_grid.CHUNK and tpu_grid.suits_features(sequences) and not by_channel
    if implementation is None and suits:
        programs["tpu"] = partial(_by_kernel, of_kernel)
    return jax.lax.platform_dependent(sequences, values, initial_state, **programs)


def _weighted(
    read: Callable[..., tuple[Array, Array]],
    sequences: HeadSequences,
    values: ValueWeights | None,
    state: State | None,
) -> tuple[Array, Array]:
    """Apply the weights of values around a function that has none."""
    if values is None:
        return read(sequences, state)
    o, last = read(values.scaled(sequences), state)
    return values.skipped(o, sequences.v), last


def _power_of_two(length):
    return 1 << (length - 1).bit_length()


def _fewest_products(d_k: int, d_v: int) -> int:
    """Return the tokens of a chunk, a power of two, for which a sequence needs the fewest products.

    For each token, products within a chunk of C tokens grow with C (d_k + d_v). Each of the T / C states
    between chunks costs d_k d_v, so short chunks need more memory and more steps of the loop.
    """
    return max(_LEAST_CHUNK, 1 << (math.isqrt(d_k * d_v).bit_length() - 1))


def _in_float32(by_chunks, sequences, initial_state):
    """Compute in float32: CPUs gain nothing from bfloat16, and XLA lacks some of its products in loops.

    XLA of JAX 0.10 compiles them, and the program then fails with "Unsupported element type for DotThunk".
    """
    q, k, v = (array.astype(jnp.float32) for array in sequences[:3])
    o, last = by_chunks(sequences._replace(q=q, k=k, v=v), initial_state)
    return o.astype(sequences.v.dtype), last


def _by_kernel(settings, sequences, values, initial_state):
    """Implement `read_sequence` with the kernel: pad the last chunk, and features to whole lanes."""
    length, _, d_v = sequences.v.shape[1:]
    d_k = sequences.k.shape[-1]
    fits = settings.interpret or tpu_grid.fits_lanes(sequences, settings.direction)
    widths = [width + (0 if fits else -width % tpu_grid.LANES) for width in (d_k, d_v)]
    given, state = sequences.padded(settings.chunk, *widths), pad_state(initial_state, *widths)
    if values is not None:
        values = values._replace(scale=pad_tokens(values.scale, settings.chunk))
    o, last = cast(tuple[Array, Array], _in_kernel(settings, given, values, state))
    return o[:, :length, :, :d_v], last[:, :, :d_k, :d_v]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _in_kernel(
    settings: _Settings, sequences: HeadSequences, values: ValueWeights | None, state: State
) -> tuple[Array, State]:
    return _kernel_forward(settings, sequences, values, state)[0]


def _kernel_forward(settings, sequences, values, state):
    options = {"direction": settings.direction, "chunk": settings.chunk, "interpret": settings.interpret}
    o, last, block_states = named(tpu.forward(sequences, values, state, **options))
    return (o, last), (sequences, values, block_states)


def _kernel_backward(settings, residuals, cotangents):
    sequences, values, block_states = residuals
    options = {"direction": settings.direction, "chunk": settings.chunk, "interpret": settings.interpret}
    found, dvalues, dstate = tpu.backward(sequences, values, block_states, cotangents, **options)
    given = sequences._replace(resets=None)
    return jax.tree.map(lambda one, new: new.astype(one.dtype), given, found), dvalues, dstate


_in_kernel.defvjp(_kernel_forward, _kernel_backward)


def _by_chunks(direction, chunk, sequences, initial_state):
    """Implement `read_sequence` in XLA with a loop over chunks of all heads."""
    ways = {"forward": (False,), "reverse": (True,), "both": (False, True)}[direction]
    batch, length, heads, d_v = sequences.v.shape
    groups = sequences.q.shape[2]
    if len(ways) == 2 and groups == 1:
        # One group serves the heads of both directions.
        groups = 2
        shared = sequences.q.repeat(2, axis=2), sequences.k.repeat(2, axis=2)
        sequences = sequences._replace(q=shared[0], k=shared[1])

    def in_chunks(array):
        """Reshape [ways * batch, length, ...] to [chunks, ways * batch, chunk, ...]."""
        array = jnp.pad(array, [(0, 0), (0, -length % chunk)] + [(0, 0)] * (array.ndim - 2))
        return jnp.moveaxis(array.reshape(array.shape[0], -1, chunk, *array.shape[2:]), 1, 0)

    def in_reading_order(array):
        """Stack the heads of each direction along the batch, each in reading order."""
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
