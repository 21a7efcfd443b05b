"""A question after a long context, from a saved state and from scratch: `python -m benchmarks.saved_state`.

The model of configs/tiny.py with random parameters reads a context of random tokens once and writes its
state to a file. Then it answers questions in two ways: from the file, and by reading the context and the
question again. Times exclude compilation, because every program has already run once. The script prints
medians over the rounds.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath

from birdie_jax.config import parse_config
from birdie_jax.generation import Generator, Prompt, SavedState
from birdie_jax.interop import ModelIdentity, read_state, write_state
from birdie_jax.models import build_model, language_model_names
from birdie_jax.models.language_model import parameter_shapes
from configs.tiny import get_config

_NONE = np.empty(0, np.int32)
_VOCAB = 4352


def seconds(function: Callable, *arguments):
    """Run a function, and return its result and its duration in seconds."""
    start = time.perf_counter()
    result = function(*arguments)
    return result, time.perf_counter() - start


def first_token(generator: Generator, prompt: Prompt, state: SavedState | None):
    """Generate one token."""
    states = None if state is None else [state]
    return list(generator.generate_chunks([prompt], [1], [0], states=states))


def token_seconds(generator: Generator, prompt: Prompt, state: SavedState, tokens: int) -> float:
    """Return the seconds per token of the decode loop."""
    before = generator.times.decode_seconds
    list(generator.generate_chunks([prompt], [tokens + 1], [0], states=[state]))
    return (generator.times.decode_seconds - before) / tokens


def measure(name: str, bidirectional: bool, arguments: argparse.Namespace) -> None:
    """Measure a model, and print a line of the table."""
    config = replace(parse_config(get_config()).model, name=name, bidirectional=bidirectional)
    model = build_model(config, _VOCAB)
    random = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: jnp.asarray(random.normal(0, leaf.shape[-1] ** -0.5, leaf.shape), leaf.dtype),
        parameter_shapes(model),
    )
    generator = Generator(model, params, stop_tokens=[], chunk_tokens=arguments.tokens)
    context, question = (
        random.integers(256, _VOCAB, count).astype(np.int32)
        for count in (arguments.context, arguments.question)
    )
    short, full = Prompt(question, _NONE), Prompt(np.concatenate([context, question]), _NONE)
    identity = ModelIdentity(name, "random parameters", 0, config.dtype, "-", "-", "-")

    def read():
        return generator.read_state(Prompt(context, _NONE))

    with tempfile.TemporaryDirectory() as folder:
        path = epath.Path(folder) / "state"

        def load():
            return read_state(path).state_of(model, identity)

        size = write_state(path, read(), identity, arm=name, objective=name, marker=None)
        state = load()
        first_token(generator, short, state)
        first_token(generator, full, None)
        token_seconds(generator, short, state, arguments.tokens)
        anew = [seconds(first_token, generator, full, None)[1] for _ in range(arguments.long_rounds)]
        reads = [seconds(read)[1] for _ in range(arguments.long_rounds)]
        loads, firsts, each = [], [], []
        for _ in range(arguments.rounds):
            loads.append(seconds(load)[1])
            firsts.append(seconds(first_token, generator, short, state)[1])
            each.append(token_seconds(generator, short, state, arguments.tokens))
    reading = "both directions" if bidirectional else "causal, chunks of 8,192"
    print(
        f"| {name}, {reading} | {median(reads):.2f} | {size:,} | {1e3 * median(loads):.2f} "
        f"| {1e3 * median(firsts):.2f} | {1e3 * median(each):.3f} | {1e3 * median(anew):,.0f} "
        f"| {median(anew) / median(firsts):,.0f} |",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="*", default=["gated_ssm_plus"], choices=language_model_names())
    parser.add_argument("--context", type=int, default=65_536)
    parser.add_argument("--question", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--long_rounds", type=int, default=3)
    arguments = parser.parse_args()
    print(
        f"{jax.devices()[0].device_kind}: a context of {arguments.context:,} tokens, a question of "
        f"{arguments.question}"
    )
    print(
        "| model | read, s | file, bytes | load, ms | first token, ms | each token, ms "
        "| first token anew, ms | times |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name in arguments.models:
        for bidirectional in (True, False):
            measure(name, bidirectional, arguments)


if __name__ == "__main__":
    main()
