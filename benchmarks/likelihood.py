"""Time of scoring choices after one context, together and separately: `python -m benchmarks.likelihood`.

The script uses the model of configs/tiny.py, or another model with the same sizes, with random
parameters. The two ways take turns within a round, so other load on the machine affects both. The table
has medians.
"""

import argparse
import dataclasses
import time
from statistics import median

import jax
import jax.numpy as jnp
import numpy as np

from birdie_jax.config import parse_config
from birdie_jax.generation import Generator, Prompt
from birdie_jax.generation.likelihood import Scorer
from birdie_jax.models import build_model, language_model_names
from birdie_jax.models.language_model import parameter_shapes
from birdie_jax.vocabulary import padded_vocab_size
from configs.tiny import get_config


def make_scorer(name):
    """Return a scorer of a model with the sizes of configs/tiny.py, and its vocabulary size."""
    config = parse_config(get_config())
    vocab_size = padded_vocab_size(config.data.vocab_size)
    model = build_model(dataclasses.replace(config.model, name=name), vocab_size)
    random = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: jnp.asarray(random.normal(0, leaf.shape[-1] ** -0.5, leaf.shape), leaf.dtype),
        parameter_shapes(model),
    )
    return Scorer(Generator(model, params)), vocab_size


def seconds(function):
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="*", default=["gated_ssm_plus"], choices=language_model_names())
    parser.add_argument("--contexts", type=int, nargs="*", default=[512, 2048])
    parser.add_argument("--choices", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    print(
        f"{jax.devices()[0].device_kind}, {arguments.choices} choices of {arguments.tokens} tokens, seconds"
    )
    print("| model | context | together | each by itself | ratio |")
    print("|---|---|---|---|---|")
    for name in arguments.models:
        scorer, vocab_size = make_scorer(name)
        random = np.random.default_rng(1)
        for length in arguments.contexts:
            # With the start token, the prompt has this many tokens and needs no padding.
            context = random.integers(256, vocab_size, length - 1).astype(np.int32)
            prompt = Prompt(context, np.empty(0, np.int32))
            choices = list(
                random.integers(256, vocab_size, (arguments.choices, arguments.tokens)).astype(np.int32)
            )

            def together(prompt=prompt, choices=choices, scorer=scorer):
                scorer.score([prompt], [choices])

            def apart(prompt=prompt, choices=choices, scorer=scorer):
                for choice in choices:
                    scorer.score([prompt], [[choice]])

            together()
            apart()
            times = [(seconds(together), seconds(apart)) for _ in range(arguments.rounds)]
            one, other = (median(column) for column in zip(*times, strict=True))
            print(f"| {name} | {length:,} | {one:.4f} | {other:.4f} | {other / one:.2f} |")


if __name__ == "__main__":
    main()
