"""The search for the fastest step that fits, on plans with known memory and time."""

import jax
import pytest

from birdie_jax.config import parse_config
from birdie_jax.engine.chips import CHIPS
from birdie_jax.models.rematerialisation import LEVELS
from birdie_jax.planning.bounds import StepBounds
from birdie_jax.planning.fastest_step import frontier, search_steps
from birdie_jax.planning.plan_output import search_row, search_table
from birdie_jax.planning.planner import DeviceBytes, RunPlan
from birdie_jax.planning.topology import Topology
from birdie_jax.resolve import resolve_run
from tests.micro_config import get_config

TOPOLOGY = Topology("v5p:1x1x1", CHIPS["v5p"], (), ())
# The bytes of a whole batch and the time of a step, by level; a part of a batch needs its share.
BYTES = dict(zip(LEVELS, (1000, 700, 500, 300, 100, 60), strict=True))
SECONDS = dict(zip(LEVELS, (1.0, 1.1, 1.2, 1.3, 1.4, 1.5), strict=True))


def plan_within(available):
    """Return a planner from the tables above; each further part of a batch costs 5 %."""

    def plan(run, topology):
        level, parts = run.config.model.remat, run.config.train.accumulation_steps
        needed = DeviceBytes(0, 0, 0, 0, 0, 0, BYTES[level] / parts, available)
        bounds = StepBounds(SECONDS[level] * (1 + 0.05 * (parts - 1)), 0.5, {})
        shape = dict(run.mesh.shape)
        return RunPlan(topology, shape, 4, 128, 300, needed, None, [], 1e14, bounds, 1.0)

    return plan


@pytest.fixture(scope="module")
def run():
    config = get_config("fixed")
    config.batching.rows = 4
    return resolve_run(parse_config(config), 300, jax.devices()[:1])


def test_no_further_level_is_compiled_if_all_fits(run):
    found = list(search_steps([run], TOPOLOGY, plan_within(1000)))
    tried = [(one.remat, one.accumulation_steps, one.seconds) for one in found]
    assert tried == [("none", 1, 1.0), ("recurrences", 1, 1.1)]


def test_a_level_with_parts_is_compared_with_one_without(run):
    found = list(search_steps([run], TOPOLOGY, plan_within(520)))
    tried = [(one.remat, one.accumulation_steps) for one in found]
    assert tried == [("none", 1), ("none", 2), ("recurrences", 1), ("recurrences", 2), ("dots", 1)]
    best = frontier(found)
    assert [(one.remat, one.accumulation_steps) for one in best] == [("none", 2), ("recurrences", 2)]
    assert [one.seconds for one in best] == sorted(one.seconds for one in best)
    row = search_row(best[0])
    assert row["fits"] and row["bound ms"] == pytest.approx(1050) and row["parts"] == 2
    assert row["set by"] == "products" and 0 < row["MFU"] == row["MFU, everything overlapped"] < 1
    assert "| none " in search_table(found) and "| - " in search_table(found)


def test_the_frontier_is_empty_if_nothing_fits(run):
    found = list(search_steps([run], TOPOLOGY, plan_within(10)))
    assert {one.remat for one in found} == set(LEVELS) and max(one.accumulation_steps for one in found) == 4
    assert frontier(found) == []
