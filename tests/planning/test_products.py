"""FLOPs of convolutions, calls and kernels, written by hand, beside plain loops and XLA's own count."""

import itertools

import jax
import jax.numpy as jnp
import pytest

from birdie_jax.planning.execution import executed
from birdie_jax.planning.products import flops_of
from birdie_jax.planning.program_text import parse_program
from birdie_jax.planning.reading import read_program

ONE_DEVICE = {"data": 1, "fsdp": 1, "tensor": 1, "sequence": 1}


def flops(result, operation, *operands, attributes=""):
    lines = [f"  %p.{n} = {operand} parameter({n})" for n, operand in enumerate(operands)]
    names = ", ".join(f"%p.{n}" for n in range(len(operands)))
    lines.append(f"  ROOT %r = {result} {operation}({names}), {attributes}")
    program = parse_program("\n".join(["ENTRY %main () -> f32[] {", *lines, "}"]))
    (one,) = (one for one in executed(program, lambda one: (0.0,)) if one.instruction.name == "r")
    return flops_of(program, one)


# image, kernel and result extents of one axis; stride, padding before, dilations of image and taps.
WINDOWS = {
    "plain": (8, 3, 6, 1, 0, 1, 1),
    "padded": (8, 3, 8, 1, 1, 1, 1),
    "strided": (9, 3, 4, 2, 0, 1, 1),
    "dilated taps": (12, 3, 8, 1, 0, 1, 2),
    # How a TPU's compiler writes the batch of a product: each position meets one tap.
    "batch of a product": (5, 5, 5, 4, 0, 5, 1),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_convolutions_count_pairs_that_meet_a_number(name):
    image, taps, outputs, stride, pad, image_dilation, tap_dilation = WINDOWS[name]
    pairs = 0
    for position, tap in itertools.product(range(outputs), range(taps)):
        at = position * stride - pad + tap * tap_dilation
        pairs += at % image_dilation == 0 and 0 <= at // image_dilation < image
    found = flops(
        f"f32[2,{outputs},7]{{2,1,0}}",
        "convolution",
        f"f32[2,{image},3]{{2,1,0}}",
        f"f32[{taps},3,7]{{2,1,0}}",
        attributes=f"window={{size={taps} stride={stride} pad={pad}_{pad} lhs_dilate={image_dilation} "
        f"rhs_dilate={tap_dilation}}}, dim_labels=b0f_0io->b0f",
    )
    assert found.products == 2 * 2 * 7 * 3 * pairs
    assert pairs > 0


def test_a_product_that_contracts_two_axes_as_a_tpu_writes_it():
    # dkernel[i, o] = sum over rows and length: rows are the window, length the features.
    found = flops(
        "bf16[64,96,1]{1,0,2}",
        "convolution",
        "bf16[4,32,64]{2,1,0}",
        "bf16[4,32,96]{2,1,0}",
        attributes="window={size=4}, dim_labels=0fb_0io->bf0",
    )
    assert found.products == 2 * 4 * 32 * 64 * 96


def test_dots_and_cublas_calls():
    configuration = (
        'custom_call_target="__cublas$gemm", backend_config={"gemm_backend_config":'
        '{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]}}}'
    )
    shapes = ("f32[8,32]{1,0}", "f32[32,16]{1,0}")
    dot = flops(
        "f32[8,16]{1,0}", "dot", *shapes, attributes="lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    )
    call = flops("(f32[8,16]{1,0}, s8[64]{0})", "custom-call", *shapes, attributes=configuration)
    assert dot.products == call.products == 2 * 8 * 16 * 32


def test_a_kernel_is_taken_at_its_word():
    estimate = 'backend_config={"custom_call_config":{"body":"x","cost_estimate":{"flops":"123"}}}'
    told = flops(
        "f32[8]{0}",
        "custom-call",
        "f32[8]{0}",
        attributes=f'custom_call_target="tpu_custom_call", {estimate}',
    )
    silent = flops(
        "f32[8]{0}", "custom-call", "f32[8]{0}", attributes='custom_call_target="tpu_custom_call"'
    )
    assert (told.products, silent.products) == (123, 0)


def test_a_layer_without_loops_counts_as_xla_counts():
    def layer(x, w, v):
        h = jax.nn.relu(x @ w) / jnp.sqrt(x.shape[-1])
        return jnp.sum((h @ v + x) ** 2)

    x, w = jnp.ones((16, 32)), jnp.ones((32, 64))
    compiled = jax.jit(jax.grad(layer, argnums=(1, 2))).lower(x, w, w.T).compile()
    found = read_program(compiled.as_text(), ONE_DEVICE).flops
    assert found.products == 2 * 16 * 32 * 64 * 5
    assert sum(found) == pytest.approx(compiled.cost_analysis()["flops"], rel=0.02)
