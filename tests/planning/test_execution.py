"""Programs written by hand, of which it is known what they execute and how often."""

import pytest

from birdie_jax.planning.execution import executed
from birdie_jax.planning.program_text import ArrayType, parse_program, parse_types
from birdie_jax.planning.trip_counts import Scope, UnknownTripCount, trip_count

LOOPS = """HloModule loops, is_scheduled=true

%inner_body (p.1: (s32[], f32[4])) -> (s32[], f32[4]) {
  %p.1 = (s32[], f32[4]{0}) parameter(0)
  %i.1 = s32[] get-tuple-element(%p.1), index=0
  %x.1 = f32[4]{0} get-tuple-element(%p.1), index=1
  %one = s32[] constant(1)
  %next = s32[] add(%i.1, %one)
  %twice = f32[4]{0} add(%x.1, %x.1), metadata={op_name="jit(f)/while (inner)/add"}
  ROOT %t.1 = (s32[], f32[4]{0}) tuple(%next, %twice)
}

%compared (p.2: s32[], p.3: s32[]) -> pred[] {
  %p.2 = s32[] parameter(0)
  %p.3 = s32[] parameter(1)
  ROOT %less = pred[] compare(%p.2, %p.3), direction=LT
}

%inner_condition (p.4: (s32[], f32[4])) -> pred[] {
  %p.4 = (s32[], f32[4]{0}) parameter(0)
  %i.2 = s32[] get-tuple-element(%p.4), index=0
  %bound = s32[] constant(5)
  ROOT %fused = pred[] fusion(%i.2, %bound), kind=kLoop, calls=%compared
}

%outer_body (p.5: (s32[], f32[4])) -> (s32[], f32[4]) {
  %p.5 = (s32[], f32[4]{0}) parameter(0)
  %x.2 = f32[4]{0} get-tuple-element(%p.5), index=1
  %zero = s32[] constant(0)
  %t.3 = (s32[], f32[4]{0}) tuple(%zero, %x.2)
  ROOT %inner = (s32[], f32[4]{0}) while(%t.3), condition=%inner_condition, body=%inner_body
}

%outer_condition (p.6: (s32[], f32[4])) -> pred[] {
  %p.6 = (s32[], f32[4]{0}) parameter(0)
  ROOT %true = pred[] constant(true)
}

%small (p.7: f32[4]) -> f32[4] {
  %p.7 = f32[4]{0} parameter(0)
  ROOT %a = f32[4]{0} negate(%p.7)
}

%large (p.8: f32[4]) -> f32[4] {
  %p.8 = f32[4]{0} parameter(0)
  %b.1 = f32[4]{0} negate(%p.8)
  ROOT %b.2 = f32[4]{0} negate(%b.1)
}

%wrapped (p.9: f32[4]) -> f32[4] {
  %p.9 = f32[4]{0} parameter(0)
  ROOT %copied = f32[4]{0} copy(%p.9)
}

ENTRY %main (start: s32[], x: f32[4], choice: pred[]) -> f32[4] {
  %start = s32[] parameter(0)
  %x = f32[4]{0} parameter(1)
  %choice = pred[] parameter(2)
  %t.2 = (s32[], f32[4]{0}) tuple(%start, %x)
  %outer = (s32[], f32[4]{0}) while(%t.2), condition=%outer_condition, body=%outer_body, TRIPS
  %y = f32[4]{0} get-tuple-element(%outer), index=1
  %z = f32[4]{0} conditional(%choice, %y, %y), true_computation=%small, false_computation=%large
  %begun = ((f32[4]{0}), f32[4]{0}, u32[]) async-start(%z), calls=%wrapped
  %going = ((f32[4]{0}), f32[4]{0}, u32[]) async-update(%begun)
  %ended = f32[4]{0} async-done(%going)
  %fetched = (f32[4]{0:S(1)}, f32[4]{0}, u32[]) copy-start(%ended)
  ROOT %done = f32[4]{0:S(1)} copy-done(%fetched)
}
""".replace("TRIPS", 'backend_config={"known_trip_count":{"n":"3"}}')


def times_of(text):
    found = executed(parse_program(text), lambda one: (float(one.times),))
    return {
        one.instruction.name: one
        for one in found
        if one.instruction.opcode not in ("parameter", "constant")
    }


def test_loops_multiply_what_is_in_them():
    found = times_of(LOOPS)
    assert found["twice"].times == 3 * 5
    assert found["fused"].times == 3 * 5
    assert found["twice"].instruction.source == "jit(f)/while (inner)/add"


def test_of_a_conditional_the_branch_that_costs_most_counts():
    found = times_of(LOOPS)
    assert "a" not in found
    assert found["b.1"].times == found["b.2"].times == 1


def test_asynchronous_instructions_count_once_with_the_type_of_their_end():
    found = times_of(LOOPS)
    assert found["copied"].times == 1
    assert not {"begun", "going", "ended", "done"} & set(found)
    assert found["fetched"].types == (ArrayType("f32", (4,), in_main_memory=False),)


