"""Tests every whole encoder against its equations, computed one token at a time in float64."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import erf

from birdie_jax.config import ModelConfig
from birdie_jax.models import build_model, encoder_names
from birdie_jax.models.encoder_config import EncoderConfig
from birdie_jax.models.layout import packed_layout
from tests.quick_jit import quick_jit

LAYERS, FEATURES, INNER, VOCAB, POSITIONS, HEADS, MODES = 2, 8, 12, 24, 12, 2, 3
EPSILON = 1e-5
# Samples of seven, one and two tokens, then padding; and a row of one sample.
SEGMENTS = np.array([[1] * 7 + [2] + [3] * 2 + [0] * 2, [1] * 12], np.int32)
INDEX = np.array([[*range(7), 0, 0, 1, 0, 0], range(12)])


def dense(p, x):
    return x @ p["kernel"] + p["bias"]


def norm(p, x):
    variance = jnp.var(x, axis=-1, keepdims=True)
    return (x - jnp.mean(x, axis=-1, keepdims=True)) / jnp.sqrt(variance + EPSILON) * p["scale"] + p["bias"]


def gelu(x):
    return 0.5 * x * (1 + jnp.tanh(jnp.sqrt(2 / jnp.pi) * (x + 0.044715 * x**3)))


def state_space(p, u, segments):
    """Return the outputs of samples in sequence, from left to right."""
    a = (jnp.minimum(p["A_re"], -1e-4) + 1j * p["A_im"])[:, None]
    c = (p["C"][..., 0] + 1j * p["C"][..., 1])[:, None]
    kept = jnp.exp(jnp.exp(p["log_step"])[:, None, None] * a)
    entering = (kept - 1) / a
    begins = np.concatenate([[True], segments[1:] != segments[:-1]])

    def step(h, values_and_begin):
        values, begin = values_and_begin
        h = jnp.where(begin, 0, kept * h) + entering * values[..., None]
        return h, jnp.real((c * h).sum(-1)) + p["D"][:, None] * values

    nothing = jnp.zeros((HEADS, FEATURES // HEADS, MODES), kept.dtype)
    return jax.lax.scan(step, nothing, (u.reshape(len(u), HEADS, -1), begins))[1].reshape(u.shape)


def state_spaces(p, x, segments):
    forward = state_space(p["forward_ssm"], gelu(dense(p["forward_in"], x)), segments)
    backward = state_space(p["backward_ssm"], gelu(dense(p["backward_in"], x))[::-1], segments[::-1])[::-1]
    return dense(p["forward_out"], forward), dense(p["backward_out"], backward)


def attention(p, x, segments):
    query, key, value = (dense(p[name], x).reshape(len(x), HEADS, -1) for name in ("query", "key", "value"))
    scores = jnp.einsum("thw,shw->hts", query, key) / np.sqrt(FEATURES / HEADS)
    shares = jax.nn.softmax(jnp.where(segments[:, None] == segments, scores, -jnp.inf), axis=-1)
    return dense(p["out"], jnp.einsum("hts,shw->thw", shares, value).reshape(x.shape))


def gated(p, x, routed):
    u = gelu(dense(p["up"], routed))
    return dense(p["out"], u * gelu(dense(p["gate"], x)))


def mixed(name, p, x, segments):
    """Return the output of a block's mixer."""
    if name == "stack_attention":
        return attention(p["attention"], x, segments)
    if name == "gated_attention":
        return gated(p, x, attention(p["attention"], x, segments))
    forward, backward = state_spaces(p["routing"], x, segments)
    return forward + backward if name == "stack_ssm" else gated(p, x, forward * backward)


