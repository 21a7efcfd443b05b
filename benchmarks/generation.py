"""Time of prefill and of a decoded token after short and long contexts: `python -m benchmarks.generation`.

Rows read a random context of each length, then write greedily. Lengths take turns within a round, so that
what else the machine does falls on all of them; the table has medians over the rounds. A contestant is a
name and three functions: what any other implementation has to bring to be put beside.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from birdie_jax.config import ModelConfig
from birdie_jax.generation import GREEDY, state_bytes
from birdie_jax.generation.compute_type import in_compute_type
from birdie_jax.generation.decoding import Request, Rules, Settings, read, write
from birdie_jax.models import build_model, model_names
from birdie_jax.models.parameter_shapes import parameter_shapes


class Contestant(NamedTuple):
    """One implementation of one model.

    Attributes:
        name: for the table.
        read: (tokens int32 [rows, length]) -> state after them.
        write: (state) -> state after a fixed number of further tokens.
        state_bytes: (length) -> bytes kept for a row of that many tokens.
    """

    name: str
    read: Callable[[Any], Any]
    write: Callable[[Any], Any]
    state_bytes: Callable[[int], int]


def birdie(config: ModelConfig, vocab_size: int, rows: int, tokens: int) -> Contestant:
    """Return a model of this package with random parameters; no token ends an answer."""
    model = build_model(config, vocab_size)
    settings = Settings(model, GREEDY, tokens, tokens + 1)
    random = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: jnp.asarray(random.normal(0, leaf.shape[-1] ** -0.5, leaf.shape), leaf.dtype),
        parameter_shapes(model),
    )
    params = in_compute_type(params, config.dtype)
    keys = jax.random.split(jax.random.key(0), rows)
    most = jnp.full(rows, 1 << 30, jnp.int32)
    rules = Rules(keys, most, jnp.ones(vocab_size, bool), jnp.zeros(vocab_size, bool))
    ended = jnp.zeros(rows, bool)
    reading, writing = jax.jit(partial(read, settings)), jax.jit(partial(write, settings))

    def read_context(context):
        both_ways = jnp.ones_like(context, bool).at[:, -1].set(False)
        return reading(params, Request(context, both_ways, jnp.ones_like(context), *rules))

    def write_tokens(state):
        return writing(params, state, rules, ended)[0]

    return Contestant(config.name, read_context, write_tokens, partial(state_bytes, model))


def seconds(function, argument):
    """Return what the function gives, and how long it took until that was there."""
    begin = time.perf_counter()
    result = jax.block_until_ready(function(argument))
    return result, time.perf_counter() - begin


def measure(contestant, contexts, rounds):
    """Return for each context the median seconds of reading it, and of writing after it."""
    states = [contestant.read(context) for context in contexts]
    for state in states:
        jax.block_until_ready(contestant.write(state))
    times = [([], []) for _ in contexts]
    for _ in range(rounds):
        for number, context in enumerate(contexts):
            if len(times[number][0]) < max(3, rounds // 5):
                times[number][0].append(seconds(contestant.read, context)[1])
            times[number][1].append(seconds(contestant.write, states[number])[1])
    return [(median(reads), median(writes)) for reads, writes in times]


def report(contestant, arguments):
    """Print a line of the table for each length."""
    lengths, rows, tokens = arguments.contexts, arguments.rows, arguments.tokens
    vocab_size, rounds = arguments.vocab_size, arguments.rounds
    random = np.random.default_rng(1)
    contexts = [jnp.asarray(random.integers(256, vocab_size, (rows, n)), jnp.int32) for n in lengths]
    results = measure(contestant, contexts, rounds)
    first = results[0][1]
    for length, (reading, writing) in zip(lengths, results, strict=True):
        print(
            f"| {contestant.name} | {length:,} | {contestant.state_bytes(length):,} "
            f"| {rows * length / reading:,.0f} | {1e3 * writing / tokens:.4f} "
            f"| {rows * tokens / writing:,.0f} | {100 * (writing / first - 1):+.1f} % |"
        )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="*", default=["gated_ssm_plus"], choices=model_names())
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--features", type=int, default=256)
    parser.add_argument("--state", type=int, default=512)
    parser.add_argument("--mlp_features", type=int, default=512)
    parser.add_argument("--vocab_size", type=int, default=4352)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--contexts", type=int, nargs="*", default=[1024, 65_536])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=25)
    arguments = parser.parse_args()
    print(f"{jax.devices()[0].device_kind}, rows {arguments.rows}, {arguments.tokens} tokens written")
    print("| model | context | state, bytes a row | prefill tokens/s | ms a step | tokens/s | step |")
    print("|---|---|---|---|---|---|---|")
    for name in arguments.models:
        config = ModelConfig(
            name=name,
            layers=arguments.layers,
            features=arguments.features,
            state=arguments.state,
            mlp_features=arguments.mlp_features,
            dtype=arguments.dtype,
            remat="none",
        )
        contestant = birdie(config, arguments.vocab_size, arguments.rows, arguments.tokens)
        report(contestant, arguments)


if __name__ == "__main__":
    main()
