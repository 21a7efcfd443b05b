"""Tests that prefill and decoding match the whole forward pass, with a state of constant size."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birdie_jax.batch import Batch
from birdie_jax.models import LanguageModel
from birdie_jax.models.language_model import looped_hidden, stack_caches, unrolled_hidden, unstack_layers
from birdie_jax.models.layers import transposed_kernels
from birdie_jax.models.layout import causal_layout, packed_layout
from tests.models.conftest import compiled
from tests.quick_jit import quick_jit

# The same number of rows as in test_information_flow.py, so JAX compiles each forward pass once.
ROWS, LENGTH, TARGET = 4, 24, 7
PREFIX = 6  # the longer context of five tokens and the start token


@cache
def compiled_steps(model):
    """Return (variables, tokens, layout, cache) -> (logits, cache)."""

    def advance(variables, tokens, layout, cache):
        hidden, cache = model.apply(variables, tokens, layout, cache, method=LanguageModel.hidden)
        return model.apply(variables, hidden, method=LanguageModel.logits), cache

    return quick_jit(advance)


@pytest.fixture
def decoder(kind, make):
    """Return the model, its call on packed rows, and (tokens, layout, cache) -> (logits, cache)."""
    name, bidirectional = kind
    model, variables = make(name=name, bidirectional=bidirectional)
    return model, partial(compiled(model), variables), partial(compiled_steps(model), variables)


def test_decoding_matches_the_logits_of_the_forward_pass(decoder, pack):
    """Prompts have two lengths, with padding before the shorter one; calls have one token or several."""
    model, whole, advance = decoder
    contexts = (5, 3, 5, 3)
    batch = pack([[(context, TARGET)] for context in contexts])
    expected = whole(batch)
    # The shorter prompt has padding before it, so all rows end with the call.
    shifts = [PREFIX - 1 - context for context in contexts]
    moved = [jnp.stack([jnp.roll(x, n) for x, n in zip(field, shifts, strict=True)]) for field in batch]
    moved = Batch(*moved)
    layout = packed_layout(moved.segment_ids, moved.bidirectional)
    first = jax.tree.map(lambda x: x[:, :PREFIX], layout)
    logits, prefilled = advance(moved.tokens[:, :PREFIX], first, model.empty_cache(ROWS, LENGTH))
    sizes = jax.tree.map(jnp.shape, prefilled)
    assert sizes == jax.tree.map(jnp.shape, model.empty_cache(ROWS, LENGTH))

    def check(logits, begin):
        for row, shift in enumerate(shifts):
            here = slice(max(begin, shift), begin + logits.shape[1])
            wanted = expected[row, here.start - shift : here.stop - shift]
            np.testing.assert_allclose(logits[row, here.start - begin :], wanted, rtol=1e-4, atol=1e-4)

    check(logits, 0)
    end = PREFIX - 1 + TARGET
    several, _ = advance(moved.tokens[:, PREFIX:end], causal_layout(ROWS, end - PREFIX), prefilled)
    check(several, PREFIX)
    cache = prefilled
    for t in range(PREFIX, end):
        logits, cache = advance(moved.tokens[:, t : t + 1], causal_layout(ROWS, 1), cache)
        check(logits, t)
        assert jax.tree.map(jnp.shape, cache) == sizes


# The length of the parts. A bidirectional model reads a context and the start token in one call.
PART = {False: 3, True: 6}


def test_a_packed_row_in_parts_matches_the_whole_row(decoder, pack, samples):
    """Parts of causal models end within and between contexts, others also within targets and padding."""
    model, whole, advance = decoder
    packed, size = pack([samples] * ROWS), PART[model.config.bidirectional]
    layout = packed_layout(packed.segment_ids, packed.bidirectional)
    cache, parts = model.empty_cache(ROWS, LENGTH), []
    for begin in range(0, LENGTH, size):
        part = jax.tree.map(lambda x, begin=begin: x[:, begin : begin + size], layout)
        logits, cache = advance(packed.tokens[:, begin : begin + size], part, cache)
        parts.append(logits)
    of_samples = packed.segment_ids > 0
    result = jnp.concatenate(parts, axis=1)
    np.testing.assert_allclose(result[of_samples], whole(packed)[of_samples], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gated_ssm_plus", "griffin", "gated_deltanet", "mamba2"])
def test_the_loops_for_accelerators_and_cpus_match_the_scan(name, make):
    """Tests the loop in place and transposed kernels; the hybrid has a period and a part of one."""
    model, variables = make(name=name)
    tokens, layout = jnp.asarray([[300], [301]]), causal_layout(2, 1)
    cache = jax.tree.map(
        lambda leaf: jax.random.normal(jax.random.key(leaf.size), leaf.shape).astype(leaf.dtype),
        model.empty_cache(2, 4),
    )
    # The counters of a window cache are integers.
    cache = jax.tree.map(lambda leaf: leaf * 0 if jnp.issubdtype(leaf.dtype, jnp.integer) else leaf, cache)

    def in_place(variables, tokens, cache):
        return looped_hidden(model, variables["params"], cache, tokens, layout)

    def by_kernels(variables, tokens, cache):
        layers = unstack_layers(model, variables["params"], cache)
        kernels = [transposed_kernels(one) for one in layers.params]
        hidden, caches = unrolled_hidden(
            model, variables["params"], layers, tokens, layout, kernels=kernels
        )
        return hidden, stack_caches(model, caches)

    def by_scan(variables, tokens, cache):
        return model.apply(variables, tokens, layout, cache, method=LanguageModel.hidden)

    expected = quick_jit(by_scan)(variables, tokens, cache)
    for loop in (in_place, by_kernels):
        found = quick_jit(loop)(variables, tokens, cache)
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5), found, expected)


def test_attention_requires_the_length_of_its_cache(make):
    model, _ = make(name="transformer")
    with pytest.raises(
        ValueError, match="attention needs length, the maximum number of tokens of a row; found None"
    ):
        model.empty_cache(3)
    cache = model.empty_cache(3, 10)
    assert cache.keys.shape == cache.values.shape == (2, 3, 10, 2, 4)


def test_a_call_larger_than_the_cache_is_refused(make):
    model, variables = make(name="transformer")
    tokens, layout = jnp.zeros((1, 5), jnp.int32), causal_layout(1, 5)
    message = "attention: the cache has room for 4 tokens; found a call of 5"
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(compiled_steps(model), variables, tokens, layout, model.empty_cache(1, 4))


def test_a_full_cache_returns_nan(make):
    model, variables = make(name="transformer")
    tokens, layout = jnp.zeros((1, 3), jnp.int32), causal_layout(1, 3)
    logits, cache = compiled_steps(model)(variables, tokens, layout, model.empty_cache(1, 4))
    assert jnp.isfinite(logits).all()
    logits, _ = compiled_steps(model)(variables, tokens, layout, cache)
    assert jnp.isnan(logits).all()


@pytest.mark.parametrize(
    ("name", "heads", "tails"),
    [("gated_deltanet", (2, 4, 8), (8, 8, 16)), ("mamba2", (4, 4, 4), (16, 4, 4))],
)
@pytest.mark.parametrize("bidirectional", [True, False])
def test_the_cache_holds_only_matrices_of_forward_heads(make, name, heads, tails, bidirectional):
    model, _ = make(name=name, bidirectional=bidirectional)
    cache = model.empty_cache(3)
    forward = heads[0] // 2 if bidirectional else heads[0]
    assert cache.state.shape == (2, 3, forward, *heads[1:])
    assert cache.state.dtype == jnp.float32
    assert [tail.shape for tail in cache.conv_tails] == [(2, 3, 3, width) for width in tails]


@pytest.mark.parametrize(("name", "states"), [("gated_ssm_plus", ()), ("hawk", ()), ("mamba", (4,))])
@pytest.mark.parametrize(("bidirectional", "channels"), [(True, 8), (False, 16)])
def test_the_cache_holds_only_forward_channels(make, name, states, bidirectional, channels):
    model, _ = make(name=name, bidirectional=bidirectional)
    cache = model.empty_cache(3)
    assert cache.state.shape == (2, 3, *states, channels)
    assert cache.state.dtype == jnp.float32
    assert cache.conv_tail.shape == (2, 3, 3, 16)
