"""Measure the real train step on one GPU: `python -m benchmarks.train_step_gpu`.

For each model, scan implementation and rematerialisation, the script prints the seconds of compiling, the
best and the median seconds of a step, tokens per second, the share of the GPU's peak FLOPs that the model
uses (MFU), and the peak memory in use. Each row runs in a separate process, because the runtime counts
memory by process. If a row fails or does not fit, its line reports that, and the script continues with
the next row.
"""

import argparse
import dataclasses
import json
import runpy
import statistics
import subprocess
import sys
import time

COLUMNS = ("model", "scan", "remat", "rows", "compile s", "best ms", "median ms", "tokens/s", "MFU", "GiB")


def measure(options):
    """Measure a model in this process, and return its row of the table."""
    import jax
    import numpy as np

    from birdie_jax.batch import Batch
    from birdie_jax.config import parse_config
    from birdie_jax.engine.chips import CHIPS
    from birdie_jax.planning.model_flops import model_flops_per_token
    from birdie_jax.pretraining.language_model_step import make_language_model_step
    from birdie_jax.resolve import resolve_run
    from birdie_jax.vocabulary import NUM_SPECIAL_TOKENS, padded_vocab_size

    config = parse_config(runpy.run_path(options.config)["get_config"](options.models[0]))
    config = dataclasses.replace(
        config,
        model=dataclasses.replace(
            config.model, scan_implementation=options.scans[0], remat=options.remats[0]
        ),
        batching=dataclasses.replace(config.batching, rows=options.rows),
        train=dataclasses.replace(config.train, accumulation_steps=1),
    )
    vocab_size = padded_vocab_size(config.data.vocab_size)
    run = resolve_run(config, vocab_size)
    rows, length = options.rows, config.batching.length
    rng = np.random.default_rng(0)
    tokens = rng.integers(NUM_SPECIAL_TOKENS, config.data.vocab_size, (rows, length)).astype(np.int32)
    # Two samples per row; the first half of each is its context.
    positions = np.tile(np.arange(length // 2, dtype=np.int32), (rows, 2))
    segments = np.repeat(np.array([[1, 2]], np.int32), length // 2, axis=1).repeat(rows, axis=0)
    is_context = positions < length // 4
    batch = Batch(tokens, np.roll(tokens, -1, 1), ~is_context, segments, positions, is_context, segments)
    with jax.set_mesh(run.mesh):
        step = make_language_model_step(run, {})
        state, batch = step.create_state(), jax.device_put(batch)
        begin = time.perf_counter()
        update = step.update.lower(step.abstract_state, batch).compile()
        compiling = time.perf_counter() - begin
        seconds, losses = [], []
        for _ in range(options.steps + 2):
            begin = time.perf_counter()
            state, metrics = update(state, batch)
            losses.append(float(metrics.loss))
            seconds.append(time.perf_counter() - begin)
        if options.trace:
            with jax.profiler.trace(options.trace):
                state, metrics = update(state, batch)
                jax.block_until_ready(state)
    del seconds[:2]
    flops = model_flops_per_token(run.config.model, vocab_size, length, run.max_loss_positions)
    flops *= rows * length
    median, device = statistics.median(seconds), jax.devices()[0]
    memory = (device.memory_stats() or {}).get("peak_bytes_in_use", 0) / 2**30
    peak = CHIPS[options.chip].peak_flops
    print(f"# {device.device_kind}, losses {losses[0]:.4f} to {losses[-1]:.4f}", file=sys.stderr)
    return [
        options.models[0],
        options.scans[0] or "default",
        options.remats[0],
        rows,
        f"{compiling:.0f}",
        f"{min(seconds) * 1e3:.0f}",
        f"{median * 1e3:.0f}",
        f"{rows * length / median:,.0f}",
        f"{flops / median / peak:.1%}",
        f"{memory:.1f}",
    ]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", default="configs/birdie_1_4b.py")
    parser.add_argument("--models", nargs="+", default=["gated_ssm_plus"])
    parser.add_argument("--scans", nargs="+", default=["xla", "pallas_gpu"])
    parser.add_argument("--remats", nargs="+", default=["full"])
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--chip", default="h200", help="whose peak is taken; an H100's is the same")
    parser.add_argument("--trace", default="", help="a folder for the trace of one more step")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(measure(options)))
        return
    print(f"| {' | '.join(COLUMNS)} |\n" + "|---" * len(COLUMNS) + "|", flush=True)
    for model in options.models:
        for scan in options.scans:
            for remat in options.remats:
                one = ["--models", model, "--scans", scan, "--remats", remat]
                command = [
                    sys.executable,
                    "-m",
                    "benchmarks.train_step_gpu",
                    *sys.argv[1:],
                    *one,
                    "--worker",
                ]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode:
                    print(f"| {model} | {scan} | {remat} | {done.stderr.strip().splitlines()[-1][:200]} |")
                else:
                    print(f"| {' | '.join(map(str, json.loads(done.stdout)))} |", flush=True)


if __name__ == "__main__":
    main()
