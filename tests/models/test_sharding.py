"""Every model over eight devices gives the loss, gradients and scores of tokens it gives on one."""

import os
import subprocess
import sys

import pytest

from birdie_jax.models import model_names
from tests.quick_jit import QUICK_FLAGS


@pytest.mark.slow
def test_every_model_is_the_same_over_eight_devices():
    """In a process of its own: the number of devices is fixed when JAX starts."""
    flags = f"--xla_force_host_platform_device_count=8 {QUICK_FLAGS}"
    run = subprocess.run(
        [sys.executable, "-m", "tests.models.sharded_models"],
        env=os.environ | {"XLA_FLAGS": flags},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.split("\n")[:-1] == [f"same {name}" for name in (*model_names(), "scores")]
