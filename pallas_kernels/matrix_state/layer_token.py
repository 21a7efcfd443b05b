"""The recurrence for a single token of one layer, within the states of all layers."""

from functools import partial
from typing import NamedTuple

import jax
from jaxtyping import Array, Float, Int

from pallas_kernels.matrix_state import token_tpu, tpu_grid
from pallas_kernels.matrix_state.sequences import HeadSequences
from pallas_kernels.matrix_state.token import read_token


class LayerState(NamedTuple):
    """The state of one layer within the states of all layers, so that a loop over layers copies no state.

    Attributes:
        states: the float32 states of all layers.
        layer: the number of the layer.
    """

    states: Float[Array, "layers batch heads first second"]
    layer: Int[Array, ""]


def read_layer_token(
    sequences: HeadSequences, state: LayerState, *, implementation: str | None, keys_last: bool = False
) -> tuple[Float[Array, "batch one heads d_v"], LayerState]:
    """Return the output of the token, in v's dtype, and the state after it.

    Args:
        sequences: the arguments, with one token per row.
        state: the state before the token.
        implementation: one of `IMPLEMENTATIONS`, or None for the best one for the target platform.
            "pallas_gpu" has no kernel for a token, and means "xla" here, as does any of them if the
            states do not fit the memory of the TPU's kernel.
        keys_last: whether the state of a head is [d_v, d_k] instead of [d_k, d_v].
    """
    by_kernel, by_slices = partial(_by_kernel, keys_last), partial(_by_slices, keys_last)
    programs = {"default": by_slices}
    if token_tpu.fits(state.states):
        if implementation is None and min(state.states.shape[3:]) >= tpu_grid.LEAST_FEATURES:
            programs["tpu"] = by_kernel
        if implementation in ("pallas_tpu", "pallas_interpret"):
            programs["default"] = partial(by_kernel, interpret=implementation == "pallas_interpret")
    o, states = jax.lax.platform_dependent(sequences, *state, **programs)
    return o, state._replace(states=states)


def _by_kernel(keys_last, sequences, states, layer, interpret=False):
    return token_tpu.read_token(sequences, states, layer, keys_last=keys_last, interpret=interpret)


def _by_slices(keys_last, sequences, states, layer):
    own = jax.lax.dynamic_index_in_dim(states, layer, keepdims=False)
    o, own = read_token(sequences, own.swapaxes(2, 3) if keys_last else own)
    own = own.swapaxes(2, 3) if keys_last else own
    return o, jax.lax.dynamic_update_index_in_dim(states, own, layer, 0)
