"""The printed and saved record of a run's start, for every way of ending."""

import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import jax
import pytest

from birdie_jax import start_recorder
from birdie_jax.engine import Workdir
from birdie_jax.errors import DataError
from birdie_jax.start_record import read_starts
from birdie_jax.start_recorder import StartRecorder, describe_program, find_commit

ROOT = Path(__file__).resolve().parents[1]
COMMIT = "0123456789" * 4


@pytest.fixture
def program():
    environment = {"XLA_FLAGS": "--xla_x=1", "AWS_SECRET": "s", "PATH": "/bin", "BIRDIE_TOKEN": "secret"}
    environment["JAX_CACHE"] = "gs://user:secret@bucket"
    command = ["train", "--config=a b", "--workdir=s3://key:secret@bucket/x", "--password=secret"]
    return describe_program(command, environment, COMMIT)


@pytest.fixture
def mesh():
    return jax.make_mesh((1, 1), ("data", "fsdp"))


def test_the_program_is_printed_without_secrets(program):
    assert program.environment == {
        "BIRDIE_TOKEN": "***",
        "JAX_CACHE": "gs://***@bucket",
        "XLA_FLAGS": "--xla_x=1",
    }
    assert "secret" not in program.command
    assert program.command.startswith("train '--config=a b'")
    assert program.versions["jax"] == jax.__version__
    assert program.title.startswith(
        f"birdie-jax {program.versions['birdie-jax']} (0123456), JAX {jax.__version__}"
    )
    assert "(0123456 changed)" in replace(program, commit=f"{COMMIT} changed").title


def test_starts_are_recorded_for_any_outcome(tmp_path, program, mesh, capsys):
    workdir = Workdir(tmp_path)
    with StartRecorder(workdir, program, 1) as first:
        first.announce(mesh, "mesh chosen by a rule")
        first.note_outcome("stopped by SIGTERM", 7)
    with pytest.raises(OSError, match="full"), StartRecorder(workdir, program, 4) as second:
        second.announce(mesh, "")
        raise OSError("the disk is full")
    with StartRecorder(workdir, program, 1) as third:
        third.announce(mesh, "")
        killed = read_starts(workdir)[2]
    found = read_starts(workdir)
    assert [(start.outcome, start.step) for start in found] == [
        ("stopped by SIGTERM", 7),
        ("failed: the disk is full", None),
        (None, None),
    ]
    assert (killed.ended, killed.device_hours) == (None, None)
    assert found[0].device_hours == pytest.approx(0, abs=0.1)
    assert found[0].program == program
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "mesh chosen by a rule"
    assert lines[1] == program.title
    device = mesh.devices.flat[0].device_kind
    assert lines[2] == f"1 x {device} on {program.host}, mesh of one device; writes to {tmp_path}"
    assert lines[3] == f"curves: tensorboard --logdir={tmp_path}/tensorboard"
    assert f"on {program.host} and 3 more, mesh of one device" in lines[5]
    larger = replace(found[0], mesh={"data": 4, "fsdp": 2, "tensor": 1}, devices=8)
    assert larger.machine == f"8 x {device} on {program.host}, mesh data=4,fsdp=2"


def test_a_gpu_that_jax_cannot_use_is_pointed_out(tmp_path, program, mesh, capsys, monkeypatch):
    for there in (False, True):
        monkeypatch.setattr(start_recorder, "_NVIDIA", tmp_path if there else tmp_path / "none")
        with StartRecorder(Workdir(tmp_path), program, 1) as start:
            start.announce(mesh, "")
        assert ("an NVIDIA GPU that JAX cannot use" in capsys.readouterr().out) == there


def test_early_failures_and_other_processes_leave_no_record(tmp_path, program, mesh):
    with pytest.raises(ValueError, match="x"), StartRecorder(Workdir(tmp_path), program, 1):
        raise ValueError("x")
    with StartRecorder(Workdir(tmp_path), None, 2) as other:
        other.announce(mesh, "")
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_or_unwritable_record_does_not_end_a_run(tmp_path, program, mesh, caplog, monkeypatch):
    workdir = Workdir(tmp_path)
    workdir.starts.write_text("[{")
    with pytest.raises(DataError, match=r"starts\.json: found no JSON"):
        read_starts(workdir)
    with StartRecorder(workdir, program, 1) as start:
        start.announce(mesh, "")
    assert "the starts before this one are lost" in caplog.text
    assert len(json.loads(workdir.starts.read_text())) == 1

    def refuse(path, value):
        raise OSError("no space")

    monkeypatch.setattr(start_recorder, "write_json", refuse)
    with StartRecorder(workdir, program, 1) as start:
        start.announce(mesh, "")
    assert "this start is not recorded: no space" in caplog.text


@pytest.mark.slow
def test_find_commit_reads_a_checkout_and_an_archive(tmp_path):
    checkout, package = tmp_path / "checkout", tmp_path / "checkout" / "birdie_jax"
    package.mkdir(parents=True)
    assert find_commit(package) is None
    git = ["git", "-C", checkout, "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    assert find_commit(package) is None
    for name in (".gitattributes", "birdie_jax/commit.txt"):
        shutil.copy(ROOT / name, checkout / name)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "x"], check=True)
    done = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    head = done.stdout.strip()
    (checkout / "untracked").write_text("1")
    # Another time of a file makes git write the index, unless it must not lock it.
    os.utime(checkout / ".gitattributes", (0, 0))
    index = (checkout / ".git" / "index").read_bytes()
    assert find_commit(package) == head
    assert (checkout / ".git" / "index").read_bytes() == index
    subprocess.run([*git, "archive", f"--output={tmp_path}/archive.tar", "HEAD"], check=True)
    subprocess.run(["tar", "-C", tmp_path, "-xf", tmp_path / "archive.tar"], check=True)
    assert find_commit(tmp_path / "birdie_jax") == head
    (checkout / ".gitattributes").write_text("")
    assert find_commit(package) == f"{head} changed"
