"""A checkpoint resumes on any mesh: the same batches, and the same losses except for rounding."""

import shutil

import numpy as np
import pytest

from tests.whole_runs import checkpoint_arrays, finish, metrics, train_command, write_corpus

STEPS = 12
# Devices, mesh, and the step from which the next run resumes.
RUNS = [
    (1, {}, 2),
    (4, {"data": 1, "fsdp": 2, "tensor": 2}, 6),
    (8, {"data": 2, "fsdp": 1, "tensor": 2, "sequence": 2}, 8),
    (1, {}, STEPS),
]


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
    expected = tmp_path / "run0"
    for number, (devices, mesh, step) in enumerate(RUNS):
        folder = tmp_path / f"run{number}"
        output = run_on(folder, corpus, devices, mesh, monkeypatch)
        assert number == 0 or f"resumes from step {RUNS[number - 1][2]}" in output
        shutil.copytree(folder, tmp_path / f"run{number + 1}")
        for later in (tmp_path / f"run{number + 1}" / "checkpoints").iterdir():
            if int(later.name) > step:
                shutil.rmtree(later)
    found, wanted = (metrics(tmp_path / name) for name in (folder.name, expected.name))
    assert [line["step"] for line in found] == [line["step"] for line in wanted]
    for line, other in zip(found, wanted, strict=True):
        assert line.keys() == other.keys()
        for name, value in line.items():
            exact = name.endswith(("tokens", "tokens_seen", "probability", "padding_share"))
            assert value == pytest.approx(other[name], rel=0 if exact else 1e-4, abs=1e-6), (
                line["step"],
                name,
            )
    arrays, others = (checkpoint_arrays(tmp_path / name, STEPS) for name in (folder.name, expected.name))
    assert arrays.keys() == others.keys()
    for name, value in others.items():
        if name.startswith("batches/"):
            np.testing.assert_array_equal(arrays[name], value)
        else:
            np.testing.assert_allclose(arrays[name], value, rtol=1e-4, atol=1e-5, err_msg=name)
