"""Timelines of handwritten programs, at one FLOP, byte or link byte per second."""

import pytest

from hlo_analysis import Rates, Timeline, parse_hlo, read_timeline
from tests.hlo_analysis.test_collectives import ALONG_FSDP, FUSED, MESH, SLICES

RATES = Rates(1.0, 1.0, lambda collective: {"links": float(collective.payload_bytes)})
THREE_TIMES = 'backend_config={"known_trip_count":{"n":"3"}}'

# In each of 3 iterations, the loop moves 2 * 400 bytes and all-reduces 40 bytes concurrently.
OVERLAPPED = f"""HloModule overlapped

%add (a: f32[], b: f32[]) -> f32[] {{
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}}

%body (state: (s32[], f32[100], f32[10])) -> (s32[], f32[100], f32[10]) {{
  %state = (s32[], f32[100], f32[10]) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %x = f32[100] get-tuple-element(%state), index=1
  %g = f32[10] get-tuple-element(%state), index=2
  %begun = f32[10] all-reduce-start(%g), channel_id=1, {ALONG_FSDP}, to_apply=%add
  %y = f32[100] negate(%x), metadata={{op_name="jit(f)/negate"}}
  %sum = f32[10] all-reduce-done(%begun)
  ROOT %t = (s32[], f32[100], f32[10]) tuple(%i, %y, %sum)
}}

%condition (state.1: (s32[], f32[100], f32[10])) -> pred[] {{
  %state.1 = (s32[], f32[100], f32[10]) parameter(0)
  ROOT %no = pred[] constant(false)
}}

ENTRY %main (start: (s32[], f32[100], f32[10])) -> (s32[], f32[100], f32[10]) {{
  %start = (s32[], f32[100], f32[10]) parameter(0)
  ROOT %loop = (s32[], f32[100], f32[10]) while(%start), condition=%condition, body=%body, {THREE_TIMES}
}}
"""


def timeline(text: str, slices: int = 1) -> Timeline:
    return read_timeline(parse_hlo(text), RATES, MESH, slices)


def test_work_before_its_end_hides_a_collective():
    found = timeline(OVERLAPPED)
    assert found.seconds == 3 * 800
    (transfer,) = found.transfers
    assert (transfer.collective.executions, transfer.seconds, transfer.exposed_seconds) == (3, 120, 0)
    assert transfer.behind == {"jit(f)/negate": 120}


def test_a_collective_longer_than_the_work_is_exposed():
    longer = OVERLAPPED.replace("f32[10]", "f32[500]")
    found = timeline(longer)
    (transfer,) = found.transfers
    assert (transfer.seconds, transfer.exposed_seconds) == (3 * 2000, 3 * (2000 - 800))
    assert found.seconds == 3 * 2000
    # A collective that starts after the work is fully exposed.
    first = '  %y = f32[100] negate(%x), metadata={op_name="jit(f)/negate"}\n'
    begun = next(line for line in longer.splitlines(keepends=True) if "%begun =" in line)
    late = longer.replace(begun + first, first + begun)
    assert timeline(late).seconds == 3 * 2800
    assert timeline(late).transfers[0].exposed_seconds == 3 * 2000


def test_collectives_that_share_links_run_one_after_another():
    second = f"  %also = f32[10] all-reduce-start(%g), channel_id=2, {ALONG_FSDP}, to_apply=%add\n"
    text = OVERLAPPED.replace("  %y =", second + "  %y =").replace("f32[10]", "f32[150]")
    text = text.replace("  ROOT %t =", "  %other = f32[150] all-reduce-done(%also)\n  ROOT %t =")
    found = timeline(text)
    assert found.seconds == 3 * 2 * 600
    assert [transfer.exposed_seconds for transfer in found.transfers] == [0, 3 * 400]


def test_a_collective_in_parts_runs_from_its_first_fusion_to_its_last():
    found = timeline(FUSED)
    scattered, *summed, gathered = found.transfers
    # The reduce-scatter and the two sums run alone.
    assert (scattered.seconds, scattered.exposed_seconds) == (1600, 1600)
    assert [one.exposed_seconds for one in summed] == [200, 200]
    # The fusion moves 2,000 bytes while 1,600 arrive.
    assert (gathered.collective.kind, gathered.seconds, gathered.exposed_seconds) == ("all-gather", 1600, 0)
    assert max(gathered.behind.values()) == 1600


def test_a_receive_waits_for_the_other_slice():
    text = SLICES.replace("KIND", '_xla_megascale_transfer_type="ALL_REDUCE"')
    (transfer,) = timeline(text, slices=2).transfers
    assert transfer.seconds == transfer.exposed_seconds == 400


@pytest.mark.parametrize("text", [OVERLAPPED, FUSED])
def test_an_infinite_link_exposes_nothing(text):
    rates = RATES._replace(busy_seconds=lambda collective: {})
    found = read_timeline(parse_hlo(text), rates, MESH)
    assert sum(one.exposed_seconds for one in found.transfers) == 0
