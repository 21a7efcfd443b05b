"""Kill runs in a bucket at random moments, and compare their results with a run on a disk.

    JAX_PLATFORMS=cpu python -m benchmarks.bucket_kills --output=kills.jsonl [--kills=100] [--seed=0]

The workdir and the text are `gs://` URLs of a server on loopback. A proxy in front of the server records
every request. The script starts a run and kills it by SIGKILL up to --kills_a_run times. It draws each
moment uniformly from an undisturbed run: the run can be starting, compiling, training, saving or ending.
A moment is a CPU time of the process, because a shared machine is sometimes slower, plus some tenths of a
second, to reach moments without CPU time.

Then the script lets the run end. The checkpoint must equal that of the run on a disk bit for bit. The
metrics must be equal except for clocks. No request may name an object outside of the run and its text.
Every other run reads its text record by record, without copying the shards first.

Each run is a line of --output. If you restart the command, it continues after the recorded runs. The exit
status is 1 if a run differs.
"""

import collections
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from absl import app, flags, logging

from benchmarks.fault_kinds.starts import cpu_seconds_of
from tests.failing_proxy import FailingProxy, run_failing_proxy
from tests.gcs_server import BUCKET, gcs_environment, run_gcs_server
from tests.micro_config import get_config
from tests.whole_runs import (
    CONFIG,
    REPOSITORY,
    checkpoint_arrays,
    fetch_workdir,
    metrics,
    run_environment,
    write_corpus,
)

_KILLS = flags.DEFINE_integer("kills", 100, "Kills in all.", lower_bound=1)
_KILLS_A_RUN = flags.DEFINE_integer("kills_a_run", 5, "Kills before a run is left to end.", lower_bound=1)
_SEED = flags.DEFINE_integer("seed", 0, "Seed of the moments.")
_OUTPUT = flags.DEFINE_string("output", None, "Where a line for each run is added.", required=True)

_STEPS = 24
_LIMIT_SECONDS = 600
_MAX_WAIT_SECONDS = 0.3
_TEXT = "prepared"


class _Moment(NamedTuple):
    """The moment of a kill: a CPU time of the process, and a wait after it."""

    cpu_seconds: float
    wait_seconds: float


