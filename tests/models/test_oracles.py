"""Tests values and gradients of the RG-LRU, of Hawk, of the Transformer and of BERT against other code.

RecurrentGemma's own layers run next to ours (tests/oracles.sh fetches them). tests/models/recorded has
weights and results of `transformers`, which record_oracles.py wrote.
"""

import importlib.util
import os
import sys
import warnings
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birdie_jax.config import ModelConfig
from birdie_jax.models import build_model
from birdie_jax.models.attention import AttentionConfig
from birdie_jax.models.encoder_config import EncoderConfig
from birdie_jax.models.hawk import Hawk
from birdie_jax.models.layer_stacks import Block
from birdie_jax.models.layout import packed_layout
from birdie_jax.models.rg_lru import RGLRU
from tests.quick_jit import quick_jit

FLOAT32 = jnp.dtype("float32")
STATE, FEATURES, HEADS, LENGTH = 16, 12, 4, 20
# Two packed rows. The second has no padding, and a reset in mid-sequence.
SEGMENTS = jnp.array([[1] * 7 + [2] * 1 + [3] * 9 + [0] * 3, [1] * 11 + [2] * 9], jnp.int32)
close = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module")
def recurrentgemma():
    """Return jax.layers and jax.modules of recurrentgemma."""
    folder = os.environ.get("BIRDIE_ORACLES", "")
    if not folder and importlib.util.find_spec("recurrentgemma") is None:
        pytest.skip("recurrentgemma is not there: bash tests/run.sh fetches it")
    sys.path.append(folder)  # last, so it shadows no module
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings of their imports
            from recurrentgemma.jax import layers, modules
        yield layers, modules
    finally:
        sys.path.remove(folder)


@partial(quick_jit, static_argnums=0)
def results(apply, params, x, cotangent):
    """Return the output, and the gradients in inputs and parameters."""
    y, pull = jax.vjp(apply, params, x)
    return y, *reversed(pull(cotangent))


def random_like(shapes, seed):
    """Return random parameters of these shapes; with the usual zero, biases would have no effect."""
    keys = iter(jax.random.split(jax.random.key(seed), 100))
    return jax.tree.map(lambda leaf: 0.5 * jax.random.normal(next(keys), leaf.shape), shapes)


def causal(segments):
    return packed_layout(segments, jnp.zeros(segments.shape, bool))


def gate_of(theirs):
    return {"kernel": theirs["w"], "bias": theirs["b"].reshape(-1)}


def rg_lru_of(theirs):
    return {
        "decay": theirs["a_param"],
        "recurrence_gate": gate_of(theirs["a_gate"]),
        "input_gate": gate_of(theirs["input_gate"]),
    }


def hawk_of(theirs):
    return {
        "output_gate": {"kernel": theirs["linear_y"]["kernel"]},
        "input": {"kernel": theirs["linear_x"]["kernel"]},
        # Their kernel begins with the oldest input.
        "convolution": {"kernel": theirs["conv_1d"]["w"][::-1]},
        "rg_lru": rg_lru_of(theirs["rg_lru"]),
        "out": {"kernel": theirs["linear_out"]["kernel"]},
    }


@pytest.mark.slow
def test_hawk_matches_the_recurrent_block_of_recurrentgemma(recurrentgemma):
    _, modules = recurrentgemma
    layout = causal(SEGMENTS)
    key_x, key_y = jax.random.split(jax.random.key(0))
    x, cotangent = (jax.random.normal(key, (*SEGMENTS.shape, FEATURES)) for key in (key_x, key_y))
    theirs = modules.RecurrentBlock(width=FEATURES, num_heads=HEADS, lru_width=STATE)
    positions = layout.positions()
    params = random_like(jax.eval_shape(theirs.init, jax.random.key(1), x, positions)["params"], 2)
    for name, bias in (
        ("linear_x", "bias"),
        ("linear_y", "bias"),
        ("linear_out", "bias"),
        ("conv_1d", "b"),
    ):
        params[name][bias] = jnp.zeros_like(params[name][bias])  # ours have none, as in the paper
    expected = results(
        lambda params, x: theirs.apply({"params": params}, x, positions)[0], params, x, cotangent
    )
    ours = Hawk(
        features=FEATURES,
        state=STATE,
        heads=HEADS,
        conv_width=4,
        bidirectional=False,
        dtype=FLOAT32,
        scan_dtype=FLOAT32,
    )
    result = results(
        lambda params, x: ours.apply({"params": params}, x, layout)[0], hawk_of(params), x, cotangent
    )
    jax.tree.map(close, result, (*expected[:2], hawk_of(expected[2])))


@pytest.fixture
def recorded():
    """Return a function that reads the arrays of a case, and its parameters and gradients by name."""

    def read(name):
        arrays = dict(np.load(Path(__file__).with_name("recorded") / f"{name}.npz"))
        parts = ({}, {})
        for part, prefix in zip(parts, ("parameter/", "gradient/"), strict=True):
            for key in [key for key in arrays if key.startswith(prefix)]:
                part[key.removeprefix(prefix)] = arrays.pop(key)
        return arrays, *parts

    return read


