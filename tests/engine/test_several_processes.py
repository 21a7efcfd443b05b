"""A run of several real processes: the same result as of one, and failures of a process."""

import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.whole_runs import (
    REPOSITORY,
    checkpoint_arrays,
    metrics,
    run_environment,
    train_command,
    write_corpus,
)
from tests.whole_runs import start as start_run

pytestmark = pytest.mark.slow
STEPS = 12
LIMITS = {"train.lost_seconds": 8, "train.hung_seconds": 15}
OPTIONS = {
    "train.num_steps": STEPS,
    "batching.rows": 8,
    "checkpoint.every_steps": 2,
    "checkpoint.keep": STEPS,
    "train.log_every_steps": 1,
    "mesh.data": -1,
    "mesh.fsdp": 2,
    **LIMITS,
}
# Takes the place of `python -m birdie_jax.train`: the batch of step 7 never comes.
HANGING = """
import runpy, sys, time
from birdie_jax.batching import pipeline
make = pipeline.RowStreamsIterator.__next__
def hang(self):
    if self._step == 6:
        while True:
            time.sleep(1)
    return make(self)
pipeline.RowStreamsIterator.__next__ = hang
runpy.run_module("birdie_jax.train", run_name="__main__", alter_sys=True)
"""


class Job:
    """Processes of one run, and what each has printed."""

    def __init__(self, commands: list[list[str]], devices: int, **options):
        self.processes = [self._start(command, devices // len(commands), **options) for command in commands]
        self.output = ["" for _ in commands]
        self._readers = [threading.Thread(target=self._read, args=(i,)) for i in range(len(commands))]
        for reader in self._readers:
            reader.start()

    @staticmethod
    def _start(command, devices, **options):
        if "-m" in command:
            return start_run(command, devices=devices, **options)
        return subprocess.Popen(
            command,
            cwd=REPOSITORY,
            env=run_environment(devices) | {"PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def _read(self, index):
        for line in self.processes[index].stdout:
            self.output[index] += line

    def wait_for_step(self, step):
        deadline = time.monotonic() + 200
        while f"step {step}/" not in self.output[0]:
            assert time.monotonic() < deadline, self.output
            assert all(process.poll() is None for process in self.processes), self.output
            time.sleep(0.01)

    def statuses(self):
        try:
            found = [process.wait(timeout=200) for process in self.processes]
        finally:
            for process in self.processes:
                process.kill()
        for reader, process in zip(self._readers, self.processes, strict=True):
            reader.join(10)
            process.stdout.close()
        # pytest shows this in full when the test fails.
        print(*self.output, sep="\n")
        return found


def start(
    workdir: Path | str,
    corpus: Path,
    processes: int,
    *,
    devices: int = 4,
    hanging: int | None = None,
    odd: str = "",
    overrides: Sequence[str] = (),
    **run_options,
) -> Job:
    """Start a run over all devices; process `hanging` hangs, and the last one is given the flag `odd`.

    Other options go to `tests.whole_runs.start`.
    """
    options = [f"--config.{name}={value}" for name, value in OPTIONS.items()]
    command = train_command(workdir, corpus, *options, *overrides, variant="fixed")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    commands = []
    for index in range(processes):
        program = ["-c", HANGING] if index == hanging else command[1:3]
        flags = [
            f"--coordinator_address={address}",
            f"--num_processes={processes}",
            f"--process_id={index}",
        ]
        commands.append([sys.executable, *program, *command[3:], *(flags if processes > 1 else [])])
    commands[-1] += [odd] if odd else []
    return Job(commands, devices, **run_options)


def saved(workdir: Path) -> list[int]:
    return sorted(int(path.name) for path in (workdir / "checkpoints").iterdir() if path.name.isdigit())


def check_same(workdir: Path, expected: Path) -> None:
    """Check metrics and the last checkpoint: positions bit for bit, what was computed to rounding."""
    found, wanted = metrics(workdir), metrics(expected)
    assert [line["step"] for line in found] == [line["step"] for line in wanted]
    for line, other in zip(found, wanted, strict=True):
        assert line.keys() == other.keys()
        for name, value in line.items():
            exact = name.endswith(("tokens", "tokens_seen", "padding_share", "probability"))
            assert value == pytest.approx(other[name], rel=0 if exact else 1e-4, abs=1e-6), name
    arrays, others = checkpoint_arrays(workdir, STEPS), checkpoint_arrays(expected, STEPS)
    assert arrays.keys() == others.keys()
    for name, value in others.items():
        if name.startswith("batches/"):
            np.testing.assert_array_equal(arrays[name], value)
        else:
            np.testing.assert_allclose(arrays[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def alone(corpus, tmp_path_factory):
    """The workdir of a run in one process."""
    workdir = tmp_path_factory.mktemp("alone")
    job = start(workdir, corpus, 1, devices=8)
    assert job.statuses() == [0]
    return workdir


@pytest.mark.slow
def test_two_processes_do_what_one_does(alone, corpus, tmp_path):
    """SIGTERM to one of them saves the same step on both, and four processes resume from it."""
    job = start(tmp_path, corpus, 2, devices=8)
    job.wait_for_step(6)
    job.processes[1].send_signal(signal.SIGTERM)
    assert job.statuses() == [143, 143]
    step = int(re.search(r"stopped by SIGTERM at step (\d+), saved", job.output[0]).group(1))
    assert 6 <= step < STEPS
    assert saved(tmp_path)[-1] == step
    job = start(tmp_path, corpus, 4, preparations=())
    assert job.statuses() == [0] * 4
    assert f"resumes from step {step}," in job.output[0]
    check_same(tmp_path, alone)
    # One of them writes and reports.
    assert "report: " in job.output[0]
    assert not any("step " in output for output in job.output[1:])
    assert (tmp_path / "report.html").exists()


@pytest.mark.slow
def test_a_killed_process_is_named_by_the_other(alone, corpus, tmp_path):
    job = start(tmp_path, corpus, 2)
    job.wait_for_step(5)
    job.processes[1].kill()
    assert job.statuses() == [75, -signal.SIGKILL]
    assert re.search(r"process 1 is lost: .* it was at: step \d+, ", job.output[0])
    step = saved(tmp_path)[-1]
    assert f"Last checkpoint: step {step};" in job.output[0]
    assert "watch.py" in (tmp_path / "stacks" / "process_0.txt").read_text()
    found, whole = (checkpoint_arrays(workdir, step) for workdir in (tmp_path, alone))
    assert found.keys() == whole.keys()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("struck", "sign"),
    [
        (signal.SIGKILL, "it no longer takes connections"),
        (signal.SIGSTOP, r"it has not answered for \d+ seconds"),
    ],
)
def test_the_first_process_is_named_by_the_other(corpus, tmp_path, struck, sign):
    job = start(tmp_path, corpus, 2)
    job.wait_for_step(5)
    job.processes[0].send_signal(struck)
    began = time.monotonic()
    status = job.processes[1].wait(timeout=60)
    seconds = time.monotonic() - began
    job.processes[0].kill()
    job.statuses()
    assert status == 75, job.output
    lines = job.output[1].splitlines()
    (line,) = (line for line in lines if line.startswith("birdie_jax.train: process "))
    named = rf" stops: process 0 is lost: {sign}; it was at: step \d+, .* Last checkpoint: step \d+; "
    assert re.search(named, line)
    assert seconds < LIMITS["train.lost_seconds"] + 10
    assert saved(tmp_path)


@pytest.mark.slow
def test_a_hung_process_is_named_with_its_stack(alone, corpus, tmp_path):
    shutil.copytree(alone, tmp_path, dirs_exist_ok=True)
    for step in saved(tmp_path):
        if step > 4:
            shutil.rmtree(tmp_path / "checkpoints" / f"{step:08d}")
    job = start(tmp_path, corpus, 2, hanging=1)
    assert job.statuses() == [75, 75]
    for output in job.output:
        assert "process 1 hangs: " in output
        assert "it is at: step 7, waiting for its batch" in output
        assert "process 0 hangs" not in output
    assert re.search(r"in __next__ \(|in wait \(|in hang \(|in get \(", job.output[0]), job.output[0]
    assert " in hang" in (tmp_path / "stacks" / "process_1.txt").read_text()
    assert saved(tmp_path)[-1] == 6


@pytest.mark.slow
def test_all_processes_report_the_fault_of_one(corpus, tmp_path):
    job = start(tmp_path, corpus, 2, odd="--config.seed=3")
    assert job.statuses() == [75, 2]
    error = "the processes of a run need one configuration: config.seed: process 0 has 0, process 1 has 3\n"
    assert error in job.output[1]
    assert "process 1 failed: the processes of a run need one configuration" in job.output[0]


@pytest.mark.slow
def test_workdirs_that_are_not_one_folder_are_refused(corpus, tmp_path):
    job = start(tmp_path / "one", corpus, 2, odd=f"--workdir={tmp_path / 'other'}")
    assert job.statuses() == [75, 2]
    assert "--workdir: process 1 does not see " in job.output[1]
    assert "process 1 failed: --workdir: process 1 does not see " in job.output[0]
