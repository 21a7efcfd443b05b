"""The kernels compiled for an absent TPU and GPU: their memory traffic, and the speed of their loops.

`launch/compilers.sh` fetches the compilers; `tests/run.sh` calls it.
"""

import json

import pytest

from tests.pallas_kernels.linear_scan import test_compiled as of_linear_scan

pytestmark = of_linear_scan.pytestmark
# Elements per cycle on a v5e, a tenth below the measured rates.
LEAST_RATE = {"forward": 19, "backward": 6.9}
MAX_OVER_LEAST = {"forward": 1.1, "both": 1.15}


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    output = tmp_path_factory.mktemp("compiled") / "rows.json"
    of_linear_scan.run("benchmarks.selective_scan_tpu", "--topologies", "v5e:2x2", "--json", output)
    return json.loads(output.read_text())


@pytest.mark.slow
def test_tpu_kernels_move_few_extra_bytes(rows):
    assert len(rows) == 2 * 2
    for row in rows:
        assert row["copies"] == 0, row
        assert 1 <= row["bytes"] <= {"forward": 1.11, "backward": 1.12}[row["pass"]], row


def test_loops_reach_the_minimum_rate(rows):
    for row in rows:
        assert row["rate"] >= LEAST_RATE[row["pass"]], row


def test_the_vector_unit_is_rarely_idle(rows):
    limits = {"forward": 1.4, "backward": 1.25}
    assert all(row["vector_limit"] <= limits[row["pass"]] * row["rate"] for row in rows), rows


@pytest.mark.slow
def test_gpu_kernels_compile_for_an_h200_and_move_few_extra_bytes(tmp_path):
    output = tmp_path / "rows.json"
    of_linear_scan.run("benchmarks.selective_scan_gpu", "--compile", "--json", output)
    rows = json.loads(output.read_text())
    assert [(row["type"], row["pass"]) for row in rows] == [
        (dtype, name) for dtype in ("bfloat16", "float32") for name in ("forward", "backward")
    ]
    for row in rows:
        assert row["spilled"] == 0, row
        assert row["shared_kib"] <= {"forward": 113, "backward": 227}[row["pass"]], row
        # Only the columns and the sums of the blocks of channels are temporary, not a copy of an operand.
        assert row["temporary"] <= 0.55, row
    for forward, backward in (rows[:2], rows[2:]):
        assert forward["accesses"] <= MAX_OVER_LEAST["forward"] * forward["least"]
        total, least = (forward[key] + backward[key] for key in ("accesses", "least"))
        assert total <= MAX_OVER_LEAST["both"] * least
