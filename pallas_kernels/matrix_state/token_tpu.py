"""TPU kernel of the recurrence for a single token, which updates the states of one layer in place.

A grid step reads all heads of a row's state once and writes them once. XLA's program for the same token
reads a state several times: to decay it, for each of its products, and to copy it out of the states of all
layers and back.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from pallas_kernels.linear_scan.padding import round_up
from pallas_kernels.matrix_state.decays import token_decay
from pallas_kernels.matrix_state.sequences import HeadSequences

# Of a row's state, in float32. Twice as many bytes enter, and as many leave, all double-buffered. A TPU v4
# has 16 MiB.
MAX_STATE_BYTES = 3 << 20
_SUBLANES, _LANES = 8, 128

LayerStates = Float[Array, "layers batch heads first second"]


def fits(states: LayerStates) -> bool:
    """Return whether the state of a row fits the kernel's memory, where its matrices fill whole tiles."""
    heads, first, second = states.shape[2:]
    return 4 * heads * round_up(first, _SUBLANES) * round_up(second, _LANES) <= MAX_STATE_BYTES


def read_token(
    sequences: HeadSequences,
    states: LayerStates,
    layer: Int[Array, ""],
    *,
    keys_last: bool,
    interpret: object = False,
) -> tuple[Float[Array, "batch one heads d_v"], LayerStates]:
    """Return the output of the token, in v's dtype, and the states with those of the layer after it.

    Args:
        sequences: the arguments, with one token per row.
        states: the float32 states of all layers.
        layer: the layer whose states the token reads and changes.
        keys_last: whether a state is [d_v, d_k] instead of [d_k, d_v].
        interpret: whether to run in the TPU interpreter, on any platform; or its parameters.
    """
    q, k, v, g, beta, resets = sequences
    wide = [array[:, 0].astype(jnp.float32) for array in (q, k, v)]
    decay = token_decay(g[:, 0].astype(jnp.float32), resets)[..., 0]
    by_channel = decay.shape[-1] > 1
    # A number for each head is a row of lanes.
    operands = [*wide, decay if by_channel else decay.swapaxes(1, 2)]
    if beta is not None:
        operands.append(beta.astype(jnp.float32))
    batch, _, heads, d_v = v.shape
    result = jax.ShapeDtypeStruct((batch, heads, d_v), jnp.float32)

    def whole_row(array):
        return pl.BlockSpec((1, *array.shape[1:]), lambda row, _: (row, 0, 0))

    state = pl.BlockSpec((1, 1, *states.shape[2:]), lambda row, layer: (layer[0], row, 0, 0, 0))
    moved = sum(4 * math.prod(array.shape) for array in (*operands, result))
    o, states = pl.pallas_call(
        functools.partial(_body, keys_last, by_channel, heads // k.shape[2]),
        out_shape=[result, jax.ShapeDtypeStruct(states.shape, states.dtype)],
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(batch,),
            in_specs=[*map(whole_row, operands), state],
            out_specs=[whole_row(result), state],
        ),
        # The first operand is the layer.
        input_output_aliases={1 + len(operands): 1},
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
        cost_estimate=pl.CostEstimate(
            flops=0,
            bytes_accessed=moved + 2 * 4 * math.prod(states.shape[1:]),
            transcendentals=0,
        ),
        interpret=pltpu.InterpretParams() if interpret is True else interpret,
    )(layer.reshape(1), *operands, states)
    return o[:, None].astype(v.dtype), states


def _body(keys_last, by_channel, shares, *refs):
    _, q_ref, k_ref, v_ref, decay_ref, *beta_ref, state_ref, o_ref, last_ref = refs
    of_keys, of_values = (1, 0) if keys_last else (0, 1)

    def along(axis, ref):
        """Return [heads, features], or [features, heads] for the first axis of a head's matrix."""
        return ref[0] if axis == 1 else ref[0].T

    def of_head(head, axis, array):
        return array[head : head + 1] if axis == 1 else array[:, head : head + 1]

    def product(vector, matrix):
        return jnp.sum(vector * matrix, axis=of_keys, keepdims=True)

    q, k, v = along(of_keys, q_ref), along(of_keys, k_ref), along(of_values, v_ref)
    decays = along(of_keys, decay_ref) if by_channel else decay_ref[0]
    outputs = []
    for head in range(v_ref.shape[1]):
        own_q, own_k = (of_head(head // shares, of_keys, array) for array in (q, k))
        own_v = of_head(head, of_values, v)
        decay = of_head(head, of_keys if by_channel else 0, decays)
        overlap = product(own_q, own_k)
        # A tile of the values needs few enough registers.
        for begin in range(0, own_v.size, _LANES):
            tile = slice(begin, min(begin + _LANES, own_v.size))
            at = (0, 0, head, tile, slice(None)) if keys_last else (0, 0, head, slice(None), tile)
            kept = decay * state_ref[at]
            u = own_v[tile] if keys_last else own_v[:, tile]
            if beta_ref:
                u = of_head(head, 0, beta_ref[0][0]) * (u - product(own_k, kept))
            outputs.append(product(own_q, kept) + overlap * u)
            last_ref[at] = kept + own_k * u
    tiles = len(outputs) // v_ref.shape[1]
    rows = [jnp.concatenate(outputs[i : i + tiles], of_values) for i in range(0, len(outputs), tiles)]
    o = jnp.concatenate(rows, axis=of_keys)
    o_ref[0] = o.T if keys_last else o
