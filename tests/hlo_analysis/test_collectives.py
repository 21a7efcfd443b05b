"""Handwritten collectives in the form of the TPU compiler."""

from hlo_analysis import StepCosts, read_step_costs

MESH = {"data": 2, "fsdp": 4, "tensor": 1, "sequence": 1}
ALONG_FSDP = "replica_groups=mesh['a'=2,'b'=4] {'b'}, use_global_device_ids=true"

FUSED = f"""HloModule fused

%add (a: f32[], b: f32[]) -> f32[] {{
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}}

%all-reduce-scatter (g: f32[400]) -> f32[100] {{
  %g = f32[400] parameter(0)
  %sum = f32[400] all-reduce(%g), channel_id=1, {ALONG_FSDP}, to_apply=%add
  %id = u32[] partition-id()
  ROOT %own = f32[100] dynamic-slice(%sum, %id), dynamic_slice_sizes={{100}}
}}

%start (w.1: f32[100]) -> (f32[100], f32[400], u32[]) {{
  %w.1 = f32[100] parameter(0)
  %gathered.1 = f32[400] all-gather(%w.1), channel_id=2, {ALONG_FSDP}, dimensions={{0}}
  ROOT %begun = (f32[100], f32[400], u32[]{{:S(2)}}) custom-call(%gathered.1), target="AsyncCollectiveStart"
}}

%step (w.2: f32[100], whole.2: f32[400], x.2: f32[50]) -> (f32[50], f32[100], f32[400], f32[400]) {{
  %w.2 = f32[100] parameter(0)
  %whole.2 = f32[400] parameter(1)
  %x.2 = f32[50] parameter(2)
  %gathered.2 = f32[400] all-gather(%w.2), channel_id=2, {ALONG_FSDP}, dimensions={{0}}
  %y = f32[50] add(%x.2, %x.2)
  ROOT %t = (f32[50], f32[100], f32[400], f32[400]) tuple(%y, %w.2, %whole.2, %gathered.2)
}}

%done (w.3: f32[100], whole.3: f32[400]) -> f32[400] {{
  %w.3 = f32[100] parameter(0)
  %whole.3 = f32[400] parameter(1)
  %gathered.3 = f32[400] all-gather(%w.3), channel_id=2, {ALONG_FSDP}, dimensions={{0}}
  ROOT %ended = f32[400] custom-call(%w.3, %whole.3, %gathered.3), target="AsyncCollectiveDone"
}}

ENTRY %main (grads: f32[400], w: f32[100], x: f32[50]) -> f32[400] {{
  %grads = f32[400] parameter(0)
  %w = f32[100] parameter(1)
  %x = f32[50] parameter(2)
  %shard = f32[100] fusion(%grads), kind=kCustom, calls=%all-reduce-scatter
  %first = (f32[100], f32[400], u32[]{{:S(2)}}) fusion(%w), kind=kCustom, calls=%start
  %on_its_way = f32[400] get-tuple-element(%first), index=1
  %second = (f32[50], f32[100], f32[400], f32[400]) fusion(%w, %on_its_way, %x), kind=kOutput, calls=%step
  %still = f32[400] get-tuple-element(%second), index=2
  %other = f32[50] all-reduce(%x), channel_id=2, {ALONG_FSDP}, to_apply=%add
  %another = f32[50] all-reduce(%other), channel_id=2, {ALONG_FSDP}, to_apply=%add
  ROOT %third = f32[400] fusion(%w, %still), kind=kCustom, calls=%done
}}
"""

SLICES = """HloModule slices

ENTRY %main (x: f32[100]) -> f32[100] {
  %x = f32[100] parameter(0)
  %token = token[] after-all()
  %sent = (f32[100], u32[]{:S(2)}, token[]) send(%x, %token), channel_id=1, attributes={KIND}
  %received = (f32[100], u32[]{:S(2)}, token[]) recv(%token), channel_id=2, attributes={KIND}
  %sent_all = token[] send-done(%sent), channel_id=1
  %there = (f32[100], token[]) recv-done(%received), channel_id=2
  ROOT %y = f32[100] get-tuple-element(%there), index=0
}
"""


def summary(costs: StepCosts) -> list[tuple[str, str, int, int, int]]:
    return [
        (one.kind, one.groups.label, one.groups.size, one.executions, one.payload_bytes)
        for one in costs.collectives
    ]


def test_fused_collectives_count_once_with_their_kind():
    costs = read_step_costs(FUSED, MESH)
    assert summary(costs) == [
        ("reduce-scatter", "fsdp", 4, 1, 1600),
        ("all-gather", "fsdp", 4, 1, 1600),
        # These share its channel but are not parts of it.
        ("all-reduce", "fsdp", 4, 1, 200),
        ("all-reduce", "fsdp", 4, 1, 200),
    ]
    # The gradient and its shard, the parameter and its gathered copy, the other work, both all-reduces.
    assert costs.traffic_bytes == (1600 + 400) + (400 + 1600) + 2 * 200 + 2 * 400


def test_slices_exchange_over_the_network():
    for kind, name, payload in (("ALL_REDUCE", "all-reduce", 400), ("ALL_GATHER", "all-gather", 800)):
        text = SLICES.replace("KIND", f'_xla_megascale_transfer_type="{kind}"')
        costs = read_step_costs(text, MESH, slices=2)
        assert summary(costs) == [(name, "data", 2, 1, payload)]
        assert costs.collectives[0].groups.members.tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]
        assert costs.traffic_bytes == 2 * 400
