"""Time linear_scan and other scans on this machine: `python -m benchmarks.scan`.

The shape on a CPU is [8, 2048, 1024] in float32. The shapes on a GPU or TPU are [8, 2048, 2048] and
[1, 16384, 2048] in bfloat16 and float32. For a forward pass, and for a forward with a backward pass, the
script prints:

- milliseconds;
- GB/s, for 3 (forward) or 8 (with backward) memory accesses per element;
- the time relative to an elementwise product of the same arrays.

All implementations run in turns in one process. The script prints medians. It skips `recurrentgemma`'s
native scan if that is not installed.

On a CPU, the process keeps freed memory, as `train` does. "pages" is the number of pages that the system
had to clear for a call. If you set a variable of glibc's malloc, such as MALLOC_TRIM_THRESHOLD_=131072,
memory goes back to the system after every call, as in programs without `keep_freed_memory`. The product
runs on all cores, and a scan runs on one. For a comparison on one core, use `taskset -c 0`.

If libtpu is installed, the script also prints the table of `benchmarks.scan_tpu`. It names the
measurements that are not possible on this machine.
"""

import argparse
import functools
import importlib.util
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

from birdie_jax.host_memory import keep_freed_memory

# This must run before JAX allocates memory. See keep_freed_memory.
KEPT = keep_freed_memory()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

from pallas_kernels.linear_scan import bidirectional_scan, linear_scan  # noqa: E402


def product(a, x):
    return a * x


def lax_scan(a, x):
    """Scan with `lax.scan` over the time axis moved to the front."""

    def step(h, ax):
        h = ax[0].astype(jnp.float32) * h + ax[1].astype(jnp.float32)
        return h, h.astype(x.dtype)

    start = jnp.zeros((a.shape[0], a.shape[2]), jnp.float32)
    _, h = jax.lax.scan(step, start, (jnp.swapaxes(a, 0, 1), jnp.swapaxes(x, 0, 1)))
    return jnp.swapaxes(h, 0, 1)


def associative_scan(a, x):
    """Scan with `jax.lax.associative_scan` in float32."""

    def combine(left, right):
        return left[0] * right[0], right[0] * left[1] + right[1]

    pairs = (a.astype(jnp.float32), x.astype(jnp.float32))
    return jax.lax.associative_scan(combine, pairs, axis=1)[1].astype(x.dtype)


def implementations():
    """Return name -> scan. The product is the first."""
    found = {
        "elementwise product": product,
        "linear_scan": linear_scan,
        "bidirectional_scan": bidirectional_scan,
        "lax.scan": lax_scan,
        "associative_scan": associative_scan,
    }
    if importlib.util.find_spec("recurrentgemma"):
        from recurrentgemma import common
        from recurrentgemma.jax.scan import linear_scan as theirs

        native = functools.partial(theirs, scan_type=common.ScanType.LINEAR_NATIVE)
        found["recurrentgemma native"] = lambda a, x: native(x=x, a=a)[0]
    return found


def medians(functions, arguments, repeats):
    """Return the median seconds and pages cleared of each function, run in turns after two calls each."""
    measured = {name: [] for name in functions}
    for function in functions.values():
        for _ in range(2):
            jax.block_until_ready(function(*arguments))
    for _ in range(repeats):
        for name, function in functions.items():
            pages = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            begin = time.perf_counter()
            jax.block_until_ready(function(*arguments))
            seconds = time.perf_counter() - begin
            measured[name].append((seconds, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - pages))
    return {name: tuple(map(statistics.median, zip(*rows, strict=True))) for name, rows in measured.items()}


def measure(shape, dtype, repeats):
    """Print the table of a shape and dtype; return name -> (forward, with backward) in milliseconds."""
    keys = jax.random.split(jax.random.key(0), 3)
    a = jax.nn.sigmoid(2 + jax.random.normal(keys[0], shape)).astype(dtype)
    x, dh = (jax.random.normal(key, shape).astype(dtype) for key in keys[1:])

    def with_backward(scan):
        def run(a, x, dh):
            h, pull = jax.vjp(scan, a, x)
            return h, pull(dh)

        return jax.jit(run)

    scans = implementations()
    forward = medians({name: jax.jit(scan) for name, scan in scans.items()}, (a, x), repeats)
    both = medians({name: with_backward(scan) for name, scan in scans.items()}, (a, x, dh), repeats)
    first = next(iter(scans))
    where = jax.devices()[0].device_kind
    if where == "cpu":
        where += f", {len(os.sched_getaffinity(0))} cores, freed memory {'kept' if KEPT else 'given back'}"
    print(f"\n{where}, {jnp.dtype(dtype).name} {list(shape)}\n")
    columns = "ms | GB/s | pages | times product"
    print(f"| implementation | forward {columns} | with backward {columns} |")
    print("|---" * 9 + "|")
    for name in scans:
        cells = []
        for measured, accesses in ((forward, 3), (both, 8)):
            seconds, pages = measured[name]
            cells += [
                f"{seconds * 1e3:.1f}",
                f"{accesses * a.nbytes / seconds / 1e9:.1f}",
                f"{pages:,.0f}",
                f"{seconds / measured[first][0]:.2f}",
            ]
        print(f"| {name} | {' | '.join(cells)} |")
    return {name: (forward[name][0] * 1e3, both[name][0] * 1e3) for name in scans}


def draw(results, path):
    """Draw a panel for each shape, with a pair of bars for each implementation."""
    figure = Figure(figsize=(9, 3.2 * len(results)), layout="constrained")
    panels = figure.subplots(len(results), squeeze=False)[:, 0]
    for panel, (title, rows) in zip(panels, results.items(), strict=True):
        places = range(len(rows))
        panel.barh([p - 0.2 for p in places], [v[0] for v in rows.values()], 0.4, label="forward")
        panel.barh([p + 0.2 for p in places], [v[1] for v in rows.values()], 0.4, label="with backward")
        panel.set_yticks(list(places), list(rows))
        panel.invert_yaxis()
        panel.set_xlabel("milliseconds")
        panel.set_title(title)
        panel.legend()
    figure.savefig(path, dpi=80)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--plot", type=Path, default=Path("scan.png"))
    parser.add_argument("--no_tpu", action="store_true", help="do not compile for TPUs")
    arguments = parser.parse_args()
    platform = jax.default_backend()
    shapes = (
        [((8, 2048, 1024), "float32")]
        if platform == "cpu"
        else [
            (shape, dtype)
            for shape in ((8, 2048, 2048), (1, 16384, 2048))
            for dtype in ("bfloat16", "float32")
        ]
    )
    results = {
        f"{platform}, {dtype} {list(shape)}": measure(shape, dtype, arguments.repeats)
        for shape, dtype in shapes
    }
    draw(results, arguments.plot)
    print(f"\nPlot: {arguments.plot}")
    for name in {"gpu", "tpu"} - {platform}:
        print(f"{name}: times not measured, there is none here")
    if not arguments.no_tpu:
        if importlib.util.find_spec("libtpu") is None:
            print("tpu: not compiled either, libtpu is not installed")
        else:
            print(flush=True)
            subprocess.run([sys.executable, "-m", "benchmarks.scan_tpu"], check=True)


if __name__ == "__main__":
    main()
