"""FLOPs of handwritten convolutions, calls and kernels, compared with plain loops."""

import itertools

import pytest

from hlo_analysis.flops import Flops, instruction_flops
from hlo_analysis.parser import parse_hlo
from hlo_analysis.schedule import executed_instructions


def flops(result: str, operation: str, *operands: str, attributes: str = "") -> Flops:
    lines = [f"  %p.{n} = {operand} parameter({n})" for n, operand in enumerate(operands)]
    names = ", ".join(f"%p.{n}" for n in range(len(operands)))
    lines.append(f"  ROOT %r = {result} {operation}({names}), {attributes}")
    module = parse_hlo("\n".join(["ENTRY %main () -> f32[] {", *lines, "}"]))
    (one,) = (
        one for one in executed_instructions(module, lambda one: (0.0,)) if one.instruction.name == "r"
    )
    return instruction_flops(module, one)


# Extents of image, kernel and result along one axis; stride, low padding, dilations of image and taps.
WINDOWS = {
    "plain": (8, 3, 6, 1, 0, 1, 1),
    "padded": (8, 3, 8, 1, 1, 1, 1),
    "strided": (9, 3, 4, 2, 0, 1, 1),
    "dilated taps": (12, 3, 8, 1, 0, 1, 2),
    # The TPU compiler writes the batch of a product like this: each position meets one tap.
    "batch of a product": (5, 5, 5, 4, 0, 5, 1),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_convolutions_count_taps_that_meet_an_input(name):
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
    assert found.dot == 2 * 2 * 7 * 3 * pairs
    assert pairs > 0


def test_a_convolution_counts_a_product_over_two_axes():
    # The TPU compiler's form of dkernel[i, o], a sum over rows and length. Rows are the window, and length
    # is the feature axis.
    found = flops(
        "bf16[64,96,1]{1,0,2}",
        "convolution",
        "bf16[4,32,64]{2,1,0}",
        "bf16[4,32,96]{2,1,0}",
        attributes="window={size=4}, dim_labels=0fb_0io->bf0",
    )
    assert found.dot == 2 * 4 * 32 * 64 * 96


def test_dots_and_cublas_calls_count_the_same_flops():
    configuration = (
        'custom_call_target="__cublas$gemm", backend_config={"gemm_backend_config":'
        '{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]}}}'
    )
    shapes = ("f32[8,32]{1,0}", "f32[32,16]{1,0}")
    dot = flops(
        "f32[8,16]{1,0}", "dot", *shapes, attributes="lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    )
    call = flops("(f32[8,16]{1,0}, s8[64]{0})", "custom-call", *shapes, attributes=configuration)
    assert dot.dot == call.dot == 2 * 8 * 16 * 32


def test_a_triton_kernel_counts_the_flops_of_its_metadata():
    config = r'backend_config={ir = "x{", name = "k", serialized_metadata = "{\22flops\22: \22123\22}"}'
    target = 'custom_call_target="__gpu$xla.gpu.triton"'
    found = flops("f32[8]{0}", "custom-call", "f32[8]{0}", attributes=f"{target}, {config}")
    assert found.dot == 123


def test_a_kernel_counts_its_cost_estimate():
    estimate = 'backend_config={"custom_call_config":{"body":"x","cost_estimate":{"flops":"123"}}}'
    estimated = flops(
        "f32[8]{0}",
        "custom-call",
        "f32[8]{0}",
        attributes=f'custom_call_target="tpu_custom_call", {estimate}',
    )
    without = flops(
        "f32[8]{0}", "custom-call", "f32[8]{0}", attributes='custom_call_target="tpu_custom_call"'
    )
    assert (estimated.dot, without.dot) == (123, 0)


def test_an_asynchronous_fusion_counts_what_it_fuses():
    text = """%fused (a: f32[8]) -> f32[8] {
  %a = f32[8]{0} parameter(0)
  ROOT %sum = f32[8]{0} add(%a, %a)
}
ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[8]{0} parameter(0)
  %start = ((f32[8]{0}), f32[8]{0}, u32[]) fusion-start(%x), kind=kLoop, calls=%fused
  ROOT %done = f32[8]{0} fusion-done(%start)
}"""
    module = parse_hlo(text)
    executed = executed_instructions(module, lambda one: (0.0,))
    assert [instruction_flops(module, one) for one in executed] == [(0, 0), (0, 8)]
