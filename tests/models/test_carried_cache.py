"""The cache that goes into a call and comes out of it: a text in two parts is the whole, gradients too."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birdie_jax.models import LanguageModel
from birdie_jax.models.layout import causal_layout, continued_layout, packed_layout
from tests.generation.conftest import kinds
from tests.models.conftest import BY_MIXER, VOCAB, compiled, tiered
from tests.quick_jit import quick_jit

ROWS, LENGTH, CUT = 2, 11, 6


# What else is in a block than its mixer has no cache.
@pytest.fixture(params=kinds(BY_MIXER.values(), fast={("gated_ssm_plus", True)}))
def kind(request):
    return request.param


@pytest.fixture
def carried(kind, make):
    """Model, parameters, tokens and the layouts of two parts, of which the second continues the first."""
    name, bidirectional = kind
    model, variables = make(name=name, bidirectional=bidirectional)
    tokens = np.random.default_rng(2).integers(256, VOCAB, (ROWS, LENGTH)).astype(np.int32)
    first = packed_layout(jnp.ones((ROWS, CUT), jnp.int32), jnp.ones((ROWS, CUT), bool))
    return model, variables["params"], jnp.asarray(tokens), first, causal_layout(ROWS, LENGTH - CUT)


def is_float(leaf):
    return jnp.issubdtype(leaf.dtype, jnp.floating)


def weighted(tree):
    """Return a sum of all numbers of a tree, each with a weight of its own."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if is_float(leaf)]
    return sum(
        jnp.vdot(jax.random.normal(jax.random.key(number), leaf.shape), leaf)
        for number, leaf in enumerate(leaves)
    )


def test_gradients_in_the_cache_are_those_of_finite_differences(carried):
    """Of a loss in the outputs and in the cache that comes out, with respect to the one that goes in."""
    model, params, tokens, first, second = carried
    empty = model.empty_cache(ROWS, LENGTH)
    _, cache = compiled(model, "hidden")({"params": params}, tokens[:, :CUT], first, empty)
    leaves, structure = jax.tree.flatten(cache)
    floats = [leaf for leaf in leaves if is_float(leaf)]

    @quick_jit
    @jax.value_and_grad
    def loss_and_gradient(floats):
        given = iter(floats)
        whole = jax.tree.unflatten(structure, [next(given) if is_float(leaf) else leaf for leaf in leaves])
        return weighted(
            model.apply({"params": params}, tokens[:, CUT:], second, whole, method=LanguageModel.hidden)
        )

    _, gradient = loss_and_gradient(floats)
    for number, leaf in enumerate(floats):
        if not leaf.size:
            continue
        direction = jax.random.normal(jax.random.key(number), leaf.shape)
        step = 3e-3

        def moved(sign, number=number, direction=direction, step=step):
            return [
                leaf + sign * step * direction if index == number else leaf
                for index, leaf in enumerate(floats)
            ]

        difference = (loss_and_gradient(moved(1))[0] - loss_and_gradient(moved(-1))[0]) / (2 * step)
        derivative = jnp.vdot(gradient[number], direction)
        assert abs(derivative) > 1e-3
        np.testing.assert_allclose(derivative, difference, rtol=2e-2, atol=2e-3)


def test_two_parts_are_the_whole_and_so_are_their_gradients(carried):
    """The gradient in the embedding goes from the second part through the cache into the first."""
    model, params, tokens, first, second = carried
    whole = jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=1), first, second)

    def outputs(embedding, parts):
        cache, hidden = model.empty_cache(ROWS, LENGTH), None
        for part, layout in parts:
            variables = {"params": {**params, "embedding": embedding}}
            hidden, cache = model.apply(variables, part, layout, cache, method=LanguageModel.hidden)
        return hidden[:, CUT - LENGTH :]

    def loss(embedding, parts):
        result = outputs(embedding, parts)
        return weighted(result), result

    run = quick_jit(jax.grad(loss, has_aux=True))
    found, result = run(params["embedding"], [(tokens[:, :CUT], first), (tokens[:, CUT:], second)])
    expected, expected_result = run(params["embedding"], [(tokens, whole)])
    np.testing.assert_allclose(result, expected_result, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert jnp.linalg.norm(expected[tokens[0, 0]]) > 1e-6, "the first part must matter"


@pytest.mark.parametrize("name", tiered({"gated_ssm_plus"}, ["gated_ssm_plus", "hawk"]))
def test_skipped_tokens_change_nothing(name, make):
    """Outputs of the others, and the cache, are those without them."""
    model, variables = make(name=name)
    tokens = jnp.asarray(np.random.default_rng(3).integers(256, VOCAB, (3, 8)), jnp.int32)
    in_context, lengths, begins = (
        jnp.ones((3, 8), bool),
        jnp.array([2, 2, 2]),
        jnp.array([False, True, False]),
    )
    hidden_of = compiled(model, "hidden")
    random = iter(jax.random.split(jax.random.key(0)))
    cache = jax.tree.map(lambda leaf: jax.random.normal(next(random), leaf.shape), model.empty_cache(3))
    few = continued_layout(lengths, begins, in_context[:, :2])._replace(skipped=None)
    expected, expected_cache = hidden_of(variables, tokens[:, :2], few, cache)
    layout = continued_layout(lengths.at[2].set(0), begins, in_context)
    hidden, after = hidden_of(variables, tokens, layout, cache)
    np.testing.assert_allclose(hidden[:2, :2], expected[:2], rtol=1e-5, atol=1e-5)
    for found, given, wanted in zip(after, cache, expected_cache, strict=True):
        np.testing.assert_allclose(found[:, :2], wanted[:, :2], rtol=1e-5, atol=1e-5)
        # Where nothing is read, the cache stays bit for bit.
        np.testing.assert_array_equal(found[:, 2], given[:, 2])


def test_attention_skips_no_tokens(make):
    model, variables = make(name="transformer")
    layout = continued_layout(jnp.array([1]), jnp.array([True]), jnp.ones((1, 2), bool))
    with pytest.raises(
        ValueError, match="attention: found a layout with skipped tokens; allowed: one without"
    ):
        tokens = jnp.zeros((1, 2), jnp.int32)
        jax.eval_shape(compiled(model, "hidden"), variables, tokens, layout, model.empty_cache(1, 2))
