"""The script on the workers of a TPU slice starts once, follows to the end, and stops with time to save."""

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.launch.stand_in import REPOSITORY


@pytest.fixture
def worker(tmp_path):
    (tmp_path / "launch").mkdir()
    for name in ("hashes.txt", "launch/environment.sh", "launch/tpu_worker.sh"):
        script = shutil.copy(REPOSITORY / name, tmp_path / name)

    def run(*action: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            ["bash", script, *action], capture_output=True, text=True, timeout=60, check=False
        )

    yield run
    run("stop", "0")


def program(folder: Path, text: str) -> list[str]:
    path = folder / "program.py"
    path.write_text(text)
    return [sys.executable, "-SE", str(path), str(folder)]


WAITS = """
import pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])
def save(number, frame):
    with (folder / "signals").open("a") as file:
        file.write(f"{number}\\n")
    print("saved", flush=True)
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
with (folder / "starts").open("a") as file:
    file.write("start\\n")
print("ready", flush=True)
time.sleep(50)
"""


def _wait_for(path: Path) -> None:
    for _ in range(500):
        if path.exists() and path.read_text():
            return
        time.sleep(0.02)
    raise AssertionError(f"{path} did not come")


@pytest.mark.parametrize("status", [0, 7])
def test_follow_shows_the_log_and_ends_as_the_command_did(worker, tmp_path, status):
    command = program(tmp_path, f"print('one'); print('two'); raise SystemExit({status})")
    assert worker("start", "", *command).returncode == 0
    followed = worker("follow", "+1")
    assert followed.returncode == status
    assert [line.split("] ")[1] for line in followed.stdout.splitlines()] == ["one", "two"]
    assert worker("running").returncode != 0


def test_start_does_nothing_while_the_command_runs(worker, tmp_path):
    command = program(tmp_path, WAITS)
    assert worker("start", "", *command).returncode == 0
    _wait_for(tmp_path / "starts")
    again = worker("start", "", *command)
    assert (again.returncode, again.stdout) == (0, "already running\n")
    assert worker("running").returncode == 0
    assert (tmp_path / "starts").read_text() == "start\n"


def test_stop_lets_the_command_save(worker, tmp_path):
    worker("start", "", *program(tmp_path, WAITS))
    _wait_for(tmp_path / "starts")
    assert worker("stop", "20").returncode == 0
    assert (tmp_path / "signals").read_text() == f"{signal.SIGTERM.value}\n"
    followed = worker("follow", "+1")
    assert followed.returncode == 143
    assert followed.stdout.endswith("] saved\n")


def test_stop_kills_what_does_not_end(worker, tmp_path):
    text = WAITS.replace("    sys.exit(143)\n", "")
    worker("start", "", *program(tmp_path, text))
    _wait_for(tmp_path / "starts")
    assert worker("stop", "1").returncode == 0
    assert worker("running").returncode != 0
    assert worker("follow", "+1").returncode == 137


@pytest.mark.parametrize("status", [0, 2])
def test_logs_of_all_starts_are_kept(worker, tmp_path, status):
    kept = tmp_path / "run" / "logs"
    for word in ("first", "second"):
        started = worker(
            "start", str(kept), *program(tmp_path, f"print('{word}'); raise SystemExit({status})")
        )
        assert started.stdout == ""
        assert worker("follow", "+1").returncode == status
        assert worker("status").stdout == f"status {status}\n"
        # Names have seconds.
        time.sleep(1.1)
    here = [*tmp_path.glob(".launch/log"), *tmp_path.glob(".launch/log.*")]
    for logs in (list(kept.iterdir()), here):
        assert sorted(log.read_text() for log in logs) == ["first\n", "second\n"]


def test_a_command_that_is_killed_has_its_log_kept(worker, tmp_path):
    text = WAITS.replace("    sys.exit(143)\n", "")
    worker("start", str(tmp_path / "logs"), *program(tmp_path, text))
    _wait_for(tmp_path / "starts")
    assert worker("status").stdout == ""
    assert worker("stop", "1").returncode == 0
    (log,) = (tmp_path / "logs").iterdir()
    assert log.read_text().startswith("ready\nsaved\n")


def test_restarted_command_has_its_own_log(worker, tmp_path):
    worker("start", "", *program(tmp_path, "print('first'); raise SystemExit(1)"))
    assert worker("follow", "+1").returncode == 1
    worker("start", "", *program(tmp_path, "print('second')"))
    followed = worker("follow", "+1")
    assert followed.returncode == 0
    assert followed.stdout.endswith("] second\n") and "first" not in followed.stdout


@pytest.mark.parametrize("left", ["nothing", "half made", "whole"])
def test_install_makes_an_environment_that_works(worker, tmp_path, monkeypatch, left):
    python = tmp_path / ".venv/bin/python"
    if left != "nothing":
        python.parent.mkdir(parents=True)
        python.symlink_to("/bin/true" if left == "whole" else "/no/such/python")
    uv = tmp_path / "bin" / "uv"
    uv.parent.mkdir()
    # As uv does, it refuses to make an environment over another one.
    uv.write_text(
        '#!/bin/sh\necho "$1" >>calls\necho "$@" >>arguments\n[ "$1" != venv ] || [ ! -e .venv ]\n'
    )
    uv.chmod(0o755)
    monkeypatch.setenv("PATH", f"{uv.parent}:/usr/bin:/bin")
    monkeypatch.delenv("HOME")
    (tmp_path / "birdie_jax").mkdir()
    (tmp_path / "birdie_jax/commit.txt").write_text("c1\n")
    assert worker("installed", "tpu", "c1").returncode != 0
    done = worker("install", "tpu,gcs")
    assert (done.returncode, done.stderr) == (0, "")
    assert worker("installed", "tpu,gcs", "c1").returncode == 0
    calls = (tmp_path / "calls").read_text().split()
    assert calls == [*([] if left == "whole" else ["venv"]), "pip", "pip", "pip"]
    *_, needed, project = (tmp_path / "arguments").read_text().splitlines()
    assert needed.endswith("--no-build-isolation --require-hashes --requirement /dev/stdin")
    assert project.endswith("--no-deps --no-build-isolation --editable .")


@pytest.mark.parametrize(
    ("there", "wanted", "enough"),
    [
        *(("tpu", "tpu", True), ("tpu,gcs", "tpu,gcs", True), ("tpu,gcs", "tpu", True)),
        *(("tpu", "tpu,gcs", False), ("", "tpu", False), (None, "tpu", False)),
    ],
)
def test_installed_knows_the_extras(worker, tmp_path, there, wanted, enough):
    """A command that reads a bucket may follow one that did not, on the same slices."""
    (tmp_path / ".launch").mkdir()
    if there is not None:
        (tmp_path / ".launch/installed").write_text(f"{there} c1\n")
    assert (worker("installed", wanted, "c1").returncode == 0) is enough
    assert worker("installed", wanted, "c2").returncode != 0


def test_a_running_command_keeps_its_commit(worker, tmp_path):
    (tmp_path / "birdie_jax").mkdir()
    (tmp_path / "birdie_jax/commit.txt").write_text("c1\n")
    worker("start", "", *program(tmp_path, WAITS))
    done = worker("installed", "tpu", "c2")
    assert (done.returncode, done.stdout[:23]) == (0, "runs commit c1, not c2;")


def test_unknown_action(worker):
    done = worker("strat")
    assert (done.returncode, done.stderr) == (2, "tpu_worker.sh: unknown action 'strat'\n")
