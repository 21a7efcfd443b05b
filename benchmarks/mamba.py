"""Compare our Mamba with transformers' and mambapy's at the same sizes: `python -m benchmarks.mamba`.

The script requires torch, transformers and mambapy (`pip install torch transformers`,
`pip install --no-deps mambapy`). You can install them in a separate folder at the end of PYTHONPATH.

Training: tokens per second of a step of AdamW on random rows, causal, float32. Each implementation uses
the cores that it chooses. mambapy trains with its parallel scan. transformers trains with its loop over
time, its only method without CUDA.

Generation: tokens per second of greedy decoding. Ours decodes after a prompt, in a loop within the
program. The others decode after one token, with a call per token. The size of each cache does not depend
on the length of the context.

The implementations take turns, so other load on the machine affects all of them. The script prints
medians. All implementations keep freed memory, as `train` does, unless you set a variable of glibc's
malloc.
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
import torch  # noqa: E402
import transformers  # noqa: E402
from mambapy import mamba as mambapy  # noqa: E402

from benchmarks.side_by_side import decoder, in_turns, trainer  # noqa: E402
from birdie_jax.config import ModelConfig  # noqa: E402
from birdie_jax.models import build_model  # noqa: E402
from birdie_jax.models.language_model import (  # noqa: E402
    LanguageModel,
    UnstackedLayers,
    parameter_shapes,
    unrolled_hidden,
    unstack_layers,
)
from birdie_jax.models.layout import causal_layout, packed_layout  # noqa: E402
from birdie_jax.models.mamba import MambaConfig  # noqa: E402
from birdie_jax.models.token_losses import token_losses  # noqa: E402

NAMES = ("birdie-jax", "transformers", "mambapy")


def ours(sizes):
    """Return (number of parameters, training step on rows, function that makes a decoder from a prompt)."""
    config = ModelConfig(
        name="mamba",
        layers=sizes.layers,
        features=sizes.width,
        state=2 * sizes.width,
        sections=(MambaConfig(state_size=sizes.states),),
        bidirectional=False,
        dtype="float32",
        remat="none",
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
        losses, _ = token_losses(
            hidden, params["embedding"], targets, jnp.ones_like(targets, bool), sizes.loss_tokens
        )
        return losses.mean()

    @jax.jit
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
        params, layer_params = weights
        layers = UnstackedLayers(layer_params, caches)
        hidden, caches = unrolled_hidden(
            model, params, layers, token[:, None], causal_layout(len(token), 1)
        )
        logits = model.apply({"params": params}, hidden, method=LanguageModel.logits)
        return jnp.argmax(logits[:, 0], axis=-1).astype(jnp.int32), caches

    def make_decoder(prompt):
        token, cache = prefill(params, jnp.asarray(prompt, jnp.int32))
        # Unstack once, as `generate` does: in the loop, XLA would copy the weights for every token.
        weights = params, unstack_layers(model, params, cache=None).params
        return partial(decoder(weights, step, sizes.decoded), token, prompt.shape[1], cache)

    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    train = trainer(params, loss)
    return count, lambda rows: train(jnp.asarray(rows, jnp.int32)), make_decoder


def torch_trainer(module, logits_of):
    """Return a training step on rows for a torch module."""
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4)

    def train(rows):
        rows = torch.from_numpy(rows)
        optimizer.zero_grad()
        logits = logits_of(rows[:, :-1])
        value = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        value.backward()
        optimizer.step()
        return value.item()

    return train


def of_transformers(sizes):
    """Return the same as `ours` for the model of transformers."""
    config = transformers.MambaConfig(
        vocab_size=sizes.vocab_size,
        hidden_size=sizes.width,
        state_size=sizes.states,
        num_hidden_layers=sizes.layers,
    )
    module = transformers.MambaForCausalLM(config)

    def make_decoder(prompt):
        @torch.no_grad()
        def decode():
            # Decoding changes the cache in place, so each decoding starts with a new cache.
            found = module(torch.from_numpy(prompt[:, :1]), use_cache=True)
            for _ in range(sizes.decoded):
                token = found.logits[:, -1].argmax(-1, keepdim=True)
                found = module(token, cache_params=found.cache_params, use_cache=True)
            return found.logits

        return decode

    count = sum(parameter.numel() for parameter in module.parameters())
    return count, torch_trainer(module, lambda tokens: module(tokens, use_cache=False).logits), make_decoder


class MambapyModel(torch.nn.Module):
    """mambapy's layers between an embedding and a head with shared weights.

    mambapy's own language model needs the CUDA kernels of Mamba-2 at import.
    """

    def __init__(self, config, vocab_size):
        super().__init__()
        self.embedding = torch.nn.Embedding(vocab_size, config.d_model)
        self.layers = mambapy.Mamba(config)
        self.norm = mambapy.RMSNorm(config.d_model, config.rms_norm_eps)

    def forward(self, tokens):
        """Return the logits of rows of tokens."""
        return self.norm(self.layers(self.embedding(tokens))) @ self.embedding.weight.T

    def step(self, token, caches):
        """Return the logits after one more token, and the caches."""
        x, caches = self.layers.step(self.embedding(token), caches)
        return self.norm(x) @ self.embedding.weight.T, caches


def of_mambapy(sizes):
    """Return the same as `ours` for the model of mambapy."""
    config = mambapy.MambaConfig(d_model=sizes.width, n_layers=sizes.layers, d_state=sizes.states)
    module = MambapyModel(config, sizes.vocab_size)

    def make_decoder(prompt):
        @torch.no_grad()
        def decode():
            token = torch.from_numpy(prompt[:, 0])
            inputs = torch.zeros(len(prompt), config.d_inner, config.d_conv - 1)
            caches = [(None, inputs) for _ in range(config.n_layers)]
            logits = None
            for _ in range(sizes.decoded + 1):
                logits, caches = module.step(token, caches)
                token = logits.argmax(-1)
            return logits

        return decode

    count = sum(parameter.numel() for parameter in module.parameters())
    return count, torch_trainer(module, module), make_decoder


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in {
        "layers": 6,
        "width": 256,
        "states": 16,
        "vocab_size": 4096,
        "rows": 4,
        "length": 256,
        "prompt": 16,
        "decoded": 64,
        "rounds": 5,
        "loss_tokens": 1024,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    sizes = parser.parse_args()
    torch.manual_seed(0)
    random = np.random.default_rng(0)
    made = [make(sizes) for make in (ours, of_transformers, of_mambapy)]
    counts = ", ".join(f"{name} {count:,}" for name, (count, *_) in zip(NAMES, made, strict=True))
    print(
        f"{sizes.layers} layers of width {sizes.width}, {sizes.states} states; parameters: {counts}; "
        f"{len(os.sched_getaffinity(0))} cores, freed memory {'kept' if KEPT else 'given back'}"
    )
    print(f"| tokens/s | {' | '.join(NAMES)} | times transformers | times mambapy |\n" + "|---" * 6 + "|")

    def line(what, tokens, seconds):
        rates = [tokens / each for each in seconds]
        cells = [f"{rate:,.0f}" for rate in rates] + [f"{rates[0] / rate:.1f}" for rate in rates[1:]]
        print(f"| {what} | {' | '.join(cells)} |", flush=True)

    rows = random.integers(256, sizes.vocab_size, (sizes.rows, sizes.length + 1))
    line(
        f"training, {sizes.rows} rows of {sizes.length}",
        sizes.rows * sizes.length,
        in_turns([partial(train, rows) for _, train, _ in made], sizes.rounds),
    )
    for batch in (1, 8):
        prompt = random.integers(256, sizes.vocab_size, (batch, sizes.prompt))
        decoders = [make_decoder(prompt) for *_, make_decoder in made]
        what = f"decoding {sizes.decoded}, batch {batch}"
        line(what, batch * sizes.decoded, in_turns(decoders, sizes.rounds))


if __name__ == "__main__":
    main()
