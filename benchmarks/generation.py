"""Time of prefill and of a decoded token after short and long contexts: `python -m benchmarks.generation`.

Rows prefill a random context of each length, then decode greedily. The lengths take turns within a round,
so other load on the machine affects all of them. The table has medians over the rounds. A contestant is a
name and three functions; another implementation must supply them for a comparison.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from birdie_jax.config import ModelConfig
from birdie_jax.generation import GREEDY, cache_bytes
from birdie_jax.generation.decoding import DecodeRules, DecodeSettings, PromptBatch, decode_chunk, prefill
from birdie_jax.generation.device_programs import cast_parameters
from birdie_jax.models import build_model, language_model_names
from birdie_jax.models.language_model import parameter_shapes
from birdie_jax.models.parameters import parameter_policies


class Contestant(NamedTuple):
    """One implementation of one model.

    Attributes:
        name: the name in the table.
        prefill: a function (tokens int32 [rows, length]) -> state after them.
        decode: a function (state) -> state after a fixed number of further tokens.
        cache_bytes: a function (length) -> bytes of cache for a row of that many tokens.
    """

    name: str
    prefill: Callable[[jax.Array], PyTree]
    decode: Callable[[PyTree], PyTree]
    cache_bytes: Callable[[int], int]


def random_parameters(model):
    """Return random parameters, in the dtypes of training."""
    random = np.random.default_rng(0)
    return jax.tree.map(
        lambda leaf: jnp.asarray(random.normal(0, leaf.shape[-1] ** -0.5, leaf.shape), leaf.dtype),
        parameter_shapes(model),
    )


def birdie(config: ModelConfig, vocab_size: int, rows: int, tokens: int) -> Contestant:
    """Return a model of this package with random parameters and without stop tokens."""
    model = build_model(config, vocab_size)
    settings = DecodeSettings(model, GREEDY, tokens, tokens + 1)
    params = cast_parameters(random_parameters(model), parameter_policies(model))
    keys = jax.random.split(jax.random.key(0), rows)
    max_tokens = jnp.full(rows, 1 << 30, jnp.int32)
    rules = DecodeRules(
        keys, max_tokens, jnp.ones((len(keys), vocab_size), bool), jnp.zeros(vocab_size, bool)
    )
    ended = jnp.zeros(rows, bool)
    run_prefill, run_decode = jax.jit(partial(prefill, settings)), jax.jit(partial(decode_chunk, settings))

    def prefill_context(context):
        bidirectional = jnp.ones_like(context, bool).at[:, -1].set(False)
        return run_prefill(params, PromptBatch(context, bidirectional, jnp.ones_like(context)), rules)

    def decode_tokens(state):
        return run_decode(params, state, rules, ended)[0]

    return Contestant(config.name, prefill_context, decode_tokens, partial(cache_bytes, model))


def seconds(function, argument):
    """Run a function, and return its result and the seconds until it was ready."""
    start = time.perf_counter()
    result = jax.block_until_ready(function(argument))
    return result, time.perf_counter() - start


def measure(contestant, contexts, rounds):
    """Return, for each context, the median seconds of its prefill and of decoding after it."""
    states = [contestant.prefill(context) for context in contexts]
    for state in states:
        jax.block_until_ready(contestant.decode(state))
    times = [([], []) for _ in contexts]
    for _ in range(rounds):
        for number, context in enumerate(contexts):
            if len(times[number][0]) < max(3, rounds // 5):
                times[number][0].append(seconds(contestant.prefill, context)[1])
            times[number][1].append(seconds(contestant.decode, states[number])[1])
    return [(median(prefills), median(decodes)) for prefills, decodes in times]


def report(contestant, arguments):
    """Print the lines of a contestant, one for each length."""
    lengths, rows, tokens = arguments.contexts, arguments.rows, arguments.tokens
    vocab_size, rounds = arguments.vocab_size, arguments.rounds
    random = np.random.default_rng(1)
    contexts = [jnp.asarray(random.integers(256, vocab_size, (rows, n)), jnp.int32) for n in lengths]
    results = measure(contestant, contexts, rounds)
    first = results[0][1]
    for length, (prefill_seconds, decode_seconds) in zip(lengths, results, strict=True):
        print(
            f"| {contestant.name} | {length:,} | {contestant.cache_bytes(length):,} "
            f"| {rows * length / prefill_seconds:,.0f} | {1e3 * decode_seconds / tokens:.4f} "
            f"| {rows * tokens / decode_seconds:,.0f} | {100 * (decode_seconds / first - 1):+.1f} % |"
        )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="*", default=["gated_ssm_plus"], choices=language_model_names())
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
    print(f"{jax.devices()[0].device_kind}, rows {arguments.rows}, {arguments.tokens} tokens decoded")
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
