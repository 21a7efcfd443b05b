"""The kernels compiled for absent TPUs and GPUs: their memory traffic, and the speed of their loops.

`launch/compilers.sh` fetches the compilers; `tests/run.sh` calls it.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

COMPILERS = os.environ.get("BIRDIE_COMPILERS", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not COMPILERS, reason="BIRDIE_COMPILERS is not set; tests/run.sh fetches the compilers"
    ),
]


V5P, V6E = "v5p:2x2x1", "v6e:2x2"


def run(module, *arguments):
    """Run a benchmark in a separate process, with the settings of the compilers."""
    root = str(Path(__file__).parents[3])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([COMPILERS, root])}
    command = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    output = tmp_path_factory.mktemp("compiled") / "rows.json"
    # One chip with two cores and one with a single core. By default, the benchmark compiles for four chips.
    run("benchmarks.scan_tpu", "--topologies", V5P, V6E, "--brief", V6E, "--beside", "--json", output)
    return json.loads(output.read_text())


@pytest.mark.slow
def test_tpu_kernels_move_few_extra_bytes(rows):
    assert {row["chip"] for row in rows} == {"v5p", "v6e"}
    names = [row["implementation"].split(",")[0] for row in rows]
    assert (names.count("linear_scan"), names.count("gated_scan")) == (2 * 2 * 2 + 2, 2 * 2 + 2)
    for row in rows:
        assert row["copies"] == 0, row
        assert 1 <= row["bytes"] <= 1.05, row


def test_loops_are_as_fast_as_the_memory(rows):
    gated = [row for row in rows if row["implementation"].startswith("gated_scan")]
    linear = [row for row in rows if row not in gated]
    assert all(row["rate"] >= row["needed"] for row in gated), gated
    assert all(row["rate"] >= row["needed"] for row in linear), linear
    rates = {(row["chip"], row["type"], row["pass"]): row["rate"] for row in linear}
    assert rates["v5p", "bfloat16", "forward"] >= 131
    assert rates["v5p", "bfloat16", "backward"] >= 79


@pytest.mark.slow
def test_gpu_kernels_compile_for_an_h200_and_move_few_extra_bytes(tmp_path):
    output = tmp_path / "rows.json"
    run("benchmarks.scan_gpu", "--compile", "--json", output)
    rows = json.loads(output.read_text())
    assert len(rows) == 2 * 2 * 2
    for row in rows:
        assert row["chunks"] == {8: 1, 1: 8}[row["shape"][0]], row
        assert 120 <= row["blocks"] <= 132, row
        assert row["spilled"] == 0, row
        # A block may have at most 227 KiB. 35 KiB in flight keep the memory of a multiprocessor busy.
        assert row["shared_kib"] <= 227, row
        assert row["buffers_kib"] >= 2 * 35, row
        # Only flags and states are temporary. A copy of an operand would be a whole access.
        assert row["temporary"] <= 0.01, row
        assert row["accesses"] <= {"forward": 3.01, "backward": 5.04}[row["pass"]], row
