"""The public operation: argument checks, the choice of an implementation, and the derivative."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from pallas_kernels.gated_scan import tpu
from pallas_kernels.gated_scan.cells import Cell, Inputs
from pallas_kernels.linear_scan import IMPLEMENTATIONS, bidirectional_scan, linear_scan

DIRECTIONS = ("forward", "reverse", "both")


class _Settings(NamedTuple):
    """What is static."""

    cell: Cell
    direction: str
    interpret: bool = False


def gated_scan(
    cell: Cell,
    operands: tuple[Float[Array, "batch length channels"], ...],
    gate: Float[Array, "batch length channels"] | None = None,
    parameters: tuple[Float[Array, " channels"], ...] = (),
    *,
    direction: str = "forward",
    h0: Float[Array, "batch channels"] | None = None,
    resets: tuple[Bool[Array, "batch length"], ...] | None = None,
    scan_dtype: DTypeLike = jnp.float32,
    implementation: str | None = None,
) -> tuple[Float[Array, "batch length channels"], Float[Array, "batch channels"]]:
    """All of a gated recurrent layer between its projections.

        a, x = cell.enter(parameters, operands, keep)
        h[:, t] = a[:, t] * h[:, t-1] + x[:, t]
        y = cell.readout(gate) * h

    On a TPU one kernel reads the projections and writes y; decays, entries and states stay on the chip, and
    the derivative computes them again from a state every 64 steps. With n operands and the gate this is
    n + 2 memory accesses an element forward and 2 n + 3 backward. Elsewhere the steps are written out
    around `linear_scan`, and cost what XLA does not fuse besides. All is computed in float32.

    Args:
        cell: the functions of the layer, see `cells`.
        operands: what `cell.enter` reads.
        gate: what `cell.readout` reads; None: y is h.
        parameters: a number a channel each.
        direction: "forward"; "reverse": the sequence is read from its end; "both": the second half of the
            channels is.
        h0: state before the first step read; zero if None.
        resets: for the direction, or for each of both, where a[:, t] counts as zero.
        scan_dtype: type in which a, x and h go through memory where they do.
        implementation: one of `linear_scan.IMPLEMENTATIONS`, or None for the best one on the platform
            compiled for. A TPU takes its kernel where length and the channels of a direction are
            multiples of 128; asked for by name, it pads others. "pallas_gpu" has a kernel for the
            recurrence alone.

    Returns:
        y in the type of the gate, else of the last operand; and in float32 the state after the last step
        that was read.

    Raises:
        ValueError: shapes or counts differ, or the direction or the implementation is unknown.
    """
    inputs = Inputs(tuple(operands), gate, tuple(parameters), h0, resets)
    _check(cell, inputs, direction, implementation)
    batch, _, channels = shape = inputs.operands[0].shape
    if h0 is None:
        h0 = jnp.zeros((batch, channels), jnp.float32)
    inputs = inputs._replace(h0=h0.astype(jnp.float32))

    def with_kernel(inputs, interpret=False):
        return _kernel(_Settings(cell, direction, interpret), inputs)

    def written_out(inputs):
        return _written_out(_Settings(cell, direction), inputs, scan_dtype, implementation)

    match implementation:
        case "pallas_tpu":
            return with_kernel(inputs)
        case "pallas_interpret":
            return with_kernel(inputs, interpret=True)
        case None if tpu.suits(shape, direction):
            return jax.lax.platform_dependent(inputs, tpu=with_kernel, default=written_out)
    return written_out(inputs)


def _check(cell, inputs, direction, implementation):
    if implementation is not None and implementation not in IMPLEMENTATIONS:
        raise ValueError(
            f"gated_scan: implementation {implementation!r} is unknown; allowed: None, "
            + ", ".join(map(repr, IMPLEMENTATIONS))
        )
    if direction not in DIRECTIONS:
        raise ValueError(f"gated_scan: direction {direction!r} is unknown; allowed: {DIRECTIONS}")
    if len(inputs.operands) != len(cell.operands):
        raise ValueError(
            f"gated_scan: operands of {cell.name} are {cell.operands}; found {len(inputs.operands)}"
        )
    shape = inputs.operands[0].shape
    if len(shape) != 3:
        raise ValueError(f"gated_scan: operands must be [batch, length, channels]; found {tuple(shape)}")
    batch, length, channels = shape
    if direction == "both" and channels % 2:
        raise ValueError(f"gated_scan: the number of channels must be even; found {channels}")
    if len(inputs.parameters) != len(cell.parameters):
        raise ValueError(
            f"gated_scan: parameters of {cell.name} are {cell.parameters}; found {len(inputs.parameters)}"
        )
    wanted = [
        *zip(cell.operands, inputs.operands, [shape] * len(cell.operands), strict=True),
        *zip(cell.parameters, inputs.parameters, [(channels,)] * len(cell.parameters), strict=True),
        ("gate", inputs.gate, shape),
        ("h0", inputs.h0, (batch, channels)),
    ]
    for name, array, needed in wanted:
        if array is not None and array.shape != needed:
            raise ValueError(f"gated_scan: {name} must be {needed}; found {tuple(array.shape)}")
    if inputs.resets is None:
        return
    count = 2 if direction == "both" else 1
    found = [tuple(reset.shape) for reset in inputs.resets]
    if found != [(batch, length)] * count:
        raise ValueError(f"gated_scan: resets must be {count} of shape {(batch, length)}; found {found}")


def _written_out(settings, inputs, scan_dtype, implementation):
    cell, direction, resets = settings.cell, settings.direction, inputs.resets
    parameters, operands, gate = _as_float32((inputs.parameters, inputs.operands, inputs.gate))
    decay, entry = cell.enter(parameters, operands, _kept(resets, operands[0].shape))
    decay, entry = decay.astype(scan_dtype), entry.astype(scan_dtype)
    options = {"h0": inputs.h0, "implementation": implementation}
    if direction == "both":
        forward, reverse = resets or (None, None)
        h = bidirectional_scan(decay, entry, forward_reset=forward, reverse_reset=reverse, **options)
        half = h.shape[2] // 2
        last = jnp.concatenate([h[:, -1, :half], h[:, 0, half:]], axis=-1)
    else:
        reset = resets[0] if resets else None
        h = linear_scan(decay, entry, reset=reset, reverse=direction == "reverse", **options)
        last = h[:, 0] if direction == "reverse" else h[:, -1]
    h, last = _as_float32((h, last))
    y = h if gate is None else cell.readout(gate) * h
    return y.astype(jax.tree.leaves((inputs.operands, inputs.gate))[-1].dtype), last


def _kept(resets, shape):
    """Return for each element whether its state is kept; the directions' channels side by side."""
    if resets is None:
        return None
    part = (*shape[:2], shape[2] // len(resets))
    # Not chosen by a mask: that would be an operation an element more than in one direction.
    return jnp.concatenate([jnp.broadcast_to(~reset[..., None], part) for reset in resets], axis=-1)


def _as_float32(tree):
    return jax.tree.map(lambda array: array.astype(jnp.float32), tree)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _kernel(settings, inputs):
    return _kernel_forward(settings, inputs)[0]


def _kernel_forward(settings, inputs):
    y, last, into_chunks = tpu.forward(
        settings.cell, inputs, direction=settings.direction, interpret=settings.interpret
    )
    return (y, last), (inputs._replace(h0=None), into_chunks)


def _kernel_backward(settings, residuals, cotangents):
    inputs, into_chunks = residuals
    found = tpu.backward(
        settings.cell,
        inputs,
        into_chunks,
        *cotangents,
        direction=settings.direction,
        interpret=settings.interpret,
    )
    parameters = tuple(d.astype(p.dtype) for d, p in zip(found.parameters, inputs.parameters, strict=True))
    return (found._replace(parameters=parameters),)


_kernel.defvjp(_kernel_forward, _kernel_backward)
