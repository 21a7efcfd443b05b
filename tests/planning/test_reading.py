"""Programs of which all is known, compiled for eight fake devices and read."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PRODUCT = 2 * 32 * 64 * 64
# Of a device: 4 rows of 100 numbers.
OWN = 4 * 100 * 4


@pytest.fixture(scope="module")
def told():
    environment = {
        **os.environ,
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "JAX_PLATFORMS": "cpu",
    }
    command = [sys.executable, "-m", "tests.planning.programs_on_devices"]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_what_is_scanned_counts_as_often_as_it_is_executed(told):
    assert told["scanned"]["products"] == 7 * PRODUCT
    assert told["nested"]["products"] == 3 * 7 * PRODUCT
    # XLA itself counts a loop's body once.
    assert told["scanned"]["xla"] < 1.1 * PRODUCT


def test_flops_are_those_that_xla_counts_where_there_is_no_loop(told):
    one = told["unrolled"]
    assert one["products"] == 7 * PRODUCT
    assert one["products"] + one["elementwise"] == pytest.approx(one["xla"], rel=0.01)


def test_what_a_loop_keeps_for_the_backward_loop_is_found(told):
    # The input of each layer and the cosine of its product, or the product: [6, 32, 64] twice.
    assert told["kept"]["activations"] == 2 * 6 * 32 * 64 * 4
    assert told["unrolled"]["activations"] == 0
    # Each layer's product, and two for its gradients; that of the first layer's input is not asked for.
    assert 3 * 6 * PRODUCT - PRODUCT <= told["kept"]["products"] <= 3 * 6 * PRODUCT


EXPECTED = {
    "all-reduce": ("all-reduce", "tensor", 2, 1, OWN, OWN),
    "all-reduce over two": ("all-reduce", "data*sequence", 4, 1, OWN, 2 * 3 / 4 * OWN),
    "all-reduce over all": ("all-reduce", "data*tensor*sequence", 8, 1, OWN, 2 * 7 / 8 * OWN),
    "all-reduce in a loop": ("all-reduce", "tensor", 2, 5, OWN, OWN),
    "all-gather": ("all-gather", "data", 2, 1, 2 * OWN, OWN),
    "reduce-scatter": ("reduce-scatter", "sequence", 2, 1, OWN, OWN / 2),
    "all-to-all": ("all-to-all", "tensor", 2, 1, OWN, OWN / 2),
    "collective-permute": ("collective-permute", "sequence", 2, 1, OWN, OWN),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_collectives_and_the_axes_that_they_lie_on(told, name):
    assert [tuple(one) for one in told[name]["collectives"]] == [EXPECTED[name]]
