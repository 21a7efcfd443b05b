"""Whole runs of `python -m birdie_jax.train` in child processes, and their outputs."""

import json
import os
import random
import sys
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp

from birdie_jax.storage import download, list_files
from birdie_jax.storage.metric_lines import is_clocked
from birdie_jax.storage.workdir import Workdir
from tests.forked_runs import ForkedRun
from tests.gcs_server import free_port
from tests.quick_jit import QUICK_FLAGS

REPOSITORY = Path(__file__).resolve().parents[1]
CONFIG = Path(__file__).with_name("micro_config.py")


def write_corpus(folder: Path, documents: int = 24) -> Path:
    """Write JSON lines of pseudo-words: each document is long enough for every arm."""
    random_words = random.Random(0)
    words = ["".join(random_words.choices("abcdefghij", k=5)) for _ in range(200)]
    path = folder / "corpus.jsonl"
    with path.open("w") as file:
        for _ in range(documents):
            file.write(json.dumps({"text": " ".join(random_words.choices(words, k=400))}) + "\n")
    return path


def train_command(workdir: Path, corpus: Path, *overrides: str, variant: str = "") -> list[str]:
    config = f"{CONFIG}:{variant}" if variant else str(CONFIG)
    return [
        *(sys.executable, "-m", "birdie_jax.train", f"--config={config}", f"--workdir={workdir}"),
        f"--config.data.source={corpus}",
        f"--config.data.cache_dir={corpus.parent / 'prepared'}",
        *overrides,
    ]


def run_environment(devices: int = 0) -> dict[str, str]:
    """Return the environment of a run on the CPU that compiles fast and runs slowly, for few steps.

    A cold run takes 19 core seconds instead of 30.
    """
    device_flags = [f"--xla_force_host_platform_device_count={devices}"] if devices else []
    given = os.environ.get("XLA_FLAGS", "").split()
    return os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": " ".join([*given, *device_flags, QUICK_FLAGS]),
    }


def start(command: list[str], *, devices: int = 0, **options) -> ForkedRun:
    """Start a command in a process with `devices` devices; pass options to `ForkedRun`."""
    return ForkedRun(command, run_environment(devices), **options)


def finish(command: list[str], **options) -> tuple[int, str]:
    """Run to the end, and return the exit status and the output."""
    process = start(command, **options)
    output, _ = process.communicate(timeout=240)
    assert process.returncode is not None
    return process.returncode, output


def checkpoint_arrays(workdir: Path, step: int) -> dict[str, np.ndarray]:
    """Read every array of a checkpoint."""
    folder = workdir / "checkpoints" / f"{step:08d}"
    arrays = {}
    handler = ocp.PyTreeCheckpointHandler()
    for item in ("state", "batches"):
        # As arrays of the host, for any devices that saved them.
        saved = handler.metadata(folder / item).tree
        types = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), saved)
        tree = handler.restore(folder / item, args=ocp.args.PyTreeRestore(restore_args=types))
        for path, value in jax.tree_util.tree_leaves_with_path(tree):
            arrays["/".join([item, *(part.key for part in path)])] = np.asarray(value)
    return arrays


def metrics(workdir: Path) -> list[dict]:
    """Read metrics.jsonl without values from a clock."""
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if not is_clocked(k)} for line in lines]


def in_two_processes(command: list[str]) -> list[list[str]]:
    """Return the commands of the two processes of a run."""
    meeting = f"--coordinator_address=127.0.0.1:{free_port()}"
    return [[*command, meeting, "--num_processes=2", f"--process_id={index}"] for index in range(2)]


def assert_same_end(found: Path, expected: Path, step: int, **tolerance: float) -> None:
    """Check that two runs end with the same parameters and metrics, exactly or within a tolerance."""
    arrays, others = checkpoint_arrays(found, step), checkpoint_arrays(expected, step)
    assert arrays.keys() == others.keys()
    for name, value in others.items():
        if name.startswith("batches/") or not tolerance:
            np.testing.assert_array_equal(arrays[name], value, err_msg=name)
        else:
            np.testing.assert_allclose(arrays[name], value, **tolerance, err_msg=name)
    if not tolerance:
        assert metrics(found) == metrics(expected)


def fetch_workdir(workdir: Workdir, folder: Path) -> Path:
    """Copy a workdir in a bucket to a folder, and return the folder."""
    for name in list_files(workdir.root):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        download(workdir.root / name, folder / name)
    return folder
