"""Cells for the tests of gated_scan: one with a parameter, and one that uses resets."""

import jax.numpy as jnp

from pallas_kernels.gated_scan import Cell, gelu, sigmoid


def gated_inputs(parameters, operands, not_reset):
    (bias,) = parameters
    input_gate, candidate, forget_gate = operands
    return sigmoid(forget_gate + bias), sigmoid(input_gate) * candidate


def normalised_inputs(parameters, operands, not_reset):
    a = sigmoid(operands[0])
    x = (1 - a) * operands[1]
    return a, x if not_reset is None else jnp.where(not_reset, x, operands[1])


# `oracle` computes it in float64.
GATED = Cell(
    name="gated",
    operands=("input_gate", "candidate", "forget_gate"),
    parameters=("bias",),
    recurrence_inputs=gated_inputs,
    readout=gelu,
    transcendentals=3,
    identity_operands=(0.0, 0.0, 1e4),
)
# At a reset, x is not scaled, as in an RG-LRU.
NORMALISED = Cell(
    name="normalised",
    operands=("gate", "x"),
    parameters=(),
    recurrence_inputs=normalised_inputs,
    readout=sigmoid,
    transcendentals=1,
    identity_operands=(1e4, 0.0),
)
