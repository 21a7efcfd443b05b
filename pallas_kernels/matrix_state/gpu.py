"""GPU kernels of recurrences with a matrix state per head, in Triton.

XLA's loop over chunks writes each chunk's matrices to memory between its products. Here four kernels keep
them on the chip:

1. `prepare`, for every chunk at once: the inverse of its triangular matrix, and its scores.
2. `read`, chunk after chunk: the output. A program has some columns of a head's state in registers; columns
   do not depend on each other. For the gradient it also writes U and the state that enters each chunk.
3. `pull`, from the last chunk to the first: the cotangents of the states and of beta (V - c K S).
4. `sums`, for every chunk at once: the cotangents of q, k, v, g and beta.

The derivative keeps only the arguments, and runs 1 and 2 again. Every sum has a fixed order, so two runs
agree bit for bit. JAX 0.12 deprecates the Triton backend of Pallas.
"""

from functools import partial
from typing import NamedTuple, cast

import jax
from jaxtyping import Array, Float

from pallas_kernels.matrix_state.gpu_passes import CHUNK, Passes
from pallas_kernels.matrix_state.sequences import HeadSequences, pad_state
from pallas_kernels.rematerialisation import named

# Triton's products have at least 16 rows and columns, and powers of two of them.
_LEAST_FEATURES = 16

State = Float[Array, "batch heads d_k d_v"]


class _Settings(NamedTuple):
    """The static arguments.

    Attributes:
        direction: "forward", "reverse" or "both".
        interpret: whether to run in the interpreter.
    """

    direction: str
    interpret: bool


def read_sequence(
    sequences: HeadSequences, initial_state: State, *, direction: str, interpret: bool = False
) -> tuple[Float[Array, "batch length heads d_v"], State]:
    """Return the output of each token, in v's dtype, and the float32 state after the last token read.

    Tokens are padded to whole chunks, and features to powers of two.

    Args:
        sequences: the arguments, with decays by head.
        initial_state: the float32 state before the first token in reading order.
        direction: "forward", "reverse" or "both".
        interpret: whether to run in the interpreter, on any platform.
    """
    length, _, d_v = sequences.v.shape[1:]
    d_k = sequences.k.shape[-1]
    keys, values = (max(_LEAST_FEATURES, 1 << (width - 1).bit_length()) for width in (d_k, d_v))
    given, state = sequences.padded(CHUNK, keys, values), pad_state(initial_state, keys, values)
    settings = _Settings(direction, interpret)
    o, last = cast(tuple[Array, Array], _read(settings, given, state))
    return o[:, :length, :, :d_v], last[:, :, :d_k, :d_v]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _read(settings: _Settings, sequences: HeadSequences, state: State) -> tuple[Array, State]:
    return _forward(settings, sequences, state)[0]


def _forward(settings, sequences, state):
    passes = Passes(sequences, *settings)
    found = passes.read(passes.prepare(), state, keep=False)
    return named((found["o"], found["last"])), (sequences, state)


def _backward(settings, residuals, cotangents):
    (sequences, state), (do, dlast) = residuals, cotangents
    passes = Passes(sequences, *settings)
    matrices = passes.prepare()
    kept, pulled = passes.read(matrices, state, keep=True), passes.pull(matrices, do, dlast)
    dq, dk, dg, dbeta = passes.sums(
        {"U": kept["U"], "do": do, "dR": pulled["dR"]},
        {"states": kept["states"], "dstates": pulled["dstates"]},
    )
    dv = pulled["dv"] if passes.has_beta else pulled["dR"]
    found, given = HeadSequences(dq, dk, dv, dg, dbeta, None), sequences._replace(resets=None)
    return jax.tree.map(lambda one, new: new.astype(one.dtype), given, found), pulled["dstate"]


_read.defvjp(_forward, _backward)
