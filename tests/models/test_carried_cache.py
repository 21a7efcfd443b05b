"""Tests that a text in parts with a cache matches the whole text, also in gradients."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birdie_jax.models import LanguageModel
from birdie_jax.models.attention import AttentionConfig
from birdie_jax.models.layout import causal_layout, continued_layout, packed_layout
from tests.generation.conftest import kinds
from tests.models.conftest import BY_MIXER, VARIANTS, VOCAB, compiled, tiered
from tests.quick_jit import quick_jit

ROWS, LENGTH, CUT, LAST = 2, 11, 6, 8


# Only mixers have a cache, so one model per mixer is enough. With a window the cache is a ring.
@pytest.fixture(
    params=[
        *kinds(product(BY_MIXER.values(), (True, False))),
        *(pytest.param((name, True), marks=pytest.mark.slow) for name in VARIANTS),
        ("window", True),
    ],
    ids=str,
)
def kind(request):
    return request.param


@pytest.fixture
def carried(kind, make):
    """Return model, parameters, tokens and the layouts of two parts; the second continues the first."""
    name, bidirectional = kind
    sections = {"sections": (AttentionConfig(heads=4, kv_heads=2, window=3),)} if name == "window" else {}
    name = "transformer" if name == "window" else name
    model, variables = make(name=name, bidirectional=bidirectional, **sections)
    tokens = np.random.default_rng(2).integers(256, VOCAB, (ROWS, LENGTH)).astype(np.int32)
    first = packed_layout(jnp.ones((ROWS, CUT), jnp.int32), jnp.ones((ROWS, CUT), bool))
    return model, variables["params"], jnp.asarray(tokens), first, causal_layout(ROWS, LENGTH - CUT)


def test_parts_match_the_whole_in_values_and_gradients(carried):
    """The gradient in the embedding passes from the last part through two caches to the first."""
    model, params, tokens, first, second = carried
    whole = jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=1), first, second)
    parts = [(tokens[:, :CUT], first), (tokens[:, CUT:LAST], causal_layout(ROWS, LAST - CUT))]
    parts.append((tokens[:, LAST:], causal_layout(ROWS, LENGTH - LAST)))

    def outputs(embedding, parts):
        cache, hidden = model.empty_cache(ROWS, LENGTH), None
        for part, layout in parts:
            variables = {"params": {**params, "embedding": embedding}}
            hidden, cache = model.apply(variables, part, layout, cache, method=LanguageModel.hidden)
        return hidden[:, LAST - LENGTH :]

    def loss(embedding, parts):
        result = outputs(embedding, parts)
        return jnp.vdot(jax.random.normal(jax.random.key(0), result.shape), result), result

    run = quick_jit(jax.grad(loss, has_aux=True))
    found, result = run(params["embedding"], parts)
    expected, expected_result = run(params["embedding"], [(tokens, whole)])
    np.testing.assert_allclose(result, expected_result, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert jnp.linalg.norm(expected[tokens[0, CUT - 1]]) > 1e-6, "the first part must matter"


@pytest.mark.parametrize(
    "name",
    tiered({"gated_ssm_plus"}, ["gated_ssm_plus", "hawk", "mamba", "mamba2", "gated_deltanet", *VARIANTS]),
)
def test_skipped_tokens_change_nothing(name, make):
    """The outputs of other tokens, and the cache, are the same as without skipped tokens."""
    model, variables = make(name=name)
    tokens = jnp.asarray(np.random.default_rng(3).integers(256, VOCAB, (3, 8)), jnp.int32)
    in_context, lengths, begins = (
        jnp.ones((3, 8), bool),
        jnp.array([2, 2, 2]),
        jnp.array([False, True, False]),
    )
    hidden_of = compiled(model, "hidden")
    random = iter(jax.random.split(jax.random.key(0), 9))
    cache = jax.tree.map(lambda leaf: jax.random.normal(next(random), leaf.shape), model.empty_cache(3))
    few = continued_layout(lengths, begins, in_context[:, :2])._replace(skipped=None)
    expected, expected_cache = hidden_of(variables, tokens[:, :2], few, cache)
    layout = continued_layout(lengths.at[2].set(0), begins, in_context)
    hidden, after = hidden_of(variables, tokens, layout, cache)
    np.testing.assert_allclose(hidden[:2, :2], expected[:2], rtol=1e-5, atol=1e-5)
    for found, given, wanted in zip(*map(jax.tree.leaves, (after, cache, expected_cache)), strict=True):
        np.testing.assert_allclose(found[:, :2], wanted[:, :2], rtol=1e-5, atol=1e-5)
        # A row without tokens keeps its cache bit for bit.
        np.testing.assert_array_equal(found[:, 2], given[:, 2])


def test_attention_refuses_skipped_tokens(make):
    model, variables = make(name="transformer")
    layout = continued_layout(jnp.array([1]), jnp.array([True]), jnp.ones((1, 2), bool))
    with pytest.raises(
        ValueError, match="attention: found a layout with skipped tokens; allowed: one without"
    ):
        tokens = jnp.zeros((1, 2), jnp.int32)
        jax.eval_shape(compiled(model, "hidden"), variables, tokens, layout, model.empty_cache(1, 2))
