"""One trainer at a time; what a dead one left behind is taken over."""

import json
import os
import subprocess
import sys
import time

import pytest

from birdie_jax.engine import Workdir, lease, lease_file
from birdie_jax.engine.lease import Lease
from birdie_jax.errors import ConfigError, LeaseLost


@pytest.fixture
def workdir(tmp_path):
    return Workdir(tmp_path)


def leave_behind(workdir, **changes):
    """Write the lease of a trainer that no longer renews it."""
    with Lease(workdir):
        record = json.loads(workdir.lease.read_text())
    workdir.lease.write_text(json.dumps(record | changes))


def test_a_second_trainer_is_refused_and_told_who_holds_it(workdir):
    with Lease(workdir):
        since = json.loads(workdir.lease.read_text())["since"]
        with pytest.raises(ConfigError) as error, Lease(workdir):
            pass
        assert str(error.value).startswith(f"{workdir}: is in use: process {os.getpid()} on ")
        assert f"has trained here since {since}; allowed: another workdir" in str(error.value)
    assert not workdir.lease.exists()


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
        assert json.loads(workdir.lease.read_text())["process"] == os.getpid()
    assert f"process {process.pid} on" in caplog.text


def test_a_number_that_another_process_has_by_now_is_no_holder(workdir):
    leave_behind(workdir, process=os.getppid(), started="1")
    with Lease(workdir):
        assert json.loads(workdir.lease.read_text())["process"] == os.getpid()


@pytest.mark.parametrize("contents", [None, "garbage", "[]"])
def test_a_lease_of_another_machine_ends_when_it_is_not_renewed(workdir, monkeypatch, contents):
    monkeypatch.setattr(lease_file.LocalLeaseFile, "expiry_seconds", 0.6)
    monkeypatch.setattr(lease, "_POLL_SECONDS", 0.1)
    leave_behind(workdir, machine="another", host="far")
    if contents is not None:
        workdir.lease.write_text(contents)
    begin = time.monotonic()
    with Lease(workdir):
        assert time.monotonic() - begin > 0.5


def test_a_lease_of_another_machine_that_is_renewed_is_respected(workdir, monkeypatch):
    monkeypatch.setattr(lease_file.LocalLeaseFile, "renewal_seconds", 0.1)
    monkeypatch.setattr(lease, "_POLL_SECONDS", 0.3)
    with Lease(workdir), monkeypatch.context() as elsewhere:
        elsewhere.setattr(lease, "_same_machine", lambda holder: False)
        with pytest.raises(ConfigError, match="is in use"), Lease(workdir):
            pass


@pytest.mark.parametrize("what", ["taken", "gone"])
def test_a_holder_notices_that_it_lost_the_workdir(tmp_path, monkeypatch, what):
    monkeypatch.setattr(lease_file.LocalLeaseFile, "renewal_seconds", 0.05)
    workdir = Workdir(tmp_path / "run")
    workdir.make()
    with Lease(workdir) as held:
        held.check()
        record = json.loads(workdir.lease.read_text())
        if what == "taken":
            workdir.lease.write_text(json.dumps(record | {"token": "other", "process": 7}))
        else:
            workdir.root.rename(tmp_path / "moved")
        deadline = time.monotonic() + 10
        with pytest.raises(LeaseLost, match="process 7" if what == "taken" else "no longer there"):
            while time.monotonic() < deadline:
                held.check()
                time.sleep(0.02)
    # What another trainer holds is left alone.
    assert workdir.lease.exists() == (what == "taken")


def test_a_lease_that_cannot_be_read_is_told(workdir):
    workdir.lease.mkdir()
    message = r"lease\.json: who trains here cannot be told: .*Is a directory"
    with pytest.raises(ConfigError, match=message), Lease(workdir):
        pass


def test_the_lease_of_whoever_took_over_is_left_alone(workdir):
    with Lease(workdir):
        record = json.loads(workdir.lease.read_text())
        workdir.lease.write_text(json.dumps(record | {"token": "other"}))
    assert json.loads(workdir.lease.read_text())["token"] == "other"


def test_of_two_that_take_over_one_lease_one_trains(workdir):
    """What each of the two has read is the dead holder's lease."""
    leave_behind(workdir, process=2**22 + 1, started="1")
    dead = lease_file.LocalLeaseFile(workdir.lease).read()
    with Lease(workdir):
        mine = json.loads(workdir.lease.read_text())
        late = Lease(workdir)
        with pytest.MonkeyPatch.context() as monkeypatch:
            real, readings = lease_file.LocalLeaseFile.read, iter([dead])
            monkeypatch.setattr(
                lease_file.LocalLeaseFile, "read", lambda self: next(readings, None) or real(self)
            )
            with pytest.raises(ConfigError, match="is in use"), late:
                pass
        assert json.loads(workdir.lease.read_text())["token"] == mine["token"]
