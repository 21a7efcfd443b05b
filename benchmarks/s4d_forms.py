"""Compare the forms of S4D with attention: their share of a train step, and their cost by length.

    python -m benchmarks.s4d_forms
    python -m benchmarks.s4d_forms --lengths 512 4096 --features 64 --repeats 5
    python -m benchmarks.s4d_forms --layers 0 --forward --plot forms.svg

The script prints two tables for the CPU of this machine, in float32:

1. A train step on rows of 128 tokens: BiGS by masked LM with the masked Toeplitz form, and the same step
   without the layer (y = u), in compiled FLOPs and time. --layers sets the number of layers (0: no table),
   --width the width.
2. One bidirectional layer, forward and backward, at several lengths with the same number of tokens in a
   batch, in microseconds and compiled FLOPs per token. The forms are the masked Toeplitz form and chunks
   with a carried state, both with resets; the published form by FFT, without resets; and attention within
   samples. --forward measures a forward pass alone, as in figure 7 of "Pretraining Without Attention", and
   adds the recurrence, token by token. The backward pass of the recurrence would keep a state for each
   token. --forms chooses the forms. --plot draws the table.

To keep freed memory, as `train` does, set these variables for the command: MALLOC_ARENA_MAX=1
MALLOC_MMAP_MAX_=0 MALLOC_TOP_PAD_=268435456 MALLOC_TRIM_THRESHOLD_=2147483647.

All forms run in turns in one process. Times are CPU seconds of this process on all cores, so other
programs affect them little. The result is the least of the repeats. XLA does not count the FLOPs of an
FFT. The script adds 5 n log2 n for each complex transform of n numbers, and half for a real one. For the
recurrence, XLA counts only one token. The script uses 12 FLOPs for each mode, channel and token instead:
6 for a complex product, 2 for a sum and 4 for the output.
"""

import argparse
import time
from collections.abc import Callable, Mapping
from functools import partial
from math import log2
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from benchmarks.train_step_cpu import encoder
from birdie_jax.config import parse_config
from birdie_jax.models import s4d
from birdie_jax.models.attention import packed_attention
from birdie_jax.models.layout import Layout, packed_layout
from birdie_jax.models.s4d import eigenvalues
from birdie_jax.models.s4d_chunked import chunked_product
from birdie_jax.models.s4d_reference import fourier_product, recurrent_product
from birdie_jax.models.s4d_toeplitz import toeplitz_product
from birdie_jax.models.state_space import StateSpace, discretise
from birdie_jax.pretraining.language_model_step import make_language_model_step
from birdie_jax.resolve import resolve_run
from birdie_jax.vocabulary import padded_vocab_size

MODES, CHUNK = 64, 128
HEAD_WIDTH = 64
# From this row length on, the time of the chunked form is the time of its chunks.
LONG_ROWS = 512
FORMS = ("toeplitz", "chunked", "fourier", "recurrent", "attention")


class Cost(NamedTuple):
    """The cost of a form for each token in rows of a length.

    Attributes:
        length: the number of tokens in a row.
        microseconds: the CPU time of a token.
        kflops: thousands of FLOPs of a token.
    """

    length: int
    microseconds: float
    kflops: float


def least_seconds(
    programs: Mapping[Any, Callable], arguments: Mapping[Any, tuple], repeats: int, *, is_step: bool = False
) -> dict[Any, float]:
    """Return the least CPU seconds of each compiled program. The programs run in turns.

    Args:
        programs: the programs.
        arguments: the arguments of each program.
        repeats: the number of turns that count.
        is_step: whether a program donates its first argument and returns the replacement first.
    """
    seconds, arguments = {name: float("inf") for name in programs}, dict(arguments)
    for repeat in range(repeats + 1):
        for name, program in programs.items():
            begin = time.process_time()
            result = jax.block_until_ready(program(*arguments[name]))
            if is_step:
                arguments[name] = result[0], *arguments[name][1:]
            if repeat:
                seconds[name] = min(seconds[name], time.process_time() - begin)
    return seconds


def flops(program: jax.stages.Compiled) -> float:
    """Return XLA's count of FLOPs."""
    return program.cost_analysis()["flops"]


