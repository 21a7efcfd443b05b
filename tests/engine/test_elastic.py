"""A checkpoint resumes on any mesh: the same batches, and the same losses except for rounding."""

import shutil

import numpy as np
import pytest

from tests.whole_runs import checkpoint_arrays, finish, metrics, train_command, write_corpus

STEPS = 12
MESH = {"data": 1, "fsdp": 2, "tensor": 2, "sequence": 2}


def run_on(folder, corpus, devices, mesh, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", f"--xla_force_host_platform_device_count={devices}")
    options = {
        "train.num_steps": STEPS,
        "batching.rows": 8,
        "checkpoint.every_steps": 2,
        "checkpoint.keep": STEPS,
        "train.log_every_steps": 1,
        **{f"mesh.{axis}": size for axis, size in mesh.items()},
    }
    flags = [f"--config.{name}={value}" for name, value in options.items()]
    # A bandit that learns from losses may turn their rounding into another mixture.
    status, output = finish(train_command(folder, corpus, *flags, variant="fixed"))
    assert status == 0, output
    return output


@pytest.mark.slow
def test_one_run_on_one_mesh_after_another(tmp_path, monkeypatch):
    corpus = write_corpus(tmp_path)
    expected, folder = tmp_path / "one_device", tmp_path / "eight_devices"
    run_on(expected, corpus, 1, {}, monkeypatch)
    shutil.copytree(expected, folder)
    for later in (folder / "checkpoints").iterdir():
        if int(later.name) > 2:
            shutil.rmtree(later)
    assert "resumes from step 2" in run_on(folder, corpus, 8, MESH, monkeypatch)
    found, wanted = metrics(folder), metrics(expected)
    assert [line["step"] for line in found] == [line["step"] for line in wanted]
    for line, other in zip(found, wanted, strict=True):
        assert line.keys() == other.keys()
        for name, value in line.items():
            exact = name.endswith(("tokens", "tokens_seen", "probability", "padding_share"))
            assert value == pytest.approx(other[name], rel=0 if exact else 1e-4, abs=1e-6), (
                line["step"],
                name,
            )
    arrays, others = checkpoint_arrays(folder, STEPS), checkpoint_arrays(expected, STEPS)
    assert arrays.keys() == others.keys()
    for name, value in others.items():
        if name.startswith("batches/"):
            np.testing.assert_array_equal(arrays[name], value)
        else:
            np.testing.assert_allclose(arrays[name], value, rtol=1e-4, atol=1e-5, err_msg=name)
