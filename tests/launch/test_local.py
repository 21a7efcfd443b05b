"""Several real processes on this machine: shares, relayed output, failures, restarts and signals."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.launch.hostile import HOSTILE
from tests.launch.stand_in import REPOSITORY, words_of

# Stands in for the train command; its second argument chooses its failure.
PROGRAM = """
import os, pathlib, signal, subprocess, sys, time
folder, how = pathlib.Path(sys.argv[1]), sys.argv[2]
flags = dict(a.removeprefix("--").split("=", 1) for a in sys.argv[-3:])
me = int(flags["process_id"])
def note(name, text):
    with (folder / f"{name}-{me}").open("a") as file:
        file.write(text + "\\n")
note("starts", flags["coordinator_address"])
note("pids", str(os.getpid()))
start = len((folder / f"starts-{me}").read_text().splitlines())
def save(number, frame):
    note("signals", str(number))
    if "stubborn" not in how:
        sys.exit(128 + number)
signal.signal(signal.SIGTERM, save)
signal.signal(signal.SIGINT, save)
if "child" in how:
    child = subprocess.Popen([sys.executable, "-SE", "-c", "import time; time.sleep(50)"])
    note("child", str(child.pid))
print("ready", me, flush=True)
while "chatty" in how:
    print("a line that fills a pipe which nobody reads", flush=True)
# One that fails ends the others, on a busy machine before they have begun.
other = folder / f"starts-{1 - me}"
while any(word in how for word in ("wrong", "killed", "fails")) and not (
    other.exists() and len(other.read_text().splitlines()) >= start
):
    time.sleep(0.02)
if "killed" in how and me == 1 and start == 1:
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGKILL)
if "wrong" in how:
    # Another process may end of its end.
    time.sleep(0.3 * (1 - me))
    sys.exit(75 if me == 0 else 2)
if "fails" in how and me == 1:
    time.sleep(0.2)
    sys.exit(7)
if "wait" in how or ("killed" in how and start == 1) or ("fails" in how):
    end = time.monotonic() + 50
    while time.monotonic() < end:
        time.sleep(0.05)
print("done", me, flush=True)
"""


@pytest.fixture
def start(tmp_path):
    """Start `launch.local` with two of the stand-in processes."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    started = []

    def launcher(how: str, *options: str, more: tuple[str, ...] = ()) -> subprocess.Popen:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "launch.local", "--processes=2", *options, "--"),
                *(sys.executable, "-SE", str(program), str(tmp_path), how, *more),
            ],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        return process

    yield launcher
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()
    for file in [*tmp_path.glob("pids-*"), *tmp_path.glob("child-*")]:
        for number in file.read_text().split():
            end = time.monotonic() + 5
            while _alive(int(number)):
                assert time.monotonic() < end, f"{file.name}: left behind"
                time.sleep(0.02)


