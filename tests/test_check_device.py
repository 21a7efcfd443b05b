"""`python -m birdie_jax.check_device` on the devices of this machine."""

import json
import subprocess
import sys

import pytest

from tests.whole_runs import CONFIG, REPOSITORY, run_environment


@pytest.mark.slow
def test_a_check_on_two_devices_measures_everything(tmp_path):
    file = tmp_path / "check.json"
    arguments = (f"--config={CONFIG}", "--steps=2", f"--json={file}", f"--store={tmp_path / 'store'}")
    command = [sys.executable, "-m", "birdie_jax.check_device", *arguments]
    done = subprocess.run(
        command, cwd=REPOSITORY, env=run_environment(2), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(file.read_text())
    assert found["devices"] == "2 x cpu in 1 processes" and found["mesh"] == "data=2"
    assert [one["implementation"] for one in found["scans"]] == ["xla"] and not found["scans"][0]["problem"]
    measured = {one["what"]: one for one in found["measured"]}
    for kind in ("all-gather", "reduce-scatter", "all-reduce"):
        assert measured[f"{kind} along data, 2 devices"]["found"] > 0
    assert all(one["found"] > 0 for one in measured.values())
    assert {"a step", "compiling the step", "batches from one core of the host"} < set(measured)
    assert "xla: right" in done.stdout and "a step" in done.stdout
    assert not list((tmp_path / "store").iterdir())


@pytest.mark.slow
def test_stages_are_refused(tmp_path):
    command = [
        sys.executable,
        "-m",
        "birdie_jax.check_device",
        "--config=configs/finetune_phonebook.py:tiny",
    ]
    done = subprocess.run(
        command, cwd=REPOSITORY, env=run_environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and "allowed: none; name a pre-training configuration" in done.stderr
