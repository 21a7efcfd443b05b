"""How a process finds the others of its run: flags, environment, Slurm, TPU, or none."""

import re
import subprocess
import sys

import pytest

from birdie_jax.engine.processes import detect_cluster, first_host, on_tpu
from birdie_jax.errors import ConfigError
from tests.forked_verbs import run_commands
from tests.gcs_server import free_port
from tests.whole_runs import CONFIG, REPOSITORY, run_environment

SLURM = {
    "SLURM_JOB_ID": "4097",
    "SLURM_STEP_NODELIST": "gpu[07-08]",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_NTASKS": "2",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
}
JOBSET = {"JAX_COORDINATOR_ADDRESS": "run-slice-0-0.run:8482", "JAX_NUM_PROCESSES": "4"}


def find(address=None, count=None, number=None, *, tpu=False, **environment):
    return detect_cluster(address, count, number, environment, tpu)


def arguments(address, count, number):
    """Return what JAX is given to join a cluster, with all devices of the machine."""
    own = {"coordinator_address": address, "num_processes": count, "process_id": number}
    return own | {"local_device_ids": None, "cluster_detection_method": "deactivate"}


def test_a_process_is_alone_by_default():
    assert find(HOME="/root", SLURM_JOB_ID="3", JOB_COMPLETION_INDEX="1") is None


@pytest.mark.parametrize(
    "address", ["host:1", "10.0.0.1:65000", "[fd00::1]:8482", "run-slice-0-0.run:8482"]
)
def test_flags_come_first(address):
    cluster = find(address, 4, 3, tpu=True, **SLURM, **JOBSET)
    assert cluster.source == "flags"
    assert cluster.arguments == arguments(address, 4, 3)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ("host:1", None, None),
            "--num_processes, --process_id: not given; found --coordinator_address=host:1;"
            " allowed: all of --coordinator_address, --num_processes, --process_id, or none of them",
        ),
        ((None, 2, 0), "--coordinator_address: not given; found --num_processes=2, --process_id=0;"),
        ((None, None, 0), "--coordinator_address, --num_processes: not given; found --process_id=0;"),
        (("host", 2, 0), "--coordinator_address: found 'host'; allowed: host:port"),
        (("http://host:1", 2, 0), "--coordinator_address: found 'http://host:1'; allowed: host:port"),
        (("host:1", 0, 0), "--num_processes: found 0; allowed: 1 or more"),
        (("host:1", 2, 2), "--process_id: found 2; allowed: 0 to 1, as --num_processes is 2"),
        (("host:1", 2, -1), "--process_id: found -1; allowed: 0 to 1, as --num_processes is 2"),
    ],
)
def test_inconsistent_flags_are_refused(flags, message):
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
        find(*flags, tpu=True, **SLURM)


def test_kubernetes():
    cluster = find(JOB_COMPLETION_INDEX="3", **JOBSET)
    assert cluster.source == "environment"
    expected = arguments("run-slice-0-0.run:8482", 4, 3)
    assert cluster.arguments == expected
    other = find(JOB_COMPLETION_INDEX="3", JAX_PROCESS_ID="2", **JOBSET)
    assert other.arguments == expected | {"process_id": 2}


def test_inconsistent_environment_variables_are_refused():
    missing = r"^JAX_PROCESS_ID or JOB_COMPLETION_INDEX: not given; found JAX_COORD"
    with pytest.raises(ConfigError, match=missing):
        find(**JOBSET)
    with pytest.raises(ConfigError, match=r"^JAX_NUM_PROCESSES: found 'four'; allowed: an integer"):
        find(JAX_COORDINATOR_ADDRESS="host:1", JAX_NUM_PROCESSES="four", JAX_PROCESS_ID="0")


