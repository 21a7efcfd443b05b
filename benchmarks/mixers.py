"""Training and decoding of the models of a preset: `python -m benchmarks.mixers`.

    taskset -c 0 python -m benchmarks.mixers --preset birdie_110m --models gated_ssm_plus mamba2

Each model takes train steps with AdamW on one row, reads a context and decodes after it. The train steps
of all models take turns, so other load on the machine affects all of them. The script prints tokens per
second, as medians over the rounds, and the bytes of a row's state. It prints all speeds relative to the
first model, too.
"""

import argparse
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.generation import birdie, measure, random_parameters
from benchmarks.side_by_side import in_turns, trainer
from birdie_jax.batch import Batch
from birdie_jax.config import parse_config
from birdie_jax.config_flag import load_config
from birdie_jax.models import build_model, language_model_names
from birdie_jax.pretraining.language_model_step import language_model_loss


def train_step(config, vocab_size, length, loss_chunk):
    """Return the number of parameters, and a train step on one row of random tokens, read causally."""
    model = build_model(config, vocab_size)
    params, random = random_parameters(model), np.random.default_rng(0)
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    tokens = random.integers(256, vocab_size, (1, length + 1)).astype(np.int32)
    nothing = np.zeros((1, length), np.int32)
    positions = np.arange(length, dtype=np.int32)[None]
    batch = Batch(tokens[:, :-1], tokens[:, 1:], nothing == 0, nothing + 1, positions, nothing > 0, nothing)
    sums = language_model_loss(model, 1, loss_chunk).sums
    return count, partial(trainer(params, lambda params, batch: sums(params, batch)[0] / length), batch)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", default="birdie_110m", help="A preset of configs/.")
    parser.add_argument("--models", nargs="+", default=["gated_ssm_plus"], choices=language_model_names())
    parser.add_argument("--vocab_size", type=int, default=32_000)
    parser.add_argument("--length", type=int, default=512, help="Tokens of the row, and of the context.")
    parser.add_argument("--tokens", type=int, default=16, help="Tokens that are decoded.")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    configs = {}
    for name in options.models:
        config = parse_config(load_config(f"{options.preset}:{name}"))
        configs[name] = replace(config.model, bidirectional=False, dtype="float32", remat="none")
    steps = [train_step(one, options.vocab_size, options.length, 128) for one in configs.values()]
    times = in_turns([step for _, step in steps], options.rounds)
    counts = [count for count, _ in steps]
    del steps
    print(f"{jax.devices()[0].device_kind}, one row of {options.length} tokens, float32, read causally")
    print("| model | parameters | training, tokens/s | prefill | decoding | state, bytes a row |")
    print("|---|---|---|---|---|---|")
    context = np.random.default_rng(1).integers(256, options.vocab_size, (1, options.length))
    first = None
    for (name, config), seconds, count in zip(configs.items(), times, counts, strict=True):
        contestant = birdie(config, options.vocab_size, 1, options.tokens)
        ((prefill, decode),) = measure(contestant, [jnp.asarray(context, jnp.int32)], options.rounds)
        found = options.length / seconds, options.length / prefill, options.tokens / decode
        first = first or found
        cells = [f"{one:,.1f} ({one / other:.2f})" for one, other in zip(found, first, strict=True)]
        state = contestant.cache_bytes(options.length)
        print(f"| {name} | {count:,} | {' | '.join(cells)} | {state:,} |", flush=True)


if __name__ == "__main__":
    main()
