"""Memory traffic of handwritten instructions."""

import pytest

from hlo_analysis.memory_traffic import memory_traffic
from hlo_analysis.parser import parse_hlo
from hlo_analysis.schedule import executed_instructions

PROGRAM = """HloModule traffic

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}

%takes_a_layer (w: f32[24,100], i.1: s32[], v: f32[100]) -> f32[100] {
  %w = f32[24,100]{1,0} parameter(0)
  %i.1 = s32[] parameter(1)
  %v = f32[100]{0} parameter(2)
  %zero = s32[] constant(0)
  %taken = f32[1,100]{1,0} dynamic-slice(%w, %i.1, %zero), dynamic_slice_sizes={1,100}
  %flat = f32[100]{0} bitcast(%taken)
  ROOT %sum = f32[100]{0} add(%flat, %v)
}

%puts_a_layer (stack: f32[24,100], i.2: s32[], u: f32[100]) -> f32[24,100] {
  %stack = f32[24,100]{1,0} parameter(0)
  %i.2 = s32[] parameter(1)
  %u = f32[100]{0} parameter(2)
  %zero.1 = s32[] constant(0)
  %row = f32[1,100]{1,0} bitcast(%u)
  ROOT %put = f32[24,100]{1,0} dynamic-update-slice(%stack, %row, %i.2, %zero.1)
}

%nested (w.1: f32[24,100], i.3: s32[], v.1: f32[100]) -> (f32[100], f32[100]) {
  %w.1 = f32[24,100]{1,0} parameter(0)
  %i.3 = s32[] parameter(1)
  %v.1 = f32[100]{0} parameter(2)
  %inner = f32[100]{0} fusion(%w.1, %i.3, %v.1), kind=kLoop, calls=%takes_a_layer
  %minus = f32[100]{0} negate(%v.1)
  ROOT %both = (f32[100]{0}, f32[100]{0}) tuple(%inner, %minus)
}

%turned (t.1: f32[100]) -> f32[100,1] {
  %t.1 = f32[100]{0} parameter(0)
  ROOT %t.2 = f32[100,1]{1,0} bitcast(%t.1)
}

%reads_what_is_turned (t.3: f32[100], t.4: f32[100]) -> f32[100,1] {
  %t.3 = f32[100]{0} parameter(0)
  %t.4 = f32[100]{0} parameter(1)
  %t.5 = f32[100,1]{1,0} fusion(%t.3), kind=kLoop, calls=%turned
  %t.6 = f32[100,1]{1,0} bitcast(%t.4)
  ROOT %t.7 = f32[100,1]{1,0} multiply(%t.5, %t.6)
}

%copies (t.8: f32[100]) -> f32[100] {
  %t.8 = f32[100]{0} parameter(0)
  ROOT %t.9 = f32[100]{0} copy(%t.8)
}

ENTRY %main (p: f32[24,100], i: s32[], x: f32[100], on_chip: f32[100]) -> f32[24,100] {
  %p = f32[24,100]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %x = f32[100]{0} parameter(2)
  %on_chip = f32[100]{0:S(1)} parameter(3)
  %z = s32[] constant(0)
  %sliced = f32[1,100]{1,0} dynamic-slice(%p, %i, %z), dynamic_slice_sizes={1,100}
  %fetched = f32[1,100]{1,0:S(1)} dynamic-slice(%p, %i, %z), dynamic_slice_sizes={1,100}
  %layer = f32[100]{0} fusion(%p, %i, %x), kind=kLoop, calls=%takes_a_layer
  %two = (f32[100]{0}, f32[100]{0:S(1)}) fusion(%p, %i, %x), kind=kLoop, calls=%nested
  %product = f32[100,1]{1,0} fusion(%x, %layer), kind=kOutput, calls=%reads_what_is_turned
  %copied = f32[100]{0} fusion(%x), kind=kLoop, calls=%copies
  %twice = f32[100]{0} add(%x, %x)
  %scratch = f32[100]{0:S(1)} add(%x, %on_chip)
  %updated = f32[24,100]{1,0} custom-call(%x, %p), output_to_operand_aliasing={{}: (1, {})}, KERNEL
  %kernel = f32[100]{0} custom-call(%x), KERNEL
  %total = f32[] reduce(%x, %z), dimensions={0}, to_apply=%add
  ROOT %stacked = f32[24,100]{1,0} fusion(%p, %i, %x), kind=kLoop, calls=%puts_a_layer
}
""".replace("KERNEL", 'backend_config={"cost_estimate":{"flops":"0","bytes_accessed":"1200"}}')
LAYER = 400
EXPECTED = {
    "sliced": 2 * LAYER,
    "fetched": LAYER,
    "layer": 4 + 3 * LAYER,
    # The nested fusion slices a layer; its second result stays on the chip.
    "two": 4 + 3 * LAYER,
    # The user of a nested fusion that only bitcasts does the read.
    "product": 3 * LAYER,
    "copied": 2 * LAYER,
    "twice": 2 * LAYER,
    "scratch": LAYER,
    # A kernel that updates a layer in place moves what it estimates.
    "updated": 1200,
    "kernel": 2 * LAYER,
    "total": LAYER + 4 + 4,
    "stacked": 4 + 2 * LAYER,
}


@pytest.mark.parametrize("name", EXPECTED)
def test_instructions_move_the_expected_bytes(name):
    module = parse_hlo(PROGRAM)
    found = {one.instruction.name: one for one in executed_instructions(module, lambda one: (0.0,))}
    assert memory_traffic(module, found[name]) == EXPECTED[name]


def test_instructions_that_name_data_move_nothing():
    module = parse_hlo(PROGRAM)
    for one in executed_instructions(module, lambda one: (0.0,)):
        if one.instruction.name not in EXPECTED:
            assert memory_traffic(module, one) == 0, one.instruction.name
