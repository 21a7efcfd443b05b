"""Tests that every mixer has the same loss, gradients and token scores on eight devices as on one."""

import os
import subprocess
import sys

import pytest

from tests.models.sharded_models import NAMES
from tests.quick_jit import QUICK_FLAGS


@pytest.mark.slow
def test_every_mixer_has_the_same_results_on_eight_devices():
    """Runs in a subprocess, because the number of devices is fixed when JAX starts."""
    flags = f"--xla_force_host_platform_device_count=8 {QUICK_FLAGS}"
    run = subprocess.run(
        [sys.executable, "-m", "tests.models.sharded_models"],
        env=os.environ | {"XLA_FLAGS": flags},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.split("\n")[:-1] == [f"same {name}" for name in (*NAMES, "scores")]
