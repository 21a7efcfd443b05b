"""A cell with a parameter, for the tests of gated_scan."""

from pallas_kernels.gated_scan import Cell, gelu, sigmoid


# A cell names its arguments as it likes: here the last one is not `not_reset`.
def gated_inputs(parameters, operands, mask):
    (bias,) = parameters
    input_gate, candidate, forget_gate = operands
    return sigmoid(forget_gate + bias), sigmoid(input_gate) * candidate


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
