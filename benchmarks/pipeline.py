"""Measure the host pipeline on one core: `python benchmarks/pipeline.py [--source=...]`.

The script prints, for each mixture, number of rows and lookahead:

- the speed from token shards to packed batches, in millions of tokens (context and target) per second of
  CPU time, which excludes other programs on the core;
- the shares of positions that are padding and that are spacing between samples;
- the wall time of a batch, as the median and the 99th percentile;
- the number of examples in a row;
- the largest deviation of an arm's number of examples from its expectation, in standard errors. Among 104
  arms, the largest is about 2.6.

`--classes` adds, for each class of arms, the configured and the drawn share of the examples, the share of
the tokens, and the mean length of the examples. The script prepares the source once, below
~/.cache/birdie_jax/benchmarks.
"""

import argparse
import os
import time

import numpy as np

from birdie_jax.batching import RowSettings
from birdie_jax.device_check.rates import endless_rows
from birdie_jax.objectives import Mixture, make_mixture
from birdie_jax.storage.cache_folder import cache_folder
from birdie_jax.text import TokenShards, prepare
from birdie_jax.text.cache import cached_folder

_CACHE = cache_folder() / "benchmarks"


def prepared(source: str, vocab_size: int) -> TokenShards:
    settings = {
        "tokenizer_model": "",
        "vocab_size": vocab_size,
        "text_field": "text",
        "record_tokens": 32768,
        "validation_fraction": 0.01,
    }
    folder = cached_folder(_CACHE, source, **settings)
    return TokenShards(prepare(source, folder, **settings), "train")


def measure(text: TokenShards, mixture: Mixture, settings: RowSettings, seconds: float) -> dict:
    """Make batches for `seconds` of time, and return the figures for one line of the table."""
    batches, history = endless_rows(text, mixture, settings)
    times, cpu, tokens, spacing, examples = [], 0.0, 0, 0, 0
    arm_examples = np.zeros(len(mixture.arms))
    arm_tokens = np.zeros(len(mixture.arms))
    while cpu < seconds:
        begin, cpu_begin = time.perf_counter(), time.process_time()
        batch = next(batches).batch
        times.append(time.perf_counter() - begin)
        cpu += time.process_time() - cpu_begin
        segments = batch.segment_ids.max(axis=1)
        tokens += int((batch.segment_ids > 0).sum())
        examples += int(segments.sum())
        spacing += int((segments - 1).sum()) * settings.spacing
        first = (batch.positions == 0) & (batch.segment_ids > 0)
        arm_examples += np.bincount(batch.arm_ids[first], minlength=len(mixture.arms))
        arm_tokens += np.bincount(batch.arm_ids[batch.segment_ids > 0], minlength=len(mixture.arms))
    # The examples in the buffer count too: most are long, so long arms would seem too rare without them.
    for stream in batches._streams:
        for buffered in stream._buffer:
            arm_examples[buffered.example.arm] += 1
    history.close()
    positions = len(times) * settings.rows * settings.length
    return {
        "tokens_per_second": tokens / cpu,
        "padding": 1 - (tokens + spacing) / positions,
        "spacing": spacing / positions,
        "median": float(np.percentile(times, 50)),
        "slowest": float(np.percentile(times, 99)),
        "examples_a_row": examples / len(times) / settings.rows,
        "arm_examples": arm_examples,
        "arm_tokens": arm_tokens,
    }


def by_class(mixture: Mixture, per_arm: np.ndarray) -> dict[str, float]:
    classes = dict.fromkeys(mixture.groups, 0.0)
    for group, value in zip(mixture.groups, per_arm, strict=True):
        classes[group] += float(value)
    return classes


def worst_deviation(mixture: Mixture, arm_examples: np.ndarray) -> float:
    """Return the largest deviation of an arm's count from its expectation, in standard errors."""
    total, chance = arm_examples.sum(), mixture.weights
    error = np.sqrt(np.maximum(total * chance * (1 - chance), 1e-9))
    return float(np.max(np.abs(arm_examples - total * chance) / error))


def show_classes(mixture: Mixture, figures: dict) -> None:
    drawn, tokens = figures["arm_examples"], figures["arm_tokens"]
    wanted = by_class(mixture, mixture.weights)
    shares = by_class(mixture, drawn / drawn.sum())
    token_shares = by_class(mixture, tokens / tokens.sum())
    counts, covered = by_class(mixture, drawn), by_class(mixture, tokens)
    sizes = {group: covered[group] / max(count, 1) for group, count in counts.items()}
    print(f"    {'class':32} {'configured':>10} {'drawn':>8} {'of tokens':>10} {'mean length':>12}")
    for group, share in wanted.items():
        print(
            f"    {group:32} {share:10.4f} {shares[group]:8.4f} {token_shares[group]:10.4f} "
            f"{sizes[group]:12.1f}"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--source", default="stdlib")
    parser.add_argument("--vocab_size", type=int, default=16000)
    parser.add_argument("--mixtures", nargs="+", default=["birdie", "bfr", "ul2", "pt5", "causal_lm"])
    parser.add_argument("--rows", nargs="+", type=int, default=[8, 32])
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--spacing", type=int, default=3)
    parser.add_argument("--lookahead", nargs="+", type=int, default=[12])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--classes", action="store_true", help="also print each class's share")
    flags = parser.parse_args()
    text = prepared(flags.source, flags.vocab_size)
    core = min(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    print(
        f"{flags.source}: {text.num_tokens / 1e6:.1f} million tokens in {len(text)} records; rows of "
        f"{flags.length}, spacing {flags.spacing}; one core"
    )
    print(
        f"{'mixture':10} {'rows':>4} {'lookahead':>9} {'Mtokens/s':>9} {'padding':>8} {'spacing':>8} "
        f"{'both':>7} {'p50 ms':>8} {'p99 ms':>8} {'examples/row':>12} {'worst arm (sigma)':>18}"
    )
    for name in flags.mixtures:
        mixture = make_mixture(name, flags.length)
        for rows in flags.rows:
            for lookahead in flags.lookahead:
                settings = RowSettings(0, rows, flags.length, flags.spacing, lookahead)
                figures = measure(text, mixture, settings, flags.seconds)
                padding, spacing = figures["padding"], figures["spacing"]
                print(
                    f"{name:10} {rows:4} {lookahead:9} {figures['tokens_per_second'] / 1e6:9.2f} "
                    f"{padding:8.2%} {spacing:8.2%} {padding + spacing:7.2%} "
                    f"{1e3 * figures['median']:8.2f} {1e3 * figures['slowest']:8.2f} "
                    f"{figures['examples_a_row']:12.2f} "
                    f"{worst_deviation(mixture, figures['arm_examples']):18.1f}",
                    flush=True,
                )
                if flags.classes:
                    show_classes(mixture, figures)


if __name__ == "__main__":
    main()