def test_a_loop_that_does_not_tell_its_turns_is_refused_by_name():
    program = parse_program(LOOPS.replace("known_trip_count", "unknown"))
    with pytest.raises(UnknownTripCount, match=r"loop outer.*outer_condition"):
        trip_count(program, Scope(program.entry), program.entry.instructions["outer"])


def test_types():
    text = "(bf16[8,2048]{1,0:T(8,128)(2,1)S(1)}, /*index=1*/pred[], s4[3]{0}, f8e4m3fn[2,2]{1,0:S(5)})"
    first, flag, nibbles, quarter = parse_types(text)
    assert first == ArrayType("bf16", (8, 2048), in_main_memory=False)
    assert (first.bytes, flag.bytes, nibbles.bytes, quarter.bytes) == (2 * 8 * 2048, 1, 2, 4)
    assert (flag.in_main_memory, quarter.in_main_memory) == (True, False)


def test_what_is_no_program_is_refused():
    with pytest.raises(ValueError, match="has an entry; found 'no program'"):
        parse_program("no program")


COUNTER = """HloModule counter

%next (i.1: s32[], by: s32[]) -> s32[] {
  %i.1 = s32[] parameter(0)
  %by = s32[] parameter(1)
  ROOT %sum = s32[] add(%i.1, %by)
}

%body (p.1: (s32[], s32[], f32[4])) -> (s32[], s32[], f32[4]) {
  %p.1 = (s32[], s32[], f32[4]{0}) parameter(0)
  %i = s32[] get-tuple-element(%p.1), index=0
  %step = s32[] get-tuple-element(%p.1), index=1
  %x = f32[4]{0} get-tuple-element(%p.1), index=2
  %more = s32[] fusion(%i, %step), kind=kLoop, calls=%next
  %y = f32[4]{0} negate(%x)
  ROOT %t.1 = (s32[], s32[], f32[4]{0}) tuple(%more, %step, %y)
}

%condition (p.2: (s32[], s32[], f32[4])) -> pred[] {
  %p.2 = (s32[], s32[], f32[4]{0}) parameter(0)
  %j = s32[] get-tuple-element(%p.2), index=0
  %limit = s32[] constant(LIMIT)
  ROOT %goes_on = pred[] compare(%j, %limit), direction=DIRECTION
}

ENTRY %main (x.1: f32[4]) -> f32[4] {
  %x.1 = f32[4]{0} parameter(0)
  %first = s32[] constant(FIRST)
  %by.1 = s32[] constant(STEP)
  %t.2 = (s32[], s32[], f32[4]{0}) tuple(%first, %by.1, %x.1)
  %loop = (s32[], s32[], f32[4]{0}) while(%t.2), condition=%condition, body=%body
  ROOT %r = f32[4]{0} get-tuple-element(%loop), index=2
}
"""


@pytest.mark.parametrize(
    ("first", "step", "direction", "limit", "turns"),
    [
        (0, 1, "LT", 7, 7),
        (0, 2, "LT", 8, 4),
        (1, 3, "LT", 8, 3),
        (0, 2, "LE", 8, 5),
        (8, -2, "GT", 0, 4),
        (8, -1, "GE", 0, 9),
        (0, 2, "NE", 8, 4),
        (9, 1, "LT", 7, 0),
    ],
)
def test_turns_follow_from_start_step_and_limit(first, step, direction, limit, turns):
    values = {"FIRST": first, "STEP": step, "DIRECTION": direction, "LIMIT": limit}
    text = COUNTER
    for name, value in values.items():
        text = text.replace(name, str(value))
    program = parse_program(text)
    assert trip_count(program, Scope(program.entry), program.entry.instructions["loop"]) == turns


def test_elements_of_tuples_may_be_written_in_the_short_way():
    text = (
        COUNTER.replace("FIRST", "0").replace("STEP", "2").replace("DIRECTION", "LT").replace("LIMIT", "8")
    )
    lines = [line for line in text.splitlines() if "get-tuple-element(%p" not in line]
    short = {"%i,": "%p.1#0,", "%step": "%p.1#1", "(%x)": "(%p.1#2)", "%j": "%p.2#0"}
    text = "\n".join(lines)
    for long, name in short.items():
        text = text.replace(long, name)
    program = parse_program(text)
    assert "#" in text
    assert trip_count(program, Scope(program.entry), program.entry.instructions["loop"]) == 4
    (negated,) = (one for one in executed(program, lambda one: (0.0,)) if one.instruction.name == "y")
    assert (negated.times, negated.operands) == (4, (ArrayType("f32", (4,)),))


def test_a_counter_that_never_reaches_its_limit_is_refused():
    text = COUNTER.replace("FIRST", "0").replace("STEP", "-1").replace("DIRECTION", "LT")
    program = parse_program(text.replace("LIMIT", "7"))
    with pytest.raises(UnknownTripCount, match="loop loop: "):
        trip_count(program, Scope(program.entry), program.entry.instructions["loop"])
