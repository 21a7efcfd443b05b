"""Both operations and their gradients against the functions of `transformers` (record_oracles.py).

The fast tests compare with recorded outputs. The slow tests run the functions.
"""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.gated_delta_rule import gated_delta_rule
from pallas_kernels.ssd import ssd
from tests.pallas_kernels.linear_scan.oracle import assert_close
from tests.quick_jit import quick_jit

OPERATIONS = {
    "recurrent": gated_delta_rule,
    "chunk": gated_delta_rule,
    "kimi": gated_delta_rule,
    "ssd": ssd,
}


@pytest.fixture(scope="module")
def live(tmp_path_factory, torch_packages):
    """Run the functions with another seed than the recorded one, and return the folder of outputs."""
    folder = tmp_path_factory.mktemp("live")
    subprocess.run(
        [
            *(sys.executable, "-m", "tests.pallas_kernels.matrix_state.record_oracles"),
            *(f"--folder={folder}", "--seed=7"),
        ],
        env=os.environ | {"PYTHONPATH": torch_packages},
        check=True,
    )
    return folder


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", OPERATIONS)
def test_values_and_gradients_match_the_recorded_ones(name):
    compare(name, Path(__file__).with_name("recorded"))


@pytest.mark.slow
@pytest.mark.parametrize("name", OPERATIONS)
def test_values_and_gradients_match_transformers(name, live):
    compare(name, live)


def compare(name, folder):
    arrays = np.load(folder / f"{name}.npz")
    inputs = {key.removeprefix("input/"): arrays[key] for key in arrays if key.startswith("input/")}
    operation = partial(OPERATIONS[name], chunk_size=8)

    @quick_jit
    def results(inputs):
        (outputs, state), pull_back = jax.vjp(lambda inputs: operation(**inputs), inputs)
        return outputs, state, *pull_back((jnp.asarray(arrays["cotangent"]), jnp.zeros_like(state)))

    outputs, state, gradients = results(inputs)
    assert_close(outputs, arrays["outputs"])
    assert_close(state, arrays["state"])
    for key, found in gradients.items():
        assert_close(found, arrays[f"gradient/{key}"])