def scores_of_row(name, p, row):
    tokens, types, segments, index = row
    places = p["position_embedding"][index] + p["token_type_embedding"][types]
    x = norm(p["embedding_norm"], p["embedding"][tokens] + places)
    for layer in range(LAYERS):
        block = jax.tree.map(lambda leaf, layer=layer: leaf[layer], p["blocks"])
        x = x + mixed(name, block["mixer"], norm(block["mixer_norm"], x), segments)
        if name.startswith("stack"):
            hidden = gelu(dense(block["mlp"]["in"], norm(block["mlp_norm"], x)))
            x = x + dense(block["mlp"]["out"], hidden)
    if name.startswith("stack"):
        x = norm(p["final_norm"], x)
    hidden = dense(p["head_transform"], x)
    exact = 0.5 * hidden * (1 + erf(hidden / jnp.sqrt(2)))
    return norm(p["head_norm"], exact) @ p["embedding"].T + p["scores_bias"]


def drawn(path, leaf):
    """Return numbers that make every term matter, also biases and clipped values."""
    random = np.random.default_rng(list(jax.tree_util.keystr(path).encode()))
    name = path[-1].key
    if name == "A_re":
        values = -random.uniform(0.1, 1, leaf.shape)
        values[..., 0] = 0.3
        return values.astype(np.float32)
    centre = {"scale": 1.0, "D": 1.0, "log_step": -1.0}.get(name, 0.0)
    size = {"kernel": leaf.shape[-2:][0] ** -0.5, "C": 1.0, "A_im": 2.0}.get(name, 0.3)
    return (centre + size * random.normal(size=leaf.shape)).astype(np.float32)


CASES = [(name, "toeplitz") for name in encoder_names()] + [("bigs", "chunked")]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "form"), CASES)
def test_scores_and_gradients_match_the_equations(name, form):
    heads = {"attention_heads": HEADS, "ssm_heads": HEADS}
    section = EncoderConfig(POSITIONS, **heads, ssm_state=MODES, ssm_form=form, ssm_chunk=5)
    config = ModelConfig(
        name=name,
        layers=LAYERS,
        features=FEATURES,
        mlp_features=INNER,
        norm_epsilon=EPSILON,
        dtype="float32",
        remat="none",
        sections=(section,),
    )
    model = build_model(config, VOCAB)
    layout = packed_layout(jnp.asarray(SEGMENTS), jnp.asarray(SEGMENTS > 0))
    random = np.random.default_rng(0)
    tokens = random.integers(0, VOCAB, SEGMENTS.shape).astype(np.int32)
    types = random.integers(0, 2, SEGMENTS.shape).astype(np.int32)
    counted = (SEGMENTS > 0)[..., None]
    cotangent = random.normal(size=(*SEGMENTS.shape, VOCAB)) * counted

    def head(self, tokens):
        x, _ = self.encode(jnp.asarray(tokens), layout, token_types=jnp.asarray(types))
        return self.logits(self.transform(x))

    def scores(params):
        return jnp.where(counted, model.apply({"params": params}, tokens, method=head), 0)

    def expected_scores(params):
        rows = zip(tokens, types, SEGMENTS, INDEX, strict=True)
        return jnp.where(counted, jnp.stack([scores_of_row(name, params, row) for row in rows]), 0)

    def results(scores, params, cotangent):
        y, pull = jax.vjp(scores, params)
        return y, *pull(cotangent)

    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), tokens, method=head))["params"]
    params = jax.tree_util.tree_map_with_path(drawn, shapes)
    found = quick_jit(partial(results, scores))(params, cotangent.astype(np.float32))
    with jax.enable_x64(True):
        exact = jax.tree.map(partial(np.asarray, dtype=np.float64), params)
        expected = quick_jit(partial(results, expected_scores))(exact, cotangent)

    def close(path, value, wanted):
        name, largest = jax.tree_util.keystr(path), np.abs(wanted).max()
        # A term that is equal for all keys does not change the softmax.
        assert largest > 1e-3 or name.endswith("['key']['bias']"), name
        np.testing.assert_allclose(value, wanted, rtol=0, atol=1e-5 + 1e-4 * largest, err_msg=name)

    jax.tree_util.tree_map_with_path(close, found, expected)
