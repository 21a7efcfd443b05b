"""The parser: shapes, the short form of tuple elements, and texts that are not HLO."""

import pytest

from hlo_analysis.module import ArrayShape, parse_shapes
from hlo_analysis.parser import parse_hlo
from hlo_analysis.schedule import executed_instructions
from hlo_analysis.trip_counts import CallFrame, trip_count
from tests.hlo_analysis.handwritten import counter_loop


def test_shapes_are_parsed():
    text = "(bf16[8,2048]{1,0:T(8,128)(2,1)S(1)}, /*index=1*/pred[], s4[3]{0}, f8e4m3fn[2,2]{1,0:S(5)})"
    first, flag, nibbles, quarter = parse_shapes(text)
    assert first == ArrayShape("bf16", (8, 2048), in_main_memory=False)
    assert (first.bytes, flag.bytes, nibbles.bytes, quarter.bytes) == (2 * 8 * 2048, 1, 2, 4)
    assert (flag.in_main_memory, quarter.in_main_memory) == (True, False)


def test_short_forms_of_tuple_elements_are_parsed():
    text = counter_loop(0, 2, "LT", 8)
    lines = [line for line in text.splitlines() if "get-tuple-element(%p" not in line]
    short = {"%i,": "%p.1#0,", "%step": "%p.1#1", "(%x)": "(%p.1#2)", "%j": "%p.2#0"}
    text = "\n".join(lines)
    for long, name in short.items():
        text = text.replace(long, name)
    module = parse_hlo(text)
    assert "#" in text
    assert trip_count(module, CallFrame(module.entry), module.entry.instructions["loop"]) == 4
    (negated,) = (
        one for one in executed_instructions(module, lambda one: (0.0,)) if one.instruction.name == "y"
    )
    assert (negated.executions, negated.operands) == (4, (ArrayShape("f32", (4,)),))


def test_an_instruction_can_span_several_lines():
    """Calls of Pallas kernels, and instructions that read their results, do."""
    text = counter_loop(0, 2, "LT", 8)
    metadata = ', frontend_attributes={kernel_metadata={\n"xprof_metadata":"{\\"block_q\\": 128}"\n}}'
    metadata += ', metadata={op_name="m"}'
    (negation,) = (line for line in text.splitlines() if " negate(" in line)
    broken = text.replace(negation, negation + metadata)
    module, plain = parse_hlo(broken), parse_hlo(text)
    assert {name: list(one.instructions) for name, one in module.computations.items()} == {
        name: list(one.instructions) for name, one in plain.computations.items()
    }
    assert all(one.root.is_root for one in module.computations.values())
    (found,) = (one for each in module.computations.values() for one in each if one.opcode == "negate")
    assert found.op_name == "m"


def test_text_that_is_not_hlo_is_refused():
    with pytest.raises(ValueError, match="HLO text: found no ENTRY computation in 'no program'"):
        parse_hlo("no program")


def test_an_unclosed_parenthesis_is_refused():
    text = "ENTRY %main () -> f32[] {\n  ROOT %x = f32[] add(%a, %b\n}"
    with pytest.raises(ValueError, match=r"HLO text: a parenthesis is not closed in '\(%a, %b'"):
        parse_hlo(text)


def test_an_element_without_index_is_refused():
    module = parse_hlo(
        "ENTRY %main () -> f32[] {\n  ROOT %x = f32[] get-tuple-element(%a)\n}".replace("(%a)", "()")
    )
    with pytest.raises(ValueError, match="get-tuple-element x: found no index"):
        module.entry.root.tuple_index  # noqa: B018
