"""Killed at any moment and started again, a run ends bit for bit where it would have ended."""

import random
import signal
import subprocess
import time

import numpy as np
import pytest

from birdie_jax.storage.workdir import Workdir
from tests.whole_runs import (
    REPOSITORY,
    checkpoint_arrays,
    finish,
    metrics,
    run_environment,
    start,
    train_command,
    write_corpus,
)

pytestmark = pytest.mark.slow

STEPS = 24


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    corpus = write_corpus(folder)
    status, output = finish(train_command(folder / "run", corpus))
    assert status == 0, output
    return folder / "run", corpus


def assert_same_end(workdir, expected):
    found, wanted = (checkpoint_arrays(folder, STEPS) for folder in (workdir, expected))
    assert found.keys() == wanted.keys()
    assert len(found) > 50
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.slow
def test_sigkill_at_random_moments(uninterrupted, tmp_path):
    """The newest checkpoint is then damaged, and the run resumes from the one before."""
    expected, corpus = uninterrupted
    run = tmp_path / "run"
    command = train_command(run, corpus)
    moments = random.Random(3)
    kills = 0
    for count in (1, 2):
        process = start(command)
        # A new line and `count` checkpoints show that training is under way; then some moment of it.
        seen = newest_line(run)
        deadline = time.monotonic() + 120
        while process.poll() is None and (
            newest_line(run) <= seen or len(Workdir(run).saved_steps()) < count
        ):
            assert time.monotonic() < deadline, "training did not get under way"
            time.sleep(0.02)
        time.sleep(moments.uniform(0.0, 0.1))
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.communicate()
    assert kills
    newest = run / "checkpoints" / f"{Workdir(run).saved_steps()[-1]:08d}"
    for file in (newest / "state").rglob("*"):
        if file.is_file() and file.stat().st_size > 1000:
            content = bytearray(file.read_bytes())
            content[len(content) // 2] ^= 0xFF
            file.write_bytes(bytes(content))
    status, output = finish(command)
    assert status == 0, output
    assert f"the checkpoint of step {int(newest.name)} is damaged" in output
    assert (run / "damaged_checkpoints" / newest.name).is_dir()
    assert_same_end(run, expected)
    assert metrics(run) == metrics(expected)


def newest_line(workdir):
    path = workdir / "metrics.jsonl"
    return len(path.read_bytes().splitlines()) if path.exists() else 0


@pytest.mark.slow
def test_sigterm_saves_and_the_run_resumes(uninterrupted, tmp_path):
    expected, corpus = uninterrupted
    command = train_command(tmp_path / "run", corpus, "--config.checkpoint.every_steps=1000")
    process = start(command)
    while newest_line(tmp_path / "run") < 3 and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 143, output
    assert "stopped by SIGTERM at step" in output
    saved = [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()]
    assert len(saved) == 1
    assert 0 < int(saved[0]) < STEPS
    status, output = finish(command)
    assert status == 0, output
    assert f"resumes from step {int(saved[0])}" in output
    assert_same_end(tmp_path / "run", expected)
    assert metrics(tmp_path / "run") == metrics(expected)


@pytest.mark.slow
def test_workers_change_nothing(uninterrupted, tmp_path):
    expected, corpus = uninterrupted
    # No fork: the workers import again what their parent is.
    done = subprocess.run(
        train_command(tmp_path / "run", corpus, "--config.batching.workers=2"),
        cwd=REPOSITORY,
        env=run_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"report: {tmp_path}/run/report.html" in done.stdout
    assert_same_end(tmp_path / "run", expected)
    assert metrics(tmp_path / "run") == metrics(expected)


@pytest.mark.slow
def test_a_run_that_is_made_longer_ends_as_one_that_was_planned_so(uninterrupted, tmp_path):
    _, corpus = uninterrupted

    def run(folder, *overrides):
        wsd = ("--config.optimizer.schedule=wsd", *overrides)
        return finish(train_command(tmp_path / folder, corpus, *wsd, variant="exp3s"))

    decay = "--config.optimizer.decay_steps=4"
    assert run("planned", decay)[0] == 0
    status, output = run("longer", "--config.train.num_steps=10")
    assert status == 0, output
    status, output = run("longer", decay)
    assert status == 0, output
    assert "config.train.num_steps: the run has 10, the command has 24" in output
    # But for rounding: the schedule is a part of the program.
    found, wanted = (checkpoint_arrays(tmp_path / name, STEPS) for name in ("longer", "planned"))
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=2e-3, atol=1e-4, err_msg=name)
    lines, others = metrics(tmp_path / "longer"), metrics(tmp_path / "planned")
    assert [line.keys() for line in lines] == [line.keys() for line in others]
    status, output = run("longer", decay, "--config.train.num_steps=40")
    assert status == 2 and "holds a run of another configuration" in output, output
    assert "docs/operate.md says what may change" in output
