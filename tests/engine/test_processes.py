"""How a process finds the others of its run: flags, environment, Slurm, TPU, or none."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from birdie_jax.engine.processes import detect_cluster, first_host, on_tpu
from birdie_jax.errors import ConfigError
from tests.whole_runs import CONFIG, REPOSITORY

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


def test_alone_when_nothing_says_otherwise():
    assert find(HOME="/root", SLURM_JOB_ID="3", JOB_COMPLETION_INDEX="1") is None


@pytest.mark.parametrize(
    "address", ["host:1", "10.0.0.1:65000", "[fd00::1]:8482", "run-slice-0-0.run:8482"]
)
def test_flags_come_first(address):
    cluster = find(address, 4, 3, tpu=True, **SLURM, **JOBSET)
    assert cluster.source == "flags"
    assert cluster.arguments == {
        "coordinator_address": address,
        "num_processes": 4,
        "process_id": 3,
        "local_device_ids": None,
        "cluster_detection_method": "deactivate",
    }


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
def test_flags_that_do_not_go_together(flags, message):
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
        find(*flags, tpu=True, **SLURM)


def test_kubernetes():
    cluster = find(JOB_COMPLETION_INDEX="3", **JOBSET)
    assert cluster.source == "environment"
    assert (cluster.arguments["coordinator_address"], cluster.arguments["process_id"]) == (
        "run-slice-0-0.run:8482",
        3,
    )
    assert find(JOB_COMPLETION_INDEX="3", JAX_PROCESS_ID="2", **JOBSET).arguments["process_id"] == 2


def test_environment_that_does_not_go_together():
    with pytest.raises(
        ConfigError, match=r"^JAX_PROCESS_ID or JOB_COMPLETION_INDEX: not given; found JAX_COORD"
    ):
        find(**JOBSET)
    with pytest.raises(ConfigError, match=r"^JAX_NUM_PROCESSES: found 'four'; allowed: an integer"):
        find(JAX_COORDINATOR_ADDRESS="host:1", JAX_NUM_PROCESSES="four", JAX_PROCESS_ID="0")


def test_slurm_task_alone_on_its_node_has_all_devices():
    cluster = find(tpu=False, **SLURM)
    assert cluster.source == "Slurm"
    assert cluster.arguments == {
        "coordinator_address": "gpu07:61441",
        "num_processes": 2,
        "process_id": 1,
        "local_device_ids": None,
        "cluster_detection_method": "deactivate",
    }


def test_slurm_tasks_that_share_a_node_have_a_device_each():
    shared = {**SLURM, "SLURM_NTASKS": "16", "SLURM_PROCID": "11", "SLURM_LOCALID": "3"}
    assert find(**shared).arguments["local_device_ids"] == [3]


def test_slurm_with_one_task():
    assert find(**{**SLURM, "SLURM_NTASKS": "1", "SLURM_PROCID": "0"}) is None


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


def test_tpu_is_asked_by_jax():
    cluster = find(tpu=True)
    assert (cluster.source, cluster.arguments) == ("TPU", {})


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


def test_vfio_without_a_device_is_no_tpu(tmp_path, monkeypatch):
    (tmp_path / "libtpu.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "vfio").mkdir()
    (tmp_path / "vfio" / "vfio").touch()
    assert not on_tpu({}, tmp_path)


TWO = """
import os, sys
import jax, numpy as np
from birdie_jax.engine.processes import initialize_processes
cluster = initialize_processes(sys.argv[1], 2, int(sys.argv[2]), os.environ, 30)
mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
mine = np.full((2,), 10.0 ** jax.process_index(), np.float32)
rows = jax.make_array_from_process_local_data(
    jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data")), mine
)
print(cluster.source, jax.process_index(), jax.process_count(), float(jax.jit(lambda x: x.sum())(rows)))
"""


@pytest.mark.slow
def test_two_processes_join():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "PYTHONPATH": str(REPOSITORY),
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", TWO, address, str(number)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=60) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for number, (output, error) in enumerate(outputs):
        assert output.splitlines()[-1] == f"flags {number} 2 22.0", error


@pytest.mark.slow
def test_train_refuses_some_of_the_flags(tmp_path):
    done = subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "birdie_jax.train",
                f"--config={CONFIG}",
                f"--workdir={tmp_path / 'run'}",
            ),
            "--num_processes=2",
        ],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(
        "birdie_jax.train: --coordinator_address, --process_id: not given; found --num_processes=2;"
    )
    assert not Path(tmp_path / "run").exists()