def _alive(number: int) -> bool:
    try:
        return Path(f"/proc/{number}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _read_until_ready(process: subprocess.Popen, count: int = 2) -> str:
    text = ""
    while text.count("] ready") < count:
        line = process.stdout.readline()
        assert line, text
        text += line
    return text


def _lines(folder: Path, name: str) -> list[list[str]]:
    return [
        path.read_text().splitlines() if (path := folder / f"{name}-{one}").exists() else []
        for one in range(2)
    ]


def test_all_end_well(start, tmp_path):
    process = start("")
    output = process.communicate(timeout=30)[0]
    assert process.returncode == 0
    assert {"[0] ready 0", "[0] done 0", "[1] ready 1", "[1] done 1"} <= set(output.splitlines())
    (first,), (second,) = _lines(tmp_path, "starts")
    assert first == second and re.fullmatch(r"127\.0\.0\.1:[0-9]+", first)


def test_a_killed_process_ends_the_others_and_all_restart(start, tmp_path):
    begin = time.monotonic()
    process = start("killed", "--grace_seconds=20")
    output = process.communicate(timeout=30)[0]
    assert process.returncode == 0
    assert time.monotonic() - begin < 15, "the other one ends at SIGTERM, not at the end of the grace"
    assert "launch.local: process 1 was killed by SIGKILL" in output
    assert "launch.local: starting again, restart 1 of 3" in output
    first, second = _lines(tmp_path, "starts")
    assert first == second and len(first) == 2
    assert _lines(tmp_path, "signals") == [[str(signal.SIGTERM.value)], []]


def test_a_wrong_command_is_not_started_again(start, tmp_path):
    process = start("wrong")
    output = process.communicate(timeout=30)[0]
    assert process.returncode == 2
    assert [len(one) for one in _lines(tmp_path, "starts")] == [1, 1]
    assert output.endswith("launch.local: not started again: the command or its configuration is wrong\n")


def test_one_that_does_not_end_in_time_is_killed(start, tmp_path):
    begin = time.monotonic()
    process = start("fails stubborn child", "--grace_seconds=1", "--restarts=0")
    output = process.communicate(timeout=30)[0]
    assert 1 <= time.monotonic() - begin < 10
    assert process.returncode == 7
    assert "process 1 ended with 7" in output
    assert "did not end in time, killed: process 0" in output


@pytest.mark.parametrize(
    ("how", "restarts", "status"), [("fails", 2, 7), ("killed", 0, 128 + signal.SIGKILL)]
)
def test_restarts_end(start, tmp_path, how, restarts, status):
    process = start(how, f"--restarts={restarts}")
    output = process.communicate(timeout=30)[0]
    assert process.returncode == status
    assert [len(one) for one in _lines(tmp_path, "starts")] == [restarts + 1] * 2
    assert output.endswith(f"launch.local: giving up after {restarts} restarts\n")


@pytest.mark.parametrize(
    ("sent", "arrives"),
    [(signal.SIGTERM, signal.SIGTERM), (signal.SIGINT, signal.SIGINT), (signal.SIGHUP, signal.SIGTERM)],
)
def test_signal_is_passed_on_once_to_all(start, tmp_path, sent, arrives):
    process = start("wait child")
    _read_until_ready(process)
    # A terminal signals every process of its foreground group; they are in none that it knows.
    groups = {os.getpgid(int(number)) for one in _lines(tmp_path, "pids") for number in one}
    assert len(groups) == 2 and os.getpgid(process.pid) not in groups
    process.send_signal(sent)
    output = process.communicate(timeout=30)[0]
    assert process.returncode == 128 + arrives
    assert _lines(tmp_path, "signals") == [[str(arrives.value)]] * 2
    assert "starting again" not in output


def test_a_second_signal_kills_the_processes(start, tmp_path):
    process = start("wait stubborn")
    _read_until_ready(process)
    process.send_signal(signal.SIGTERM)
    while not all(_lines(tmp_path, "signals")):
        time.sleep(0.02)
    begin = time.monotonic()
    process.send_signal(signal.SIGTERM)
    output = process.communicate(timeout=30)[0]
    assert time.monotonic() - begin < 10
    assert process.returncode == 143
    assert _lines(tmp_path, "signals") == [["15"], ["15"]], "no second one is passed on"
    assert "killed: process 0, 1" in output


def test_a_reader_that_ends_stops_the_run(start, tmp_path):
    process = start("wait chatty")
    _read_until_ready(process)
    process.stdout.close()
    assert process.wait(timeout=30) == 143
    assert _lines(tmp_path, "signals") == [["15"], ["15"]]


def test_characters_that_the_output_cannot_encode_are_escaped(tmp_path):
    printed = tmp_path / "printed"
    printed.write_text(f"loss → 1\n{'a' * 200_000}\n", encoding="utf-8")
    shows = ["sh", "-c", "cat $0 # →", str(printed)]
    done = subprocess.run(
        [sys.executable, "-m", "launch.local", "--processes=1", "--restarts=0", "--", *shows],
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert r"[0] loss \u2192 1" in done.stdout


def test_stop_seconds(start):
    process = start("wait stubborn", "--stop_seconds=1")
    _read_until_ready(process)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 143


def _dry(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "launch.local", *arguments],
        cwd=REPOSITORY,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_dry_run_prints_what_is_executed():
    done = _dry(
        "--processes=2", "--fake_devices=8", "--port=4000", "--dry_run", "--", *HOSTILE, XLA_FLAGS="--a=b"
    )
    assert done.returncode == 0
    flags = "XLA_FLAGS=--a=b --xla_force_host_platform_device_count=4"
    assert [words_of(line) for line in done.stdout.splitlines()] == [
        [
            *("env", "PYTHONUNBUFFERED=1", "JAX_PLATFORMS=cpu", flags, *HOSTILE),
            *("--coordinator_address=127.0.0.1:4000", "--num_processes=2", f"--process_id={process}"),
        ]
        for process in range(2)
    ]


def test_hostile_arguments_arrive(start, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import sys; open(sys.argv[1] + '/' + sys.argv[-1][2:], 'w').write(repr(sys.argv[3:-3]))"
    )
    process = start("", more=tuple(HOSTILE))
    process.communicate(timeout=30)
    for one in range(2):
        assert (tmp_path / f"process_id={one}").read_text() == repr(HOSTILE)


def test_gpus_are_shared(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def shares(gpus, **environment):
        done = _dry("--processes=2", gpus, "--port=4000", "--dry_run", "--", "train", **environment)
        return [words_of(line)[2] for line in done.stdout.splitlines()] or done.stderr

    assert shares("--gpus=8") == ["CUDA_VISIBLE_DEVICES=0,1,2,3", "CUDA_VISIBLE_DEVICES=4,5,6,7"]
    # The other GPUs may be another user's.
    given = {"CUDA_VISIBLE_DEVICES": "4,GPU-5a,6"}
    assert shares("--gpus=2", **given) == ["CUDA_VISIBLE_DEVICES=4", "CUDA_VISIBLE_DEVICES=GPU-5a"]
    assert "--gpus: found 4; allowed: at most 3, as CUDA_VISIBLE_DEVICES is" in shares("--gpus=4", **given)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--processes=3", "--gpus=8", "--", "x"],
            "--gpus: found 8; allowed: a multiple of --processes",
        ),
        (["--processes=0", "--", "x"], "--processes: found '0'; allowed: 1 or more"),
        (["--processes=2"], "no command: give it after --"),
        (["--processes=2", "--", "--x"], "command: found '--x'; allowed: a program"),
        (["--processes=2", "--gpus=2", "--fake_devices=2", "--", "x"], "not allowed with argument"),
        (["--proc=2", "--", "x"], "--processes"),
    ],
)
def test_refused(arguments, message):
    done = _dry(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
