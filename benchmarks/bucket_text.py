"""Measure how long batches wait for text: on a disk, in a slow bucket, and in copies of a bucket's shards.

    python -m benchmarks.bucket_text [--seconds=0.05] [--rows=32] [--length=2048] [--batches=20]

For each case, the script prints the seconds until the first batch, and the mean and the longest wait for
a later batch. A train step of --step_seconds precedes each later batch. The bucket is a server on
loopback behind a proxy that delays each request.
"""

import contextlib
import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from absl import app, flags

from tests.gcs_server import BUCKET, free_port, gcs_environment, run_gcs_server
from tests.slow_proxy import run_slow_proxy

_SECONDS = flags.DEFINE_float("seconds", 0.05, "What the proxy adds to a request.")
_STEP_SECONDS = flags.DEFINE_float("step_seconds", 0.5, "Duration of a train step.")
_ROWS = flags.DEFINE_integer("rows", 32, "Rows of a batch.")
_LENGTH = flags.DEFINE_integer("length", 2048, "Positions of a row.")
_BATCHES = flags.DEFINE_integer("batches", 20, "Batches after the first.")


def _measure(name: str, place: str, mirror_gib: int) -> None:
    from birdie_jax.batching.mixture_history import DecisionSchedule, MixtureHistory
    from birdie_jax.batching.pipeline import RowStreams, close_prefetched, prefetch_batches
    from birdie_jax.batching.row_stream import RowSettings
    from birdie_jax.objectives import Arm, make_objective
    from birdie_jax.text import TokenShards

    began = time.perf_counter()
    text = TokenShards(place, "train", mirror_gib=mirror_gib)
    schedule = DecisionSchedule(1 << 30, 1 << 20)
    mixtures = MixtureHistory(1, schedule.num_mixtures)
    mixtures.publish(np.ones(1))
    streams = RowStreams(
        text,
        (Arm("causal", make_objective("causal_lm"), "causal"),),
        RowSettings(seed=0, rows=_ROWS.value, length=_LENGTH.value, spacing=1, lookahead=12),
        mixtures,
        first_step=0,
        schedule=schedule,
    )
    batches = iter(prefetch_batches(streams, workers=0, prefetch=4))
    next(batches)
    first = time.perf_counter() - began
    waits = []
    for _ in range(_BATCHES.value):
        time.sleep(_STEP_SECONDS.value)
        wait_began = time.perf_counter()
        next(batches)
        waits.append(time.perf_counter() - wait_began)
    mixtures.close()
    close_prefetched(batches)
    print(
        f"{name}: first batch after {first:.2f} s, then {statistics.mean(waits):.3f} s on average, "
        f"{max(waits):.3f} s at most, for {len(text):,} records in {len(text.manifest.train)} shards",
        flush=True,
    )


def main(arguments: list[str]) -> None:
    """Prepare the standard library as text, upload it to the bucket, and measure."""
    del arguments
    from birdie_jax.storage.object_store import file_system
    from birdie_jax.text import prepare

    port = free_port()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(run_gcs_server(folder, f"127.0.0.1:{port}"))
        stack.enter_context(run_slow_proxy(port, int(server.host.partition(":")[2]), _SECONDS.value))
        os.environ |= gcs_environment(f"http://127.0.0.1:{port}") | {"XDG_CACHE_HOME": str(folder)}
        prepared = prepare("stdlib", folder / "prepared", shard_tokens=1 << 19, workers=0, progress=False)
        url = f"gs://{BUCKET}/prepared"
        for file in sorted(Path(os.fspath(prepared)).iterdir()):
            file_system(url).put_file(str(file), f"{url}/{file.name}")
        _measure("disk", str(prepared), 0)
        _measure("bucket, in place", url, 0)
        _measure("bucket, copied meanwhile", url, 64)
        _measure("bucket, copied before", url, 64)


if __name__ == "__main__":
    app.run(main)
