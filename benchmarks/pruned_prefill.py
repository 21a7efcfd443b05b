"""Prefill of a pruned prompt, compared with the dense prefill: `python -m benchmarks.pruned_prefill`.

A model with random parameters reads prompts of random tokens in four ways:

- dense;
- pruned by influence;
- pruned by recency, which needs no scores from the layers;
- dense with scores in all layers, which shows the cost of the scores alone.

The four take turns in every round, so other load on the machine affects all of them. The script prints
medians; a ratio is the median over the ratios within a round. Times exclude compilation. Memory is the
memory of the compiled program in addition to parameters and results.
"""

from birdie_jax.host_memory import keep_freed_memory

if __name__ == "__main__":
    # This must run before the imports below start threads. `generate` does the same.
    keep_freed_memory()

# isort: split
import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from birdie_jax.config_sections import ModelConfig
from birdie_jax.models import LanguageModel, build_model, language_model_names
from birdie_jax.models.language_model import parameter_shapes
from birdie_jax.planning.pruned_flops import counted_flops
from birdie_jax.pruning import PruningSettings, pruned_hidden
from birdie_jax.pruning.pruned_prefill import PromptRows

_VOCAB = 2304
# The first and the last token of a prompt of one row.
_PROTECTED = 2


class Program(NamedTuple):
    """A compiled prefill.

    Attributes:
        name: its name in the table.
        compiled: the compiled function of parameters and prompts.
    """

    name: str
    compiled: jax.stages.Compiled


def prefill(
    model: LanguageModel, settings: PruningSettings, traced: bool, params, rows: PromptRows
) -> tuple:
    """Read prompts; return the inputs of decoding and, if the layers only score, the scores."""
    cache = model.empty_cache(*rows.tokens.shape)
    hidden, cache, layers = pruned_hidden(
        model, params, rows, cache, settings, protected=_PROTECTED, traced=traced
    )
    scores = [layer.trace.influence for layer in layers if layer.trace is not None]
    return hidden[:, -1:], cache, scores


def seconds(function: Callable, *arguments) -> float:
    """Return the seconds of a call until its results are ready."""
    start = time.perf_counter()
    jax.block_until_ready(function(*arguments))
    return time.perf_counter() - start


def measure(arguments: argparse.Namespace) -> list[tuple[str, float, float, float, float]]:
    """Return name, median seconds, ratio to dense, FLOPs and temporary bytes of each program."""
    config = ModelConfig(
        name=arguments.model,
        layers=arguments.layers,
        features=arguments.features,
        state=arguments.features,
        mlp_features=2 * arguments.features,
        dtype="float32",
        remat="none",
        bidirectional=False,
    )
    model = build_model(config, _VOCAB)
    random = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: jnp.asarray(random.normal(0, leaf.shape[-1] ** -0.5, leaf.shape), leaf.dtype),
        parameter_shapes(model),
    )
    shape = (arguments.rows, arguments.length)
    tokens = jnp.asarray(random.integers(256, _VOCAB, shape), jnp.int32)
    keys = jax.random.split(jax.random.key(0), arguments.rows)
    rows = PromptRows(tokens, jnp.ones(shape, jnp.int32), jnp.ones(shape, bool), keys)
    dense = PruningSettings(keep=1.0)
    programs = []
    for name, settings, traced in (
        ("dense", dense, False),
        (f"influence, keep {arguments.keep:g}", PruningSettings(keep=arguments.keep), False),
        (
            f"recency, keep {arguments.keep:g}",
            PruningSettings(keep=arguments.keep, policy="recency"),
            False,
        ),
        ("dense with scores", dense, True),
    ):
        jitted = jax.jit(partial(prefill, model, settings, traced))
        programs.append(Program(name, jitted.lower(params, rows).compile()))
    return figures(programs, arguments.repeats, params, rows)


def figures(
    programs: Sequence[Program], repeats: int, params, rows: PromptRows
) -> list[tuple[str, float, float, float, float]]:
    """Return the figures of programs that are called in turns; ratios are relative to the first."""
    for program in programs:
        seconds(program.compiled, params, rows)
    rounds = np.array(
        [[seconds(program.compiled, params, rows) for program in programs] for _ in range(repeats)]
    )
    found = []
    for number, program in enumerate(programs):
        memory = program.compiled.memory_analysis()
        ratio = median(rounds[:, 0] / rounds[:, number])
        times = median(rounds[:, number])
        flops = counted_flops(program.compiled)
        found.append((program.name, times, ratio, flops, float(memory.temp_size_in_bytes)))
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="gated_ssm_plus", choices=language_model_names())
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--features", type=int, default=256)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--keep", type=float, default=0.1)
    parser.add_argument("--repeats", type=int, default=9)
    arguments = parser.parse_args(argv)
    print(
        f"{arguments.model}, {arguments.layers} layers of {arguments.features}, {arguments.length:,} tokens"
    )
    print(
        "| prefill | seconds | dense / this | GFLOPs of products | temporary MiB |\n|---|---|---|---|---|"
    )
    for name, times, ratio, flops, memory in measure(arguments):
        print(f"| {name} | {times:.3f} | {ratio:.2f} | {flops / 1e9:.2f} | {memory / 2**20:.1f} |")


if __name__ == "__main__":
    main()
