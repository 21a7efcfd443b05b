"""Tests the cost and the precision of models: parameters, FLOPs, remat, types, heads."""

from functools import partial
from itertools import pairwise
from math import prod

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birdie_jax.models import language_model_names
from birdie_jax.models.layout import packed_layout
from birdie_jax.models.rematerialisation import LEVELS
from pallas_kernels.linear_scan.xla import UNROLLED
from tests.models.conftest import BY_MIXER, compiled, tiered
from tests.quick_jit import quick_jit


def loss_of(model, batch):
    def loss(variables):
        scores = jax.nn.log_softmax(model.apply(variables, batch))
        labels = jnp.take_along_axis(scores, batch.targets[..., None], axis=-1)[..., 0]
        return -jnp.sum(labels * batch.loss_mask)

    return loss


def count(variables):
    return sum(prod(leaf.shape) for leaf in jax.tree.leaves(variables))


def flops(function, *arguments):
    return quick_jit(function).lower(*arguments).compile().cost_analysis()["flops"]


@pytest.mark.parametrize("name", tiered({"gated_ssm_plus"}, language_model_names()))
def test_direction_type_and_remat_do_not_change_the_parameters(name, make, packed):
    def shapes(**fields):
        model, _ = make(name=name, **fields)
        return jax.tree.map(
            lambda x: (x.shape, x.dtype), jax.eval_shape(model.init, jax.random.key(0), packed)
        )

    expected = shapes()
    types = {dtype for _, dtype in jax.tree.leaves(expected, is_leaf=lambda x: isinstance(x, tuple))}
    assert types == {jnp.dtype("float32")}
    assert shapes(bidirectional=False) == expected
    assert shapes(dtype="bfloat16", scan_dtype="bfloat16") == expected
    assert shapes(remat="full") == expected


# XLA counts the operations of a loop's body once, and layers are in a loop (conftest.py). Other mixers have
# the two directions from the same code as one of these.
@pytest.mark.slow
@pytest.mark.parametrize("name", ["gated_ssm_plus", "transformer", "mamba", "gated_deltanet"])
def test_the_cost_of_both_directions_does_not_grow_with_the_model(name, make, packed):
    """Reading both ways adds a few operations that do not depend on the size of the model.

    The CPU's loop computes two positions per step instead of one, and each token has two resets.
    Attention's mask also reads the context, with one logical operation per pair of tokens. XLA fuses the
    steps of Mamba's two halves differently, and counts about a twentieth more.
    """
    layout = packed_layout(packed.segment_ids, packed.bidirectional)

    def more_both_ways(**size):
        totals = []
        for bidirectional in (True, False):
            model, variables = make(name=name, bidirectional=bidirectional, **size)

            def total(variables, tokens, layout, model=model):
                return jnp.sum(model.apply(variables, tokens, layout, method="hidden")[0])

            arguments = (variables, packed.tokens, layout)
            totals.append([flops(total, *arguments), flops(jax.grad(total), *arguments)])
        return np.subtract(*totals), np.array(totals[1])

    wider, one_way = more_both_ways(state=32, features=24)
    if name in ("mamba", "gated_deltanet"):
        assert np.all(wider <= 0.08 * one_way)
        return
    small, _ = more_both_ways()
    np.testing.assert_array_equal(wider, small)
    pairs = packed.tokens.size**2 if name == "transformer" else 0
    assert np.abs(small).max() <= 40 * UNROLLED + packed.tokens.size + pairs


def test_reverse_resets_cost_five_logical_operations_per_token(make, packed):
    """They are computed once for all layers, and only for a model that uses them."""
    both, causal = (
        flops(model.apply, variables, packed)
        for model, variables in (make(name="gated_ssm", bidirectional=value) for value in (True, False))
    )
    assert 0 <= both - causal <= 5 * packed.tokens.size + 40 * UNROLLED


def gradient_of(name, remat, make, packed):
    model, variables = make(name=name, remat=remat)
    program = quick_jit(jax.value_and_grad(loss_of(model, packed))).lower(variables).compile()
    return program(variables), program.cost_analysis()["flops"]


# Every map and every recurrence gets the name of its level in one place for all mixers.
REMAT = ["gated_ssm_plus", "griffin", "mamba", "gated_deltanet", "transformer", "bigs"]


@pytest.mark.parametrize("name", tiered({"gated_ssm_plus"}, REMAT))
def test_remat_does_not_change_the_results(name, make, packed):
    levels = list(LEVELS) if name in ("gated_ssm_plus", "griffin") else ["none", "dots", "full"]
    (loss, gradient), kept = gradient_of(name, "none", make, packed)
    costs = [kept]
    for remat in levels[1:]:
        (same_loss, same_gradient), cost = gradient_of(name, remat, make, packed)
        np.testing.assert_allclose(same_loss, loss, rtol=1e-6)
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), same_gradient, gradient)
        costs.append(cost)
    # Allow for elementwise operations that XLA removes.
    pairs = pairwise(costs)
    assert all(more >= 0.95 * less for less, more in pairs), "each computes as much again as the one before"
    assert costs[0] < costs[levels.index("dots")] < costs[-1]


@pytest.mark.slow
def test_level_mixer_computes_the_inner_width_of_an_encoders_mlp_again(make, packed):
    (_, dots), (_, mixer) = (
        gradient_of("stack_attention", remat, make, packed) for remat in ("dots", "mixer")
    )
    assert mixer > dots


@pytest.mark.parametrize(
    "name", tiered({"gated_ssm_plus"}, [*BY_MIXER.values(), "bigs", "stack_attention"])
)
def test_bfloat16_is_close_to_float32(name, make, packed):
    exact, variables = make(name=name)
    rounded, _ = make(name=name, dtype="bfloat16")
    expected, result = (compiled(model)(variables, packed) for model in (exact, rounded))
    assert result.dtype == expected.dtype == jnp.float32
    error = jnp.abs(result - expected).max() / jnp.abs(expected).max()
    assert 2**-12 < error < 2**-5


def test_the_scan_uses_the_configured_type(make, packed):
    """In bfloat16 a decay above 0.996 is 1, so the result differs."""
    results = []
    for scan_dtype in ("float32", "bfloat16"):
        model, variables = make(name="gated_ssm", scan_dtype=scan_dtype)
        results.append(compiled(model)(variables, packed))
    assert not np.array_equal(*results)
    np.testing.assert_allclose(*results, atol=0.02 * float(jnp.abs(results[0]).max()))


def test_a_tied_head_is_the_embedding_table(make, packed):
    model, variables = make(name="gated_ssm", tie_embeddings=True)
    params = variables["params"]
    assert "head" not in params
    untied, untied_variables = make(name="gated_ssm")
    assert count(untied_variables) - count(variables) == params["embedding"].size
    copied = {"params": {**params, "head": params["embedding"]}}
    np.testing.assert_allclose(
        compiled(model)(variables, packed), compiled(untied)(copied, packed), rtol=1e-5
    )


def test_each_layer_has_its_own_parameters(make):
    _, variables = make(name="gated_ssm_plus")
    for path, leaf in jax.tree_util.tree_leaves_with_path(variables["params"]["blocks"]):
        assert leaf.shape[0] == 2
        if path[-1].key != "scale":
            assert not np.array_equal(leaf[0], leaf[1]), path
