"""Time a train step on CPUs, with and without its CPU optimizations.

    python -m benchmarks.train_step_cpu
    taskset -c 0 python -m benchmarks.train_step_cpu --models study --rounds 5

The script compiles each form of each model in a separate process, because memory settings are fixed when
a process starts. Then the processes take steps in turns, on the cores of this command. For each form, the
script prints medians over the rounds: the wall time and the CPU time of a step, and the pages that the
system cleared during it. It also prints the time of tracing and compiling, and the speed relative to the
form `before`.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys

# Form -> the optimizations that it leaves out.
FORMS = {
    "now": (),
    "memory given back": ("memory",),
    "layers in a loop": ("layers",),
    "logits in chunks": ("logits",),
    "before": ("memory", "layers", "logits"),
}
# (layers, features, state, inner width, rows of 256 tokens, vocabulary size).
MODELS = {
    "study": (4, 128, 256, 128, 4, 512),
    "tiny": (3, 128, 256, 256, 8, 2048),
    "5M": (6, 192, 384, 384, 8, 4096),
}
LENGTH = 256
# The models of the study of encoders, with its pre-training.
ENCODERS = ("bigs", "stack_ssm", "gated_attention", "stack_attention")
# About 15 % of 128 tokens.
HIDDEN_TOKENS = 19


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=(*MODELS, *ENCODERS), default=list(MODELS))
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS))
    parser.add_argument("--rounds", type=int, default=7, help="Turns of every form.")
    parser.add_argument("--steps", type=int, default=8, help="Steps of a turn.")
    parser.add_argument("--worker", nargs=2, metavar=("MODEL", "FORM"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(*options.worker, options.steps)
        return
    print(f"{len(os.sched_getaffinity(0))} cores")
    print("| model | form | ms | processor ms | pages a step | compiling, s | times as fast |")
    print("|---|---|---|---|---|---|---|")
    for model in options.models:
        for line in measure(model, options):
            print(line, flush=True)


def measure(model, options):
    """Return the lines of the table for a model."""
    workers, compiling = {}, {}
    for form in options.forms:
        workers[form] = start(model, form, options.steps)
        # The next form starts after this line, so no two compile at once.
        compiling[form] = json.loads(workers[form].stdout.readline())
    turns = {form: [] for form in workers}
    for _ in range(options.rounds):
        for form, worker in workers.items():
            worker.stdin.write("go\n")
            worker.stdin.flush()
            turns[form].append(json.loads(worker.stdout.readline()))
    for worker in workers.values():
        worker.stdin.close()
        worker.wait()
    medians = {form: [statistics.median(part) for part in zip(*turns[form], strict=True)] for form in turns}
    slowest = medians.get("before", [float("nan")])[0]
    return [
        f"| {model} | {form} | {wall:.0f} | {processor:.0f} | {pages:,.0f} | {compiling[form]:.1f} | "
        f"{slowest / wall:.2f} |"
        for form, (wall, processor, pages) in medians.items()
    ]


def start(model, form, steps):
    command = [sys.executable, "-m", "benchmarks.train_step_cpu", "--steps", str(steps)]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    return subprocess.Popen(
        [*command, "--worker", model, form],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )


def work(model, form, steps):
    """Compile a step, then run `steps` steps for every line of standard input."""
    from birdie_jax.host_memory import keep_freed_memory

    without = FORMS[form]
    if "memory" not in without and not keep_freed_memory():
        raise SystemExit("train_step_cpu: freed memory cannot be kept: see birdie_jax/host_memory.py")
    import resource
    import time

    import jax

    from birdie_jax.models import layer_stacks, token_losses

    if "layers" in without:
        layer_stacks.MAX_UNROLLED_LAYERS = 0
    if "logits" in without:
        token_losses.HELD_LOGITS_BYTES = 0
    began = time.perf_counter()
    step, state, batch = make(model)
    state, metrics = step(state, batch)
    jax.block_until_ready((state, metrics))
    print(json.dumps(time.perf_counter() - began), flush=True)
    for _ in sys.stdin:
        usage, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        for _ in range(steps):
            state, metrics = step(state, batch)
            jax.block_until_ready((state, metrics))
        wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
        processor = after.ru_utime + after.ru_stime - usage.ru_utime - usage.ru_stime
        pages = after.ru_minflt - usage.ru_minflt
        print(json.dumps([1e3 * wall / steps, 1e3 * processor / steps, pages / steps]), flush=True)


def make(model):
    """Return a compiled train step, its first state, and a batch."""
    import jax

    from birdie_jax.config import parse_config
    from birdie_jax.pretraining.language_model_step import make_language_model_step
    from birdie_jax.resolve import resolve_run
    from birdie_jax.vocabulary import padded_vocab_size

    given, make_batch = encoder(model) if model in ENCODERS else language_model(model)
    config = parse_config(given)
    vocab_size = padded_vocab_size(config.data.vocab_size)
    run = resolve_run(config, vocab_size)
    with jax.set_mesh(run.mesh):
        step = make_language_model_step(run, {})
        return step, step.create_state(), jax.device_put(make_batch(vocab_size))


def encoder(model):
    """Return the configuration of a cell of the study of encoders, and a function that makes whole rows."""
    import numpy as np

    from birdie_jax.batch import Batch
    from birdie_jax.vocabulary import NUM_SPECIAL_TOKENS
    from studies.encoders.config import get_config

    given = get_config(f"small_tuned,{model},0")

    def make_batch(vocab_size):
        rows, length = given.batching.rows, given.batching.length
        rng = np.random.default_rng(0)
        tokens = rng.integers(NUM_SPECIAL_TOKENS, vocab_size, (rows, length)).astype(np.int32)
        positions = np.tile(np.arange(length, dtype=np.int32), (rows, 1))
        hidden = rng.permuted(positions, axis=1) < HIDDEN_TOKENS
        ones = np.ones_like(tokens)
        return Batch(tokens, tokens, hidden, ones, positions, ones.astype(bool), ones)

    return given, make_batch


def language_model(model):
    """Return the configuration of a model, and a function that makes batches with two samples per row."""
    import numpy as np

    from birdie_jax.batch import Batch
    from birdie_jax.config import default_config
    from birdie_jax.vocabulary import NUM_SPECIAL_TOKENS

    layers, features, state, mlp_features, rows, pieces = MODELS[model]
    given = default_config()
    given.objectives.mixture = "tiny"
    given.data.vocab_size = pieces
    given.batching.update({"length": LENGTH, "rows": rows})
    given.model.update(
        {"layers": layers, "features": features, "state": state, "mlp_features": mlp_features}
    )
    given.model.update({"dtype": "float32", "remat": "none"})
    given.train.loss_chunk = 64

    def make_batch(vocab_size):
        rng = np.random.default_rng(0)
        tokens = rng.integers(NUM_SPECIAL_TOKENS, vocab_size, (rows, LENGTH)).astype(np.int32)
        positions = np.tile(np.arange(LENGTH // 2, dtype=np.int32), (rows, 2))
        samples = np.repeat(np.array([[1, 2]], np.int32), LENGTH // 2, axis=1).repeat(rows, axis=0)
        is_context = positions < LENGTH // 8
        return Batch(tokens, np.roll(tokens, -1, 1), ~is_context, samples, positions, is_context, samples)

    return given, make_batch


if __name__ == "__main__":
    main()
