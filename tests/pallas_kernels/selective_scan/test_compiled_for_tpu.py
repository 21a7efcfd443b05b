"""The kernels compiled for a TPU that is not there: what they move, and how fast their loops are.

`launch/compilers.sh` fetches the compiler; `tests/run.sh` calls it.
"""

import json

import pytest

from tests.pallas_kernels.linear_scan import test_compiled as of_linear_scan

pytestmark = of_linear_scan.pytestmark
# Elements a cycle on a v5e, a tenth below what was measured.
LEAST_RATE = {"forward": 12.5, "backward": 3.8}


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    output = tmp_path_factory.mktemp("compiled") / "rows.json"
    of_linear_scan.run("benchmarks.selective_scan_tpu", "--topologies", "v5e:2x2", "--json", output)
    return json.loads(output.read_text())


@pytest.mark.slow
def test_the_kernels_move_little_more_than_they_must(rows):
    assert len(rows) == 2 * 2
    for row in rows:
        assert row["copies"] == 0, row
        assert 1 <= row["bytes"] <= {"forward": 1.05, "backward": 1.1}[row["pass"]], row


def test_the_loops_are_as_fast_as_they_were(rows):
    for row in rows:
        assert row["rate"] >= LEAST_RATE[row["pass"]], row
