"""A gated layer (`cells.GATED`) by its definition and the chain rule, in float64, and inputs for it."""

import jax.numpy as jnp
import numpy as np

from pallas_kernels.gated_scan.cell import GatedScanInputs
from tests.pallas_kernels.linear_scan.oracle import oracle, oracle_gradients


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def gelu_slope(x, step=1e-6):
    return (gelu(x + step) - gelu(x - step)) / (2 * step)


def layer_inputs(shape, dtype=np.float32, seed=0, direction="both"):
    """Return inputs with resets at a tenth of the tokens, and cotangents of y and of the last state."""
    random = np.random.default_rng(seed)
    batch, length, channels = shape
    operands = tuple(jnp.asarray(2 * random.normal(size=shape), dtype) for _ in range(3))
    gate, dy = (jnp.asarray(random.normal(size=shape), dtype) for _ in range(2))
    bias = jnp.asarray(1 + random.normal(size=channels), jnp.float32)
    h0, dlast = (jnp.asarray(random.normal(size=(batch, channels)), jnp.float32) for _ in range(2))
    count = 2 if direction == "both" else 1
    resets = tuple(jnp.asarray(random.uniform(size=(batch, length)) < 0.1) for _ in range(count))
    return GatedScanInputs(operands, gate, (bias,), h0, resets), dy, dlast


def gated_oracle(inputs, dy, dlast, direction):
    """Return y, the last state, and the cotangents of operands, gate, bias and h0."""
    half = inputs.gate.shape[-1] // 2
    parts = {
        "forward": [(slice(None), 0, False)],
        "reverse": [(slice(None), 0, True)],
        "both": [(slice(0, half), 0, False), (slice(half, None), 1, True)],
    }[direction]
    found = []
    for channels, which, reverse in parts:
        reset = None if inputs.resets is None else inputs.resets[which]
        arrays = (*inputs.operands, *inputs.parameters, inputs.gate, inputs.h0, dy, dlast)
        arrays = [np.asarray(array, np.float64)[..., channels] for array in arrays]
        found.append(_one_direction(arrays, reset=reset, reverse=reverse))
    return [np.concatenate(values, axis=-1) for values in zip(*found, strict=True)]


def _one_direction(arrays, *, reset, reverse):
    input_gate, candidate, forget_gate, bias, gate, h0, dy, dlast = arrays
    forget, input = sigmoid(forget_gate + bias), sigmoid(input_gate)
    x = input * candidate
    h = oracle(forget, x, h0, reverse=reverse, reset=reset)
    dh = dy * gelu(gate)
    last = 0 if reverse else -1
    dh[:, last] += dlast
    dforget, dx, dh0 = oracle_gradients(forget, x, h0, dh, reverse=reverse, reset=reset)
    dforget_gate = dforget * forget * (1 - forget)
    return (
        gelu(gate) * h,
        h[:, last],
        dx * candidate * input * (1 - input),
        dx * input,
        dforget_gate,
        dy * h * gelu_slope(gate),
        dforget_gate.sum(axis=(0, 1)),
        dh0,
    )
