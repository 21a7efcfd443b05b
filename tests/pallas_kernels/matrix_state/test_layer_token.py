"""Tests of a single token of one layer: the kernel and the slices match the definition, in place."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.matrix_state.layer_token import LayerState, read_layer_token
from tests.pallas_kernels.linear_scan.oracle import check_tpu_calls
from tests.pallas_kernels.matrix_state import oracle

LAYERS, LAYER = 3, 1


def draw(keys_last, *, shape=(2, 1, 4, 130), d_k=8, groups=2, **options):
    """Return the sequences, the states of all layers, and the definition's output and states."""
    sequences, state, _, _ = oracle.draw(shape, d_k=d_k, groups=groups, direction="forward", **options)
    o, last = oracle.scan(sequences, state, "forward")
    others = np.random.default_rng(1).normal(size=(LAYERS, *state.shape))
    before, after = others.copy(), others
    before[LAYER], after[LAYER] = state, last
    if keys_last:
        before, after = before.swapaxes(3, 4), after.swapaxes(3, 4)
    return sequences, before, (o, after)


@pytest.mark.parametrize("implementation", ["xla", "pallas_gpu", "pallas_interpret"])
@pytest.mark.parametrize(
    ("keys_last", "options"),
    [
        (False, {}),
        (False, {"by_channel": True, "resets": False}),
        (True, {"added": True, "groups": 1}),
        (True, {"by_channel": True}),
    ],
)
def test_a_token_matches_the_definition_and_keeps_other_layers(keys_last, options, implementation):
    """The values have more features than a tile."""
    sequences, states, expected = draw(keys_last, **options)
    arguments, states = oracle.to_arrays((sequences, states))
    state = LayerState(states, jnp.asarray(LAYER))
    o, after = read_layer_token(arguments, state, implementation=implementation, keys_last=keys_last)
    np.testing.assert_allclose(o, expected[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(after.states, expected[1], rtol=1e-5, atol=1e-5)
    assert after.layer == LAYER


def test_the_output_has_the_type_of_the_values():
    sequences, states, _ = draw(False)
    arguments = oracle.to_arrays(sequences, jnp.bfloat16)
    state = LayerState(jnp.asarray(states, jnp.float32), jnp.asarray(LAYER))
    for implementation in ("xla", "pallas_interpret"):
        o, after = read_layer_token(arguments, state, implementation=implementation)
        assert (o.dtype, after.states.dtype) == (jnp.bfloat16, jnp.float32)


@pytest.mark.parametrize(
    ("features", "heads", "kernel"), [(64, 2, True), (32, 2, False), (128, 64, False), (64, 100, False)]
)
def test_tpus_use_the_kernel_if_it_fits(features, heads, kernel):
    """The states of 64 heads of 128 x 128 numbers are larger than a TPU v4 has room for.

    So are those of 100 heads of 64 x 64 numbers, as each row of 64 fills 128 lanes.
    """
    sequences, states, _ = draw(False, shape=(1, 1, heads, features), d_k=features)
    arguments, states = oracle.to_arrays((sequences, states))

    def read(implementation, states):
        state = LayerState(states, jnp.asarray(LAYER))
        return jax.tree.leaves(read_layer_token(arguments, state, implementation=implementation))

    check_tpu_calls(partial(read, None), (states,), kernel, calls=1)
    if not kernel and heads > 2:
        check_tpu_calls(partial(read, "pallas_tpu"), (states,), kernel)
