"""Stand-ins for the programs of clouds and clusters."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launch.stand_in import REPOSITORY, StandIns


@pytest.fixture
def stand_ins(tmp_path) -> StandIns:
    return StandIns(tmp_path, "gcloud", "git", "kubectl", "python", "sbatch", "scontrol", "srun", "uv")


@pytest.fixture
def launch(stand_ins, tmp_path) -> Callable[..., subprocess.CompletedProcess]:
    """Run `python -m launch.NAME` with the stand-ins on PATH, from a folder of its own."""

    def run(name: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, "-m", f"launch.{name}", *arguments],
            env=stand_ins.environment(**environment),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


@pytest.fixture
def run_name() -> str:
    """A name that no other test has at this moment; what is built under it goes away."""
    import uuid

    name = f"test-{uuid.uuid4().hex[:12]}"
    yield name
    for path in Path(REPOSITORY, "build", "launch").glob(f"{name}*"):
        path.unlink()
