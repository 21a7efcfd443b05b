"""Measure how much longer a train step takes with the workdir in a bucket.

    JAX_PLATFORMS=cpu python -m benchmarks.bucket_steps [--rounds=3] [--steps=600] [--delay=0.05]

A round is a run on a disk and a run with a `gs://` workdir, in alternating order. The runs use the
default cadences: a line of metrics every 10 steps, a checkpoint every 500 steps, the lease every 10
seconds, metrics every 30 seconds, TensorBoard every 120 seconds. Training runs on the core --train_core.
The store's server runs on --server_core, because a remote store would not use this machine's processor. A
proxy delays each request by --delay seconds.

The script compares two durations of a step: the mean from the second line of metrics on, which includes
checkpoints but not compilation, and the median over lines, which excludes a few slow ones. It prints both
for each round, their ratios, the mean ratios and the standard errors. It also prints the ratios of
consecutive runs on the disk, which show the noise of the machine.
"""

import contextlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from absl import app, flags, logging

from tests.gcs_server import BUCKET, free_port, gcs_environment, run_gcs_server
from tests.slow_proxy import run_slow_proxy
from tests.whole_runs import CONFIG, REPOSITORY, fetch_workdir, write_corpus

_ROUNDS = flags.DEFINE_integer("rounds", 3, "Runs of each kind.", lower_bound=1)
_STEPS = flags.DEFINE_integer("steps", 600, "Train steps of a run.", lower_bound=30)
_FEATURES = flags.DEFINE_integer("features", 64, "Features of the model.")
_LENGTH = flags.DEFINE_integer("length", 512, "Positions of a row.")
_DELAY = flags.DEFINE_float("delay", 0.05, "What the proxy adds to a request, in seconds.")
_TRAIN_CORE = flags.DEFINE_integer("train_core", 0, "The core that trains.")
_SERVER_CORE = flags.DEFINE_integer("server_core", 1, "The core of the store's server.")


def _train(workdir: str, corpus: Path) -> None:
    options = {
        "data.source": corpus,
        "data.cache_dir": corpus.parent / "prepared",
        "batching.length": _LENGTH.value,
        "model.features": _FEATURES.value,
        "model.mlp_features": 2 * _FEATURES.value,
        "model.state": _FEATURES.value,
        "bandit.policy": "fixed",
        "bandit.every_steps": 1 << 20,
        "train.num_steps": _STEPS.value,
        "train.log_every_steps": 10,
        "checkpoint.every_steps": 500,
    }
    command = [
        *("taskset", "-c", str(_TRAIN_CORE.value)),
        *(sys.executable, "-m", "birdie_jax.train", f"--config={CONFIG}", f"--workdir={workdir}"),
        *(f"--config.{name}={value}" for name, value in options.items()),
    ]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XDG_CACHE_HOME": str(corpus.parent / "cache")}
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(f"{workdir}: ended with status {done.returncode}:\n{done.stdout}{done.stderr}")


class _Durations(NamedTuple):
    """Durations of a train step of one run, in milliseconds."""

    mean: float
    median: float


def _step_durations(workdir: Path) -> _Durations:
    """Return the mean and the median over the lines of metrics, without the first."""
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    milliseconds = [1000 * line["step_seconds"] for line in lines if "step_seconds" in line][1:]
    return _Durations(statistics.mean(milliseconds), statistics.median(milliseconds))


def _measure(kind: str, number: int, folder: Path, corpus: Path) -> _Durations:
    from birdie_jax.storage.workdir import Workdir

    local = folder / f"{kind}{number}"
    if kind == "disk":
        _train(str(local), corpus)
        return _step_durations(local)
    workdir = Workdir(f"gs://{BUCKET}/run{number}")
    _train(str(workdir), corpus)
    return _step_durations(fetch_workdir(workdir, local))


def _print_ratios(name: str, bucket: list[float], disk: list[float]) -> None:
    ratios = [one / other for one, other in zip(bucket, disk, strict=True)]
    error = statistics.stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else float("nan")
    of_disk = ", ".join(f"{later / before:.4f}" for before, later in itertools.pairwise(disk))
    print(f"{name}: ratio {statistics.mean(ratios):.4f} +- {error:.4f}; disk after disk: {of_disk}")


def main(arguments: list[str]) -> None:
    """Measure all rounds, and print the results."""
    del arguments
    logging.set_verbosity(logging.WARNING)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        # The server and the proxy inherit the core of this process.
        os.sched_setaffinity(0, {_SERVER_CORE.value})
        port = free_port()
        server = stack.enter_context(run_gcs_server(folder, f"127.0.0.1:{port}"))
        stack.enter_context(run_slow_proxy(port, int(server.host.partition(":")[2]), _DELAY.value))
        os.environ |= gcs_environment(f"http://127.0.0.1:{port}")
        corpus = write_corpus(folder, documents=200)
        # Later runs reuse the text and the compiled programs.
        _train(str(folder / "warm"), corpus)
        found: dict[str, list[_Durations]] = {"disk": [], "bucket": []}
        for number in range(_ROUNDS.value):
            for kind in ("disk", "bucket") if number % 2 == 0 else ("bucket", "disk"):
                found[kind].append(_measure(kind, number, folder, corpus))
            shown = ", ".join(
                f"{kind} {durations[-1].mean:.2f} ms (median {durations[-1].median:.2f} ms)"
                for kind, durations in found.items()
            )
            print(f"round {number}: a step takes {shown}", flush=True)
    for name in _Durations._fields:
        bucket, disk = ([getattr(one, name) for one in found[kind]] for kind in ("bucket", "disk"))
        _print_ratios(name, bucket, disk)


if __name__ == "__main__":
    app.run(main)