class _Starts:
    """Starts of training in separate processes, which share a folder of compiled programs."""

    def __init__(self, folder: Path, environment: dict[str, str]):
        self._folder = folder
        self._environment = run_environment() | environment
        self._environment |= {
            "XDG_CACHE_HOME": str(folder / "cache"),
            "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
            # Cache every program, so a start takes as little time as possible.
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        self._count = 0

    def train(self, workdir: str, text: str, *, mirrored: bool, kill: _Moment | None) -> dict[str, Any]:
        """Train until the end or the kill, and return the durations, the kind of end and the last step."""
        command = [
            *(sys.executable, "-m", "birdie_jax.train", f"--config={CONFIG}", f"--workdir={workdir}"),
            *(f"--config.data.prepared={text}", f"--config.data.mirror_gib={64 if mirrored else 0}"),
            "--config.train.log_every_steps=1",
        ]
        self._count += 1
        log = self._folder / f"start{self._count}.log"
        with log.open("wb") as output:
            began = time.monotonic()
            process = subprocess.Popen(
                command, cwd=REPOSITORY, env=self._environment, stdout=output, stderr=subprocess.STDOUT
            )
            cpu_seconds = 0.0
            while process.poll() is None:
                cpu_seconds = max(cpu_seconds, cpu_seconds_of(process.pid))
                if kill is not None and cpu_seconds >= kill.cpu_seconds:
                    time.sleep(kill.wait_seconds)
                    process.send_signal(signal.SIGKILL)
                    process.wait()
                elif time.monotonic() - began > _LIMIT_SECONDS:
                    process.kill()
                    process.wait()
                    sys.exit(f"{workdir}: not at its end after {_LIMIT_SECONDS} s:\n{log.read_text()}")
                time.sleep(0.01)
            seconds = time.monotonic() - began
        printed = log.read_text()
        if process.returncode not in (0, -signal.SIGKILL):
            sys.exit(f"{workdir}: ended with status {process.returncode}:\n{printed}")
        steps = [int(step) for step in re.findall(r"step (\d+)/", printed)]
        return {
            "seconds": round(seconds, 2),
            "cpu_seconds": round(cpu_seconds, 2),
            "killed": process.returncode != 0,
            "step": steps[-1] if steps else None,
        }


def _differences(found: Path, expected: Path) -> list[str]:
    """Return the names of the results that differ between two runs."""
    differing = [] if metrics(found) == metrics(expected) else ["metrics.jsonl"]
    arrays, others = checkpoint_arrays(found, _STEPS), checkpoint_arrays(expected, _STEPS)
    differing += sorted(arrays.keys() ^ others.keys())
    same = arrays.keys() & others.keys()
    return differing + sorted(name for name in same if not np.array_equal(arrays[name], others[name]))


def _kill_and_end(
    number: int, moments: Sequence[_Moment], starts: _Starts, proxy: FailingProxy, expected: Path
) -> dict[str, Any]:
    """Kill the starts of one run at their moments, let the run end, and return its record."""
    from birdie_jax.storage.workdir import Workdir

    workdir = Workdir(f"gs://{BUCKET}/runs/{number:04d}")
    options = {"text": f"gs://{BUCKET}/{_TEXT}", "mirrored": number % 2 == 0}
    prefixes = f"runs/{number:04d}/", f"{_TEXT}/"
    before, outside = len(proxy.requests), len(proxy.requests_outside(*prefixes))
    killed, ended = [], None
    for moment in moments:
        start = starts.train(str(workdir), **options, kill=moment)
        if not start["killed"]:
            ended = start
            break
        steps = workdir.saved_steps()
        killed.append(start | {"checkpoint": steps[-1] if steps else None})
    ended = ended or starts.train(str(workdir), **options, kill=None)
    strays = proxy.requests_outside(*prefixes)[outside:]
    with tempfile.TemporaryDirectory() as folder:
        differing = _differences(fetch_workdir(workdir, Path(folder)), expected)
    return {
        "run": number,
        "seed": _SEED.value,
        "kills": killed,
        "last_start": ended,
        "requests": len(proxy.requests) - before,
        "requests_outside": [f"{each.method} {each.path}" for each in strays],
        "differing": differing,
    }


def _in_words(done: dict[str, Any]) -> str:
    kills = ", ".join(
        f"{kill['seconds']:.1f} s ({'before a step' if kill['step'] is None else kill['step']})"
        for kill in done["kills"]
    )
    faults = [*done["differing"], *done["requests_outside"]][:5]
    return (
        f"run {done['run']}: killed after {kills}; {done['requests']} requests; "
        f"{'differs: ' + ', '.join(faults) if faults else 'the same'}"
    )


def _summary(runs: list[dict[str, Any]], duration: float) -> str:
    kills = [kill for run in runs for kill in run["kills"]]
    steps = collections.Counter(kill["step"] for kill in kills)
    early = steps.pop(None, 0)
    shown = ", ".join(f"{step}: {count}" for step, count in sorted(steps.items()))
    same = sum(not (run["differing"] or run["requests_outside"]) for run in runs)
    requests = sum(run["requests"] for run in runs)
    return (
        f"{len(kills)} kills in {len(runs)} runs of {duration:.1f} s of CPU time; before the first "
        f"step shown: {early}; after step (kills): {shown}; {requests:,} requests; "
        f"runs that end like the one on a disk, with no request outside: {same} of {len(runs)}"
    )


def main(arguments: list[str]) -> None:
    """Run on a disk, run undisturbed in the bucket to measure the duration, and then kill runs."""
    del arguments
    from birdie_jax.storage import upload
    from birdie_jax.storage.object_store import make_path
    from birdie_jax.text import prepare

    logging.set_verbosity(logging.WARNING)
    output = Path(_OUTPUT.value)
    runs = [json.loads(line) for line in output.read_text().splitlines()] if output.exists() else []
    if any(run["seed"] != _SEED.value for run in runs):
        sys.exit(f"{output}: has runs of another seed than {_SEED.value}; allowed: another file")
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        proxy = stack.enter_context(run_failing_proxy())
        server = stack.enter_context(run_gcs_server(folder, proxy.host))
        proxy.upstream = server.host
        environment = gcs_environment(f"http://{proxy.host}")
        os.environ |= environment
        data: Any = get_config().data
        text = prepare(
            str(write_corpus(folder)),
            folder / _TEXT,
            vocab_size=data.vocab_size,
            record_tokens=data.record_tokens,
            validation_fraction=data.validation_fraction,
            workers=0,
            progress=False,
        )
        for file in sorted(Path(text).iterdir()):
            upload(file, make_path(f"gs://{BUCKET}/{_TEXT}/{file.name}"))
        starts = _Starts(folder, environment)
        expected = folder / "disk"
        starts.train(str(expected), str(text), mirrored=False, kill=None)
        url = f"gs://{BUCKET}/{_TEXT}"
        undisturbed = starts.train(f"gs://{BUCKET}/runs/undisturbed", url, mirrored=True, kill=None)
        duration = undisturbed["cpu_seconds"]
        print(f"undisturbed: {duration:.1f} s of CPU time, {undisturbed['seconds']:.1f} s", flush=True)
        while (done := sum(len(run["kills"]) for run in runs)) < _KILLS.value:
            kills = min(_KILLS_A_RUN.value, _KILLS.value - done)
            draws = random.Random(f"{_SEED.value}/{len(runs)}")
            moments = [
                _Moment(draws.uniform(0, duration), draws.uniform(0, _MAX_WAIT_SECONDS))
                for _ in range(kills)
            ]
            run = _kill_and_end(len(runs), moments, starts, proxy, expected)
            runs.append(run)
            with output.open("a") as lines:
                lines.write(json.dumps(run) + "\n")
            print(_in_words(run), flush=True)
    print(_summary(runs, duration))
    sys.exit(any(run["differing"] or run["requests_outside"] for run in runs))


if __name__ == "__main__":
    app.run(main)
