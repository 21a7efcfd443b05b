"""Measure how fast the objectives build examples on one core: `python benchmarks/objectives.py`.

The script prints millions of tokens per second (context and target), for each class of the `birdie`
mixture at rows of 2,048 and for the whole mixture. Texts are 8,192 tokens long. Their ids have a Zipf
distribution with exponent 1 over 32,000 pieces. The times do not include packing or the reading of
records.
"""

import argparse
import time

import numpy as np

from birdie_jax.errors import UnsuitableText
from birdie_jax.objectives import make_mixture
from birdie_jax.vocabulary import NUM_SPECIAL_TOKENS


def zipf_texts(count, tokens, vocabulary_size, rng):
    probabilities = 1.0 / np.arange(1, vocabulary_size + 1)
    ids = rng.choice(vocabulary_size, size=(count, tokens), p=probabilities / probabilities.sum())
    return (ids + NUM_SPECIAL_TOKENS).astype(np.int32)


def measure(objectives, probabilities, texts, *, length, seconds, rng):
    draws = rng.choice(len(objectives), size=1 << 16, p=probabilities)
    for objective in objectives:
        objective(texts[0], rng, length=length)
    tokens = examples = unsuitable = 0
    started = time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds:
        objective = objectives[draws[examples % len(draws)]]
        try:
            example = objective(texts[examples % len(texts)], rng, length=length)
            tokens += len(example.context) + len(example.target)
        except UnsuitableText:
            unsuitable += 1
        examples += 1
    return tokens / elapsed, examples / elapsed, unsuitable / examples


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mixture", default="birdie")
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--seconds", type=float, default=2.0)
    flags = parser.parse_args()
    rng = np.random.default_rng(0)
    texts = zipf_texts(64, 8192, 32000, rng)
    mixture = make_mixture(flags.mixture, flags.length)
    print(f"{'class':24} {'Mtokens/s':>10} {'examples/s':>11} {'unsuitable':>11}")
    for group in (*dict.fromkeys(mixture.groups), "all"):
        chosen = [index for index, name in enumerate(mixture.groups) if group in (name, "all")]
        weights = mixture.weights[chosen]
        objectives = [mixture.arms[index].objective for index in chosen]
        speed, examples, unsuitable = measure(
            objectives, weights / weights.sum(), texts, length=flags.length, seconds=flags.seconds, rng=rng
        )
        print(f"{group:24} {speed / 1e6:10.2f} {examples:11.0f} {unsuitable:11.4f}")


if __name__ == "__main__":
    main()
