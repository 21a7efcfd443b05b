"""A plan as text, table and JSON, from a recorded step without compiling."""

import dataclasses
from types import SimpleNamespace

import pytest

from birdie_jax.engine.chips import CHIPS
from birdie_jax.planning import comparison_table, compiling_text, plan_as_json, plan_as_text
from birdie_jax.planning.bounds import rates_of, step_bounds
from birdie_jax.planning.largest_batch import LargestBatch
from birdie_jax.planning.planner import CollectiveTotal, DeviceBytes, RunPlan
from birdie_jax.planning.topology import DeviceLocation, Topology
from hlo_analysis import read_step_costs
from tests.hlo_analysis.recorded_texts import mesh_shape, read_text

MACHINE = "h200:2x2"


@pytest.fixture
def plan() -> RunPlan:
    """Return the plan of a step on two hosts of two H200 each."""
    topology = Topology(MACHINE, CHIPS["h200"], (), ())
    locations = [DeviceLocation(device // 2, ()) for device in range(4)]
    text, rates = read_text("jax_0_10", MACHINE, "sharded_step"), rates_of(topology, locations)
    costs = read_step_costs(text, mesh_shape(MACHINE), rates=rates)
    return RunPlan(
        topology=topology,
        mesh_shape=mesh_shape(MACHINE),
        rows=8,
        length=256,
        vocab_size=384,
        bytes_per_device=DeviceBytes(2**20, 2**21, 100, 2**30, 10, 0, 2.0**31, 141e9),
        costs=costs,
        collectives=[
            CollectiveTotal("all-gather", "fsdp", 2, 12, 6291456.0, 3145728.0, 2e-3, 5e-4, "jit(f)/dot")
        ],
        model_flops=4e9,
        bounds=step_bounds(topology, locations, costs),
        compile_seconds=3.0,
        num_steps=9_000_000,
    )


def refused(plan: RunPlan) -> RunPlan:
    """Return the plan of a step that the compiler refused."""
    needed = DeviceBytes(2**20, 2**21, 100, None, None, None, 200e9, 141e9)
    return dataclasses.replace(plan, bytes_per_device=needed, costs=None, collectives=[], bounds=None)


def test_the_keys_of_the_json_do_not_change(plan):
    found = plan_as_json(plan, LargestBatch(64, False, 1))
    assert set(found) == {
        *("topology", "devices", "mesh", "rows", "length", "fits", "bytes_per_device", "largest_batch"),
        *("flops_per_step", "product_flops_per_step", "model_flops_per_step", "hbm_bytes_per_step"),
        *("collective_bytes_per_step", "collectives", "heaviest_instructions", "compile_seconds", "chip"),
        *("bounds", "bound_by", "tokens_per_second_bound", "mfu_bound", "mfu_bound_memory_and_collectives"),
        *("num_steps", "hours", "price"),
    }
    assert set(found["chip"]) == {
        *("title", "peak_flops", "memory_bytes", "memory_bandwidth", "link_bandwidth"),
        *("network_bandwidth", "dimensions", "full_ring", "most", "sources"),
    }
    (collective,) = found["collectives"]
    assert set(collective) == {
        *("kind", "axes", "devices", "times", "payload_bytes", "sent_bytes"),
        *("link_seconds", "exposed_seconds", "behind"),
    }
    assert set(found["heaviest_instructions"][0]) == {"name", "opcode", "bytes", "flops", "times", "source"}
    assert set(found["bounds"]) == {
        *("products_seconds", "memory_seconds", "link_seconds", "step_seconds"),
        *("program_order_seconds", "nothing_overlaps_seconds", "set_by"),
    }
    assert found["largest_batch"] == {"rows": 64, "verified": False, "compilations": 1}


def test_the_bounds_match_the_rates_of_the_chip(plan):
    bounds = plan_as_json(plan)["bounds"]
    assert bounds["products_seconds"] == pytest.approx(603_979_776 / 989.5e12)
    # Two gathers and the scatter of six layers use NVLink; the sum of gradients uses the network.
    layers = 6 * 512 * 512 * 2
    links = {"NVLink": 3 * layers / 2 / 450e9, "network": layers / 2 / 50e9}
    assert bounds["link_seconds"] == pytest.approx(links)
    parts = (bounds["products_seconds"], bounds["memory_seconds"], links["network"])
    assert bounds["step_seconds"] == pytest.approx(max(parts))
    assert bounds["nothing_overlaps_seconds"] == pytest.approx(sum(parts))
    assert max(parts) <= bounds["program_order_seconds"] <= sum((sum(parts[:2]), *links.values()))
    assert bounds["set_by"] == "network"
    # 8 rows of 256 tokens.
    assert plan_as_json(plan)["tokens_per_second_bound"] == pytest.approx(2048 / max(parts))


def test_unknown_values_of_a_refused_step_are_null(plan):
    found = plan_as_json(refused(plan))
    assert not found["fits"]
    for key in ("flops_per_step", "hbm_bytes_per_step", "collective_bytes_per_step", "bounds", "mfu_bound"):
        assert found[key] is None, key
    assert found["bytes_per_device"]["activations"] is None
    assert "bound_by" not in found
    text = plan_as_text(refused(plan), None)
    assert "fits: NO" in text
    assert "activations kept for the backward pass       unknown" in text
    assert "collectives" not in text


def test_text(plan):
    text = plan_as_text(plan, LargestBatch(64, True, 5))
    assert text.startswith(
        "h200:2x2: 4 x NVIDIA H200, mesh data=2,fsdp=2\nbatch: 8 rows of 256 tokens, 2 rows"
    )
    assert "largest batch that fits: 64 rows (compiled, and the next larger one does not fit)" in text
    assert "  activations kept for the backward pass      1.00 GiB\n" in text
    line = "  all-gather           fsdp                       2      12     6.29 MB     3.15 MB"
    assert f"{line}       2 ms     0.5 ms  jit(f)/dot\n" in text
    assert "  matrix products and kernels              603.98 MFLOP\n" in text


def test_a_table_has_a_line_for_each_plan(plan):
    header, rule, fitting, other = comparison_table([plan, refused(plan)]).splitlines()
    assert len({len(line) for line in (header, rule, fitting, other)}) == 1
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in (fitting, other)]
    assert [row[:4] for row in cells] == [
        ["data=2,fsdp=2", "8", "yes", "2.00"],
        ["data=2,fsdp=2", "8", "NO", "186.26"],
    ]
    assert cells[0][10] == "network"
    assert cells[1][4:15] == ["-"] * 11


def test_hours_and_their_price(plan):
    hours = 9_000_000 * plan_as_json(plan)["bounds"]["step_seconds"] / 3600
    found = plan_as_json(plan, price=2.5)
    assert found["hours"] == pytest.approx({"bound": hours, "half_speed": 2 * hours})
    assert found["price"] == pytest.approx({"bound": 10 * hours, "half_speed": 20 * hours})
    lines = plan_as_text(plan, None, 2.5).splitlines()
    first = lines.index("hours of 9,000,000 steps, 18.43 G tokens")
    assert lines[first + 1].split() == ["hours", "device", "hours", "price"]
    bound, half = (line.split()[-3:] for line in lines[first + 2 : first + 4])
    assert bound == [f"{hours:,.2f}", f"{4 * hours:,.1f}", f"{10 * hours:,.2f}"]
    assert half == [f"{2 * hours:,.2f}", f"{8 * hours:,.1f}", f"{20 * hours:,.2f}"]
    assert "price" not in plan_as_text(plan, None)
    assert "hours: unknown" in plan_as_text(dataclasses.replace(plan, num_steps=None), None)
    assert plan_as_json(dataclasses.replace(plan, num_steps=None))["hours"] is None


@pytest.mark.parametrize(
    ("platform", "programs", "more", "said"),
    [
        ("cpu", 1, 0, "compiling the step for x, which takes about a minute on two cores"),
        ("tpu", 1, 1, "compiling 2 steps for x, which takes about 2 minutes on two cores"),
        ("tpu", 1, 7, "compiling up to 8 steps for x, which takes about 10 minutes on two cores"),
    ],
)
def test_the_number_of_programs_is_reported(platform, programs, more, said):
    device = SimpleNamespace(platform=platform)
    assert compiling_text(Topology("x", None, (device,), ()), programs, more) == said
