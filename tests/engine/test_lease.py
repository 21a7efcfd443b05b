"""Only one trainer holds a workdir at a time; the next trainer takes over the lease of a dead one."""

import json
import os
import subprocess
import sys
import time

import pytest

from birdie_jax.engine import Workdir, lease, lease_file
from birdie_jax.engine.lease import Lease, claimed
from birdie_jax.errors import ConfigError, DataError, LeaseLost
from birdie_jax.storage import is_remote, read_bytes, remove, write_whole


@pytest.fixture(params=["disk", pytest.param("bucket", marks=pytest.mark.slow)])
def workdir(request, tmp_path):
    if request.param == "bucket":
        return Workdir(request.getfixturevalue("bucket_url"))
    (tmp_path / "run").mkdir()
    return Workdir(tmp_path / "run")


@pytest.fixture
def kind(workdir):
    """The class of the file of the lease."""
    return type(lease_file.lease_file(workdir.lease))


def record_of(workdir):
    return json.loads(read_bytes(workdir.lease))


def leave_behind(workdir, **changes):
    """Write the lease of a trainer that no longer renews it."""
    with Lease(workdir):
        record = record_of(workdir)
    write_whole(workdir.lease, json.dumps(record | changes).encode())


def test_a_second_trainer_is_refused_and_the_next_one_is_not(workdir):
    for _ in range(2):
        with Lease(workdir):
            since = record_of(workdir)["since"]
            with pytest.raises(ConfigError) as error, Lease(workdir):
                pass
            assert str(error.value).startswith(f"{workdir}: is in use: process {os.getpid()} on ")
            assert f"has trained here since {since}; allowed: another workdir" in str(error.value)
            assert record_of(workdir)["process"] == os.getpid()
        # An object that is released stays, since one that is removed has no generation.
        if is_remote(workdir.root):
            assert record_of(workdir) == {"released": True}
        else:
            assert not workdir.lease.exists()


@pytest.mark.parametrize(
    ("error", "logged", "left"),
    [
        (ConfigError, 0, []),
        (DataError, 0, []),
        (LeaseLost, 0, ["config.json", "metrics.jsonl", "tokenizer.model"]),
        (ConfigError, 3, ["config.json", "metrics.jsonl", "tokenizer.model"]),
    ],
)
def test_a_run_that_is_refused_before_its_first_step_leaves_nothing(tmp_path, error, logged, left):
    workdir = Workdir(tmp_path / "new")
    with pytest.raises(error), claimed(workdir, {"seed": 3}, {"seed": 0}):
        workdir.tokenizer.write_text("model")
        if left:
            workdir.metrics.write_text(json.dumps({"step": logged, "loss": 1.0}) + "\n")
        raise error("refused")
    assert sorted(path.name for path in tmp_path.glob("new/*")) == left
    assert (tmp_path / "new").exists() == bool(left)


@pytest.mark.slow
def test_a_process_that_was_killed_is_followed_at_once(workdir, caplog):
    holder = (
        "import sys, time\n"
        "from birdie_jax.engine import Workdir\n"
        "from birdie_jax.engine.lease import Lease\n"
        "with Lease(Workdir(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", holder, str(workdir)], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"held\n"
    with pytest.raises(ConfigError, match=f"in use: process {process.pid} on"), Lease(workdir):
        pass
    process.kill()
    process.wait()
    process.stdout.close()
    with Lease(workdir):
        assert record_of(workdir)["process"] == os.getpid()
    assert f"process {process.pid} on" in caplog.text


def test_a_number_that_another_process_has_by_now_is_no_holder(workdir):
    leave_behind(workdir, process=os.getppid(), started="1")
    with Lease(workdir):
        assert record_of(workdir)["process"] == os.getpid()


@pytest.mark.parametrize("contents", [None, b"garbage", b"[]"])
def test_a_lease_of_another_machine_ends_when_it_is_not_renewed(workdir, kind, monkeypatch, contents):
    monkeypatch.setattr(kind, "expiry_seconds", 0.6)
    monkeypatch.setattr(lease, "_POLL_SECONDS", 0.1)
    leave_behind(workdir, machine="another", host="far")
    if contents is not None:
        write_whole(workdir.lease, contents)
    begin = time.monotonic()
    with Lease(workdir):
        assert time.monotonic() - begin > 0.5


def test_a_lease_of_another_machine_that_is_renewed_is_respected(workdir, kind, monkeypatch):
    monkeypatch.setattr(kind, "renewal_seconds", 0.1)
    monkeypatch.setattr(lease, "_POLL_SECONDS", 0.3)
    with Lease(workdir), monkeypatch.context() as elsewhere:
        elsewhere.setattr(lease, "_same_machine", lambda holder: False)
        with pytest.raises(ConfigError, match="is in use"), Lease(workdir):
            pass


@pytest.mark.parametrize("what", ["taken", "gone"])
def test_a_holder_notices_that_it_lost_the_workdir(workdir, kind, monkeypatch, what):
    monkeypatch.setattr(kind, "renewal_seconds", 0.05)
    with Lease(workdir) as held:
        held.check()
        if what == "taken":
            write_whole(
                workdir.lease, json.dumps(record_of(workdir) | {"token": "x", "process": 7}).encode()
            )
        elif is_remote(workdir.root):
            remove(workdir.lease)
        else:
            workdir.root.rename(workdir.root.with_name("moved"))
        deadline = time.monotonic() + 10
        with pytest.raises(LeaseLost, match="process 7" if what == "taken" else "no longer exists"):
            while time.monotonic() < deadline:
                held.check()
                time.sleep(0.02)
    # What another trainer holds is left alone.
    if what == "taken":
        assert record_of(workdir)["token"] == "x"


def test_a_lease_that_cannot_be_read_is_an_error(tmp_path):
    workdir = Workdir(tmp_path)
    workdir.lease.mkdir()
    message = r"lease\.json: cannot determine which process holds the lease: .*Is a directory"
    with pytest.raises(ConfigError, match=message), Lease(workdir):
        pass


def test_one_of_two_that_take_over_a_lease_trains(workdir, kind, monkeypatch):
    """Both have read the dead holder's lease."""
    leave_behind(workdir, process=2**22 + 1, started="1")
    dead = kind(workdir.lease).read()
    with Lease(workdir):
        mine = record_of(workdir)
        real, readings = kind.read, iter([dead])
        monkeypatch.setattr(kind, "read", lambda self: next(readings, None) or real(self))
        with pytest.raises(ConfigError, match="is in use"), Lease(workdir):
            pass
        assert record_of(workdir)["token"] == mine["token"]