def test_slurm():
    cluster = find(tpu=False, **SLURM)
    assert cluster.source == "Slurm"
    # A task alone on its node has all devices; tasks that share a node have a device each.
    assert cluster.arguments == arguments("gpu07:61441", 2, 1)
    shared = {**SLURM, "SLURM_NTASKS": "16", "SLURM_PROCID": "11", "SLURM_LOCALID": "3"}
    assert find(**shared).arguments["local_device_ids"] == [3]
    assert find(**{**SLURM, "SLURM_NTASKS": "1", "SLURM_PROCID": "0"}) is None
    # The shell of salloc is a step with one task, and keeps the job's SLURM_NTASKS.
    assert find(**{**SLURM, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}) is None


@pytest.mark.parametrize(
    ("nodelist", "first"),
    [
        ("node001", "node001"),
        ("node001,host2", "node001"),
        ("node[001-0015],host2", "node001"),
        ("node[001,007-015],host2", "node001"),
        ("node[7]", "node7"),
        ("rack[2-3]node[4,6]", "rack2node4"),
        ("gpu-[3-4].cluster", "gpu-3.cluster"),
    ],
)
def test_first_host(nodelist, first):
    assert first_host(nodelist) == first


@pytest.mark.parametrize("device", ["accel0", "vfio/0"])
def test_on_tpu(tmp_path, monkeypatch, device):
    (tmp_path / "libtpu.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    devices = tmp_path / "dev"
    assert not on_tpu({}, devices)
    (devices / device).parent.mkdir(parents=True)
    (devices / device).touch()
    assert on_tpu({}, devices)
    assert on_tpu({"JAX_PLATFORMS": "tpu,cpu"}, devices)
    assert not on_tpu({"JAX_PLATFORMS": "cpu"}, devices)
    # A driver without a device is none.
    (tmp_path / "vfio").mkdir()
    (tmp_path / "vfio" / "vfio").touch()
    assert not on_tpu({}, tmp_path)
    cluster = find(tpu=True)
    assert (cluster.source, cluster.arguments) == ("TPU", {})


GONE = """
import os, sys, time
import jax
from birdie_jax.engine import processes
if sys.argv[2] == "0":
    # Joined, and gone before it has made its devices.
    jax.devices = lambda: os.kill(os.getpid(), 9)
elif sys.argv[3] == "waits":
    jax.devices = lambda: time.sleep(60)
processes.initialize_processes(sys.argv[1], 2, int(sys.argv[2]), os.environ, 30)
"""


@pytest.mark.slow
def test_a_process_lost_before_the_devices_are_there_is_named_in_one_line():
    arguments = [
        (address, str(number), how)
        for how in ("asks", "waits")
        for address in [f"127.0.0.1:{free_port()}"]
        for number in range(2)
    ]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", GONE, *given],
            cwd=REPOSITORY,
            env=run_environment(2),
            stderr=subprocess.PIPE,
            text=True,
        )
        for given in arguments
    ]
    try:
        errors = [process.communicate(timeout=60)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [-9, 75, -9, 75], errors
    for error in errors[1::2]:
        assert "birdie_jax.train: another process is lost, or does not start" in error
        assert "Traceback" not in error


LATE = """
import os, sys
from birdie_jax.engine.processes import initialize_processes
initialize_processes(sys.argv[1], 2, int(sys.argv[2]), os.environ, 30, connect_seconds=3)
"""


@pytest.mark.slow
def test_a_process_that_waits_in_vain_for_the_other_ends_with_one_line():
    done = subprocess.run(
        [sys.executable, "-c", LATE, f"127.0.0.1:{free_port()}", "0"],
        cwd=REPOSITORY,
        env=run_environment(2),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 75, done.stderr
    assert "not all connect within 3 s" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_train_refuses_some_of_the_flags(tmp_path):
    command = ("train", f"--config={CONFIG}", f"--workdir={tmp_path / 'run'}", "--num_processes=2")
    ((status, _, errors),) = run_commands([command])
    assert status == 2
    assert errors.splitlines()[-1].startswith(
        "birdie_jax.train: --coordinator_address, --process_id: not given; found --num_processes=2;"
    )
    assert not (tmp_path / "run").exists()