def check_recorded(apply, rename, case):
    arrays, parameters, gradients = case
    result = results(apply, rename(parameters), arrays["x"], arrays["cotangent"])
    jax.tree.map(close, result, (arrays["y"], arrays["dx"], rename(gradients)))


def test_the_rg_lru_matches_transformers(recorded):
    case = recorded("rg_lru")
    layout = causal(jnp.asarray(case[0]["segment_ids"]))

    def rename(theirs):
        def gate(name):
            return {"kernel": theirs[f"{name}_weight"], "bias": theirs[f"{name}_bias"].reshape(-1)}

        return {
            "decay": theirs["recurrent_param"],
            "recurrence_gate": gate("recurrent_gate"),
            "input_gate": gate("input_gate"),
        }

    module = RGLRU(2, bidirectional=False, dtype=FLOAT32, scan_dtype=FLOAT32)
    # They treat padding as one sample, and we reset at each of its tokens. Here it is a single token.
    check_recorded(lambda params, x: module.apply({"params": params}, x, layout)[0], rename, case)


def test_the_transformer_matches_llama_with_a_packed_prefix_lm_mask(recorded):
    case = recorded("llama_layer")
    layout = packed_layout(*(jnp.asarray(case[0][name]) for name in ("segment_ids", "bidirectional")))

    def rename(theirs):
        def kernel(name):
            return {"kernel": theirs[f"{name}_proj.weight"].T}

        return {
            "mixer_norm": {"scale": theirs["input_layernorm.weight"]},
            "mixer": {
                "query": kernel("self_attn.q"),
                "key": kernel("self_attn.k"),
                "value": kernel("self_attn.v"),
                "out": kernel("self_attn.o"),
            },
            "mlp_norm": {"scale": theirs["post_attention_layernorm.weight"]},
            "mlp": {"gate": kernel("mlp.gate"), "in": kernel("mlp.up"), "out": kernel("mlp.down")},
        }

    config = ModelConfig(
        name="transformer",
        layers=1,
        features=16,
        mlp_features=24,
        dtype="float32",
        sections=(AttentionConfig(heads=4, kv_heads=2),),
    )
    check_recorded(
        lambda params, x: Block(config).apply({"params": params}, x, None, layout)[0], rename, case
    )


@pytest.mark.slow
def test_stack_attention_matches_bert_with_pre_layer_norms(recorded):
    """Tests a whole masked language model: embeddings, layers, the norm after them and the head."""
    arrays, parameters, gradients = recorded("pre_layer_norm_bert")

    def rename(theirs):
        def layers(name):
            prefix = "roberta_prelayernorm.encoder.layer"
            return jnp.stack([theirs[f"{prefix}.{layer}.{name}"] for layer in range(2)])

        def stacked_dense(name):
            return {"kernel": layers(f"{name}.weight").swapaxes(1, 2), "bias": layers(f"{name}.bias")}

        def stacked_norm(name):
            return {"scale": layers(f"{name}.weight"), "bias": layers(f"{name}.bias")}

        def norm(name):
            return {"scale": theirs[f"{name}.weight"], "bias": theirs[f"{name}.bias"]}

        def table(name):
            return theirs[f"{embeddings}.{name}_embeddings.weight"]

        embeddings = "roberta_prelayernorm.embeddings"
        return {
            "embedding": table("word"),
            "position_embedding": table("position"),
            "token_type_embedding": table("token_type"),
            "embedding_norm": norm(f"{embeddings}.LayerNorm"),
            "blocks": {
                "mixer_norm": stacked_norm("attention.LayerNorm"),
                "mixer": {
                    "attention": {
                        "query": stacked_dense("attention.self.query"),
                        "key": stacked_dense("attention.self.key"),
                        "value": stacked_dense("attention.self.value"),
                        "out": stacked_dense("attention.output.dense"),
                    }
                },
                "mlp_norm": stacked_norm("intermediate.LayerNorm"),
                "mlp": {"in": stacked_dense("intermediate.dense"), "out": stacked_dense("output.dense")},
            },
            "final_norm": norm("roberta_prelayernorm.LayerNorm"),
            "head_transform": {
                "kernel": theirs["lm_head.dense.weight"].T,
                "bias": theirs["lm_head.dense.bias"],
            },
            "head_norm": norm("lm_head.layer_norm"),
            "scores_bias": theirs["lm_head.bias"],
        }

    config = ModelConfig(
        name="stack_attention",
        layers=2,
        features=8,
        mlp_features=16,
        norm_epsilon=1e-12,
        dtype="float32",
        sections=(EncoderConfig(positions=16, attention_heads=2, activation="exact"),),
    )
    model = build_model(config, vocab_size=24)
    segments = jnp.asarray(arrays["segment_ids"])
    layout = packed_layout(segments, segments > 0)

    @quick_jit
    def results(params):
        def scores(params):
            def head(self, tokens, types):
                x, _ = self.encode(tokens, layout, token_types=types)
                return self.logits(self.transform(x))

            tokens, types = jnp.asarray(arrays["tokens"]), jnp.asarray(arrays["token_types"])
            return model.apply({"params": params}, tokens, types, method=head)

        y, pull = jax.vjp(scores, params)
        return y, *pull(arrays["cotangent"])

    jax.tree.map(close, results(rename(parameters)), (arrays["scores"], rename(gradients)))
