"""Compare our Hawk with recurrentgemma's at the same sizes, in one run: `python -m benchmarks.hawk`.

The script requires recurrentgemma and einops (`pip install --no-deps recurrentgemma einops`). It measures
training as tokens per second of a step of AdamW on random rows, causal. It measures generation as tokens
per second of a greedy loop on the device after a prompt; each model has its own step and cache. Both
models take turns, so other load on the machine affects both. The script prints medians. recurrentgemma's
loss follows an example in its repository: the cross-entropy of all logits at once.

On a CPU, both models keep freed memory, as `train` does, unless you set a variable of glibc's malloc.
With MALLOC_TRIM_THRESHOLD_=131072, memory goes back to the system after every call.
"""

import argparse
import os
from functools import partial

from birdie_jax.host_memory import keep_freed_memory

# This must run before JAX allocates memory. See keep_freed_memory.
KEPT = keep_freed_memory()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402
from recurrentgemma import common  # noqa: E402
from recurrentgemma.jax import griffin  # noqa: E402

from benchmarks.side_by_side import decoder, in_turns, trainer  # noqa: E402
from birdie_jax.config import ModelConfig  # noqa: E402
from birdie_jax.models import build_model  # noqa: E402
from birdie_jax.models.hawk import HawkConfig  # noqa: E402
from birdie_jax.models.language_model import (  # noqa: E402
    LanguageModel,
    UnstackedLayers,
    parameter_shapes,
    unrolled_hidden,
    unstack_layers,
)
from birdie_jax.models.layers import FEW_TOKENS, transposed_kernels  # noqa: E402
from birdie_jax.models.layout import causal_layout, packed_layout  # noqa: E402
from birdie_jax.models.token_losses import token_losses  # noqa: E402


def ours(sizes, dtype, remat):
    """Return (parameters, loss, prefill, the weights that a step reads, step) of our model."""
    config = ModelConfig(
        name="hawk_mlp",
        layers=sizes.layers,
        features=sizes.width,
        state=sizes.width,
        sections=(HawkConfig(heads=sizes.heads),),
        mlp_features=sizes.mlp_features,
        bidirectional=False,
        dtype=dtype,
        remat="full" if remat else "none",
    )
    model = build_model(config, sizes.vocab_size)
    random = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: jnp.asarray(random.normal(0, leaf.shape[-1] ** -0.5, leaf.shape), leaf.dtype),
        parameter_shapes(model),
    )

    def layout_of(tokens):
        return packed_layout(jnp.ones_like(tokens), jnp.zeros_like(tokens, bool))

    def loss(params, tokens):
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        hidden, _ = model.apply({"params": params}, inputs, layout_of(inputs), method=LanguageModel.hidden)
        mask = jnp.ones_like(targets, bool)
        losses, _ = token_losses(hidden, params["embedding"], targets, mask, sizes.loss_tokens)
        return losses.mean()

    def prefill(params, tokens):
        empty = model.empty_cache(len(tokens), 0)
        hidden, cache = model.apply(
            {"params": params}, tokens, layout_of(tokens), empty, method=LanguageModel.hidden
        )
        logits = model.apply({"params": params}, hidden[:, -1:], method=LanguageModel.logits)
        caches = unstack_layers(model, params, cache).caches
        return jnp.argmax(logits[:, 0], axis=-1).astype(jnp.int32), caches

    def step(weights, token, position, caches):
        del position
        params, layer_params, kernels = weights
        layers, layout = UnstackedLayers(layer_params, caches), causal_layout(len(token), 1)
        kernels = kernels if len(token) in FEW_TOKENS else None
        hidden, caches = unrolled_hidden(model, params, layers, token[:, None], layout, kernels=kernels)
        logits = model.apply({"params": params}, hidden, method=LanguageModel.logits)
        return jnp.argmax(logits[:, 0], axis=-1).astype(jnp.int32), caches

    # Unstack once, as `generate` does: in the loop, XLA would copy the weights for every token.
    layer_params = unstack_layers(model, params, cache=None).params
    weights = params, layer_params, [transposed_kernels(one) for one in layer_params]
    return params, loss, prefill, weights, step


