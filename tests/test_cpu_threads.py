"""Several CPU devices in one process get enough threads for their collectives."""

import os
import subprocess
import sys

import pytest

from birdie_jax.cpu_threads import start_enough_threads

# The sums of many steps are in flight at once, on one core.
_MANY_COLLECTIVES = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from birdie_jax.cpu_threads import start_enough_threads
start_enough_threads()

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

mesh = jax.make_mesh((4,), ("data",))
x = jax.device_put(np.ones((64, 64), np.float32), NamedSharding(mesh, PartitionSpec("data")))

@jax.jit
def step(x):
    for _ in range(6):
        x = jnp.tanh(x @ jnp.eye(64))
        x = x - x.mean()
    return x.sum(0)

for _ in range(200):
    total = sum(step(x) for _ in range(20))
    jax.device_get((total[:3], total[3:]))
"""


@pytest.fixture
def environment(monkeypatch):
    for name in ("PJRT_NPROC", "XLA_FLAGS", "JAX_NUM_CPU_DEVICES"):
        # Of a variable that is not set, monkeypatch does not undo the change.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return monkeypatch


@pytest.mark.parametrize(
    ("variables", "least"),
    [
        ({}, None),
        ({"XLA_FLAGS": "--xla_dump_to=x"}, None),
        ({"XLA_FLAGS": "--xla_force_host_platform_device_count=1"}, None),
        ({"XLA_FLAGS": "--xla_dump_to=x --xla_force_host_platform_device_count=500"}, 1000),
        ({"JAX_NUM_CPU_DEVICES": "400"}, 800),
    ],
)
def test_two_threads_per_device(environment, variables, least):
    for name, value in variables.items():
        environment.setenv(name, value)
    start_enough_threads()
    assert os.environ.get("PJRT_NPROC") == (least and str(least))


def test_a_number_of_the_user_stays(environment):
    environment.setenv("PJRT_NPROC", "7")
    environment.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
    start_enough_threads()
    assert os.environ["PJRT_NPROC"] == "7"


@pytest.mark.slow
def test_collectives_of_four_devices_on_one_core(environment):
    environment.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
    run = subprocess.run(
        [sys.executable, "-c", _MANY_COLLECTIVES], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
