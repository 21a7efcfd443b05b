"""`python -m birdie_jax.check_device` on the devices of this machine."""

import json
import sys

import pytest

from birdie_jax.config_sections import ModelConfig
from birdie_jax.models.registry import mixer_config
from tests.whole_runs import CONFIG, finish

COMMAND = [sys.executable, "-m", "birdie_jax.check_device"]


@pytest.mark.slow
def test_a_check_on_two_devices_measures_everything(tmp_path):
    file = tmp_path / "check.json"
    arguments = (f"--config={CONFIG}", "--steps=2", f"--json={file}", f"--store={tmp_path / 'store'}")
    status, output = finish([*COMMAND, *arguments], devices=2)
    assert status == 0, output
    found = json.loads(file.read_text())
    assert found["devices"] == "2 x cpu in 1 processes" and found["mesh"] == "data=2"
    assert [one["implementation"] for one in found["scans"]] == ["xla"] and not found["scans"][0]["problem"]
    measured = {one["what"]: one for one in found["measured"]}
    for kind in ("all-gather", "reduce-scatter", "all-reduce"):
        assert measured[f"{kind} along data, 2 devices"]["found"] > 0
    assert all(one["found"] > 0 for one in measured.values())
    assert any(one.startswith("the linear scan of ") for one in measured)
    assert {"a step", "compiling the step", "batches from one core of the host"} < set(measured)
    assert "xla: right" in output and "a step" in output
    assert not list((tmp_path / "store").iterdir())


@pytest.mark.parametrize(
    ("name", "has_row"),
    [
        ("gated_ssm_plus", True),
        ("hawk", True),
        ("griffin", True),
        ("mamba", False),
        ("mamba2", False),
        ("gated_deltanet", False),
        ("transformer", False),
    ],
)
def test_the_linear_scan_is_measured_for_models_that_have_one(name, has_row):
    assert mixer_config(ModelConfig(name=name)).has_linear_scan == has_row


@pytest.mark.slow
def test_stages_are_refused():
    status, output = finish([*COMMAND, "--config=configs/finetune_phonebook.py:tiny"])
    assert status == 2 and "allowed: none; name a pre-training configuration" in output