def theirs(sizes, dtype, remat):
    """Return (parameters, loss, prefill, the weights that a step reads, step) of recurrentgemma's model."""
    config = common.GriffinConfig(
        vocab_size=sizes.vocab_size,
        width=sizes.width,
        mlp_expanded_width=sizes.mlp_features,
        num_heads=sizes.heads,
        block_types=(common.TemporalBlockType.RECURRENT,) * sizes.layers,
        embeddings_scale_by_sqrt_dim=True,
        attention_window_size=2048,
        logits_soft_cap=0.0,
    )
    model = griffin.Griffin(config, gradient_checkpointing=remat, dtype=jnp.dtype(dtype))
    tokens = jnp.zeros((1, 8), jnp.int32)
    params = model.init(jax.random.key(0), tokens, jnp.arange(8)[None])["params"]

    def positions_of(tokens):
        return jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)

    def loss(params, tokens):
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        logits, _ = model.apply({"params": params}, inputs, positions_of(inputs), return_cache=False)
        return optax.softmax_cross_entropy_with_integer_labels(logits.astype(jnp.float32), targets).mean()

    def prefill(params, tokens):
        logits, cache = model.apply({"params": params}, tokens, positions_of(tokens))
        return jnp.argmax(logits[:, -1], axis=-1).astype(jnp.int32), cache

    def step(params, token, position, cache):
        positions = jnp.full((len(token), 1), position)
        logits, cache = model.apply({"params": params}, token[:, None], positions, cache)
        return jnp.argmax(logits[:, 0], axis=-1).astype(jnp.int32), cache

    return params, loss, prefill, params, step


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in {
        "layers": 6,
        "width": 256,
        "heads": 4,
        "mlp_features": 768,
        "vocab_size": 4096,
        "rows": 8,
        "length": 512,
        "prompt": 256,
        "decoded": 64,
        "rounds": 7,
        "loss_tokens": 1024,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--remat", action="store_true")
    parser.add_argument("--parts", nargs="*", default=["training", "generation"])
    sizes = parser.parse_args()
    random = np.random.default_rng(0)
    models = {"birdie-jax": ours, "recurrentgemma": theirs}
    made = {name: make(sizes, sizes.dtype, sizes.remat) for name, make in models.items()}
    counts = [sum(leaf.size for leaf in jax.tree.leaves(params)) for params, *_ in made.values()]
    print(
        f"{jax.devices()[0].device_kind}, {sizes.dtype}, {sizes.layers} layers of width {sizes.width}, "
        f"parameters {counts[0]:,} and {counts[1]:,}, remat {sizes.remat}, "
        f"{len(os.sched_getaffinity(0))} cores, freed memory {'kept' if KEPT else 'given back'}"
    )
    print("| what | birdie-jax, tokens/s | recurrentgemma, tokens/s | times |")
    print("|---|---|---|---|")

    def line(what, tokens, seconds):
        rates = [tokens / each for each in seconds]
        print(f"| {what} | {rates[0]:,.0f} | {rates[1]:,.0f} | {rates[0] / rates[1]:.2f} |", flush=True)

    if "training" in sizes.parts:
        shape = (sizes.rows, sizes.length + 1)
        rows = jnp.asarray(random.integers(256, sizes.vocab_size, shape), jnp.int32)
        steps = [partial(trainer(params, loss), rows) for params, loss, *_ in made.values()]
        line(
            f"training, {sizes.rows} rows of {sizes.length}",
            sizes.rows * sizes.length,
            in_turns(steps, sizes.rounds),
        )
    for batch in (1, 8) if "generation" in sizes.parts else ():
        prompt = jnp.asarray(random.integers(256, sizes.vocab_size, (batch, sizes.prompt)), jnp.int32)
        prefills, decodes = [], []
        for params, _, prefill, weights, step in made.values():
            run_prefill = partial(jax.jit(prefill), params, prompt)
            token, cache = run_prefill()
            prefills.append(run_prefill)
            decodes.append(partial(decoder(weights, step, sizes.decoded), token, sizes.prompt, cache))
        what = f"batch {batch}, prompts of {sizes.prompt}"
        line(f"prefill, {what}", batch * sizes.prompt, in_turns(prefills, sizes.rounds))
        line(f"decode of {sizes.decoded}, {what}", batch * sizes.decoded, in_turns(decodes, sizes.rounds))


if __name__ == "__main__":
    main()
