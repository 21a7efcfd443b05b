"""Measure how long a checkpoint stops the training loop, on a disk and in a bucket with a delay.

    JAX_PLATFORMS=cpu python -m benchmarks.bucket_checkpoints [--delay=0.05] [--checkpoints=5]

The script prints means over the checkpoints after the first:

- the seconds that the loop waits for the preceding upload of metrics, for the save itself, and for checks
  for a failed write, ten per second during the write;
- the CPU time of the process;
- the seconds until the checkpoint is complete.

The state is small, because copying a large state off the devices takes the same time in both cases. The
store is a server on loopback behind a proxy that delays each request by --delay seconds. Other programs
on the machine disturb these waits less than the durations of steps.
"""

import contextlib
import os
import statistics
import tempfile
import time
from pathlib import Path

from absl import app, flags, logging

from tests.gcs_server import BUCKET, free_port, gcs_environment, run_gcs_server
from tests.slow_proxy import run_slow_proxy

_DELAY = flags.DEFINE_float("delay", 0.05, "What the proxy adds to a request, in seconds.")
_CHECKPOINTS = flags.DEFINE_integer("checkpoints", 5, "Checkpoints of each kind.", lower_bound=2)

_CHECKS = 60
_COLUMNS = ("metrics", "saving", "looking", "CPU", "until whole")


def _measure(root: str) -> list[tuple[float, ...]]:
    from birdie_jax.config import CheckpointConfig
    from birdie_jax.engine import Workdir
    from birdie_jax.engine.checkpoint import Checkpoints
    from birdie_jax.engine.metrics_file import MetricsFile
    from tests.engine.test_checkpoint import POSITION, make_state

    workdir = Workdir(root)
    workdir.make()
    state, found = make_state(), []
    with (
        contextlib.closing(Checkpoints(workdir, CheckpointConfig(keep=2))) as checkpoints,
        contextlib.closing(MetricsFile(workdir, 0)) as file,
    ):
        for step in range(1, _CHECKPOINTS.value + 1):
            file.write(step, {"loss": 1.0, "step_seconds": 0.1})
            cpu, began = time.process_time(), time.monotonic()
            file.flush()
            flushed = time.monotonic()
            checkpoints.save(state, POSITION, step)
            saved = time.monotonic()
            looking = 0.0
            for _ in range(_CHECKS):
                time.sleep(0.1)
                check_began = time.monotonic()
                checkpoints.check()
                looking += time.monotonic() - check_began
                if workdir.saved_steps()[-1:] == [step]:
                    break
            checkpoints.wait()
            whole = time.monotonic() - saved
            found.append((flushed - began, saved - flushed, looking, time.process_time() - cpu, whole))
    return found[1:]


def main(arguments: list[str]) -> None:
    """Measure checkpoints on a disk and in a bucket, and print the results."""
    del arguments
    logging.set_verbosity(logging.WARNING)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        port = free_port()
        server = stack.enter_context(run_gcs_server(folder, f"127.0.0.1:{port}"))
        stack.enter_context(run_slow_proxy(port, int(server.host.partition(":")[2]), _DELAY.value))
        os.environ |= gcs_environment(f"http://127.0.0.1:{port}")
        for name, root in (("disk", str(folder / "run")), ("bucket", f"gs://{BUCKET}/run")):
            means = [statistics.mean(column) for column in zip(*_measure(root), strict=True)]
            shown = ", ".join(
                f"{column} {mean:.2f} s" for column, mean in zip(_COLUMNS, means, strict=True)
            )
            print(f"{name}: {shown}", flush=True)


if __name__ == "__main__":
    app.run(main)