def samples(rows: int, length: int, sample: int) -> Layout:
    """Return the layout of rows of samples of one length, with all tokens in the context."""
    segments = jnp.broadcast_to(1 + jnp.arange(length, dtype=jnp.int32) // sample, (rows, length))
    return packed_layout(segments, segments > 0)


def step_programs(
    layers: int, width: int, rows: int
) -> tuple[dict[str, jax.stages.Compiled], dict[str, tuple]]:
    """Return compiled train steps with and without the masked Toeplitz form, and their arguments.

    The step is the one of the study of encoders (`studies.encoders`): 4,096 pieces, AdamW, and a head that
    computes only the scores of hidden tokens.
    """
    given, make_batch = encoder("bigs")
    given.model.update({"layers": layers, "features": width, "mlp_features": 3 * width})
    given.batching.rows = rows
    config = parse_config(given)
    vocab_size = padded_vocab_size(config.data.vocab_size)
    run = resolve_run(config, vocab_size)
    programs, arguments = {}, {}
    with jax.set_mesh(run.mesh):
        for name in ("with", "without"):
            product = toeplitz_product if name == "with" else left_out
            with mock.patch.object(s4d, "toeplitz_product", product):
                jax.clear_caches()
                step = make_language_model_step(run, {})
                batch = jax.device_put(make_batch(vocab_size))
                programs[name] = step.update.lower(step.abstract_state, batch).compile()
                arguments[name] = step.create_state(), batch
    return programs, arguments


def left_out(space: StateSpace, u: jax.Array, reset: jax.Array, *, reverse: bool) -> jax.Array:
    """Return the inputs of the layer unchanged."""
    del space, reset, reverse
    return u


def step_costs(layers: int, width: int, rows: int, repeats: int) -> None:
    """Print the costs that the masked Toeplitz form adds to a train step on rows of 128 tokens."""
    programs, arguments = step_programs(layers, width, rows)
    seconds = least_seconds(programs, arguments, repeats, is_step=True)
    print(f"\na train step of {layers} layers of BiGS, width {width}, {rows} rows of 128 tokens")
    print("\n| masked Toeplitz | GFLOPs | ms |\n|---|---|---|")
    for name, program in programs.items():
        print(f"| {name} | {flops(program) / 1e9:.2f} | {1e3 * seconds[name]:.1f} |")
    added = flops(programs["with"]) / flops(programs["without"]) - 1
    print(f"| added | {added:.1%} | {seconds['with'] / seconds['without'] - 1:.1%} |")


def random_space(seed: int) -> StateSpace:
    """Return a layer with its initial parameters."""
    random = np.random.default_rng(seed)
    c = jnp.asarray(random.normal(size=(1, MODES)) + 1j * random.normal(size=(1, MODES)), jnp.complex64)
    a = jnp.asarray(eigenvalues("legs", MODES)[None], jnp.complex64)
    return discretise(a, c, jnp.ones(1), jnp.full(1, 0.05))


def both_directions(form: Callable, space: StateSpace, u: jax.Array, layout: Layout) -> jax.Array:
    """Return a scalar from the layer in both directions."""
    resets = zip((False, True), (layout.forward_reset, layout.reverse_reset), strict=True)
    outputs = [form(space, u[:, :, None], reset, reverse=reverse) for reverse, reset in resets]
    return jnp.mean(jnp.square(outputs[0] + outputs[1]))


def without_resets(space: StateSpace, u: jax.Array, reset: jax.Array, *, reverse: bool) -> jax.Array:
    """Return the convolution of whole rows, without resets."""
    del reset
    return fourier_product(space, u, reverse=reverse)


def attention(space: StateSpace, u: jax.Array, layout: Layout) -> jax.Array:
    """Return a scalar from attention within samples, with heads of 64 channels."""
    del space
    heads = u.reshape(*u.shape[:2], -1, HEAD_WIDTH)
    mixed = packed_attention(heads, heads, heads, layout, bidirectional=True, implementation="xla")
    return jnp.mean(jnp.square(mixed))


def length_programs(
    length: int, features: int, rows: int, forms: list[str], *, forward: bool
) -> tuple[dict[str, jax.stages.Compiled], tuple]:
    """Return the compiled forms for rows of a length, and their arguments."""
    layout = samples(rows, length, length)
    operands = random_space(0), jax.random.normal(jax.random.key(1), (rows, length, features)), layout
    losses = {
        "chunked": partial(both_directions, partial(chunked_product, chunk=CHUNK)),
        "fourier": partial(both_directions, without_resets),
    }
    # The matrices of these forms have length^2 numbers per row.
    if length <= 4096:
        losses["toeplitz"] = partial(both_directions, toeplitz_product)
        losses["attention"] = attention
    if forward:
        losses["recurrent"] = partial(both_directions, recurrent_product)
    programs = {
        name: jax.jit(loss if forward else jax.grad(loss, argnums=(0, 1))).lower(*operands).compile()
        for name, loss in losses.items()
        if name in forms
    }
    return programs, operands


def length_costs(
    lengths: list[int], features: int, tokens: int, forms: list[str], repeats: int, *, forward: bool
) -> dict[str, list[Cost]]:
    """Print microseconds and FLOPs for each token of a layer at several lengths; return them by form."""
    passes = "forward" if forward else "forward and backward"
    print(f"\none layer in both directions, width {features}, {tokens} tokens a batch, {passes}")
    names = [name for name in FORMS if name in forms and (forward or name != "recurrent")]
    costs: dict[str, list[Cost]] = {name: [] for name in names}
    programs, arguments = {}, {}
    for length in lengths:
        rows = max(tokens // length, 1)
        found, operands = length_programs(length, features, rows, names, forward=forward)
        programs |= {(length, name): program for name, program in found.items()}
        arguments |= {(length, name): operands for name in found}
    # Time all lengths in turns too, because the speed of a machine varies from minute to minute.
    seconds = least_seconds(programs, arguments, repeats)
    for (length, name), program in programs.items():
        rows = max(tokens // length, 1)
        counted = flops(program)
        if name == "fourier":
            # Each direction transforms the input and the output. Its derivative does the same.
            counted += rows * features * (4 if forward else 8) * 2.5 * 2 * length * log2(2 * length)
        if name == "recurrent":
            counted = 2 * 12 * MODES * rows * length * features
        of_token = 1 / (rows * length)
        costs[name].append(Cost(length, 1e6 * seconds[length, name] * of_token, counted / 1e3 * of_token))
    print(f"\n| length | {' | '.join(f'{name} us | KFLOPs' for name in names)} |")
    print(f"|{'---|' * (2 * len(names) + 1)}")
    for length in lengths:
        cells = {
            name: f"{cost.microseconds:.2f} | {cost.kflops:.1f}"
            for name in names
            for cost in costs[name]
            if cost.length == length
        }
        print(f"| {length:,} | {' | '.join(cells.get(name, ' | ') for name in names)} |")
    return costs


def flatness(costs: list[Cost]) -> float:
    """Return the longest time of a token in long rows, divided by the shortest, minus 1."""
    times = [cost.microseconds for cost in costs if cost.length >= LONG_ROWS]
    return max(times) / min(times) - 1


def draw(costs: Mapping[str, list[Cost]]) -> Figure:
    """Return a plot of time and FLOPs per token over the length of rows."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    labels = {"microseconds": "processor us a token", "kflops": "KFLOPs a token"}
    for axes, (field, label) in zip(figure.subplots(1, 2), labels.items(), strict=True):
        for name, measured in costs.items():
            lengths = [cost.length for cost in measured]
            axes.loglog(lengths, [getattr(cost, field) for cost in measured], marker="o", label=name)
        axes.set(xlabel="tokens of a row", ylabel=label)
    figure.axes[0].legend(fontsize="small")
    return figure


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument(
        "--lengths", type=int, nargs="*", default=[128, 256, 512, 1024, 2048, 4096, 8192, 16384]
    )
    parser.add_argument("--features", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--forms", nargs="*", choices=FORMS, default=list(FORMS))
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--forward", action="store_true")
    parser.add_argument("--plot", default="")
    arguments = parser.parse_args()
    print(f"{jax.default_backend()}: {jax.devices()[0].device_kind}, JAX {jax.__version__}")
    if arguments.layers:
        step_costs(arguments.layers, arguments.width, arguments.rows, arguments.repeats)
    sizes = arguments.lengths, arguments.features, arguments.tokens, arguments.forms, arguments.repeats
    costs = length_costs(*sizes, forward=arguments.forward)
    if "chunked" in arguments.forms and max(arguments.lengths) > LONG_ROWS:
        print(f"\nchunked, from {LONG_ROWS} tokens on: within {flatness(costs['chunked']):.1%}")
    if arguments.plot:
        draw(costs).savefig(arguments.plot)


if __name__ == "__main__":
    main()
