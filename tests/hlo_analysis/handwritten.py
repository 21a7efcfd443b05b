"""Handwritten HLO texts with known executions."""

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

_COUNTER = """HloModule counter

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


def counter_loop(first: int, step: int, direction: str, limit: int) -> str:
    """Return a program with a loop named "loop" that counts from `first` by `step` to a limit."""
    text = _COUNTER
    values = {"FIRST": first, "STEP": step, "DIRECTION": direction, "LIMIT": limit}
    for name, value in values.items():
        text = text.replace(name, str(value))
    return text
