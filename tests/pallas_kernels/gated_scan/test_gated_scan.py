"""gated_scan against its definition in float64: values, gradients, dtypes, platforms, errors."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.test_util import check_grads

from pallas_kernels.gated_scan import gated_scan, gelu, sigmoid
from tests.pallas_kernels.gated_scan.cells import GATED
from tests.pallas_kernels.gated_scan.oracle import gated_oracle, layer_inputs
from tests.pallas_kernels.linear_scan.oracle import TPU_SHAPES, assert_close, check_tpu_calls
from tests.quick_jit import quick_jit

DIRECTIONS = ("forward", "reverse", "both")
IMPLEMENTATIONS = ("xla", "pallas_interpret")
SHAPES = [(1, 640, 256), (2, 100, 70), (2, 1, 2)]
CASES = [((1, 640, 256), "forward"), ((2, 100, 70), "reverse"), *((shape, "both") for shape in SHAPES)]


def layer(direction, implementation, resets, *arrays, **options):
    *arrays, h0 = arrays
    return gated_scan(
        GATED, *arrays, direction=direction, h0=h0, resets=resets, implementation=implementation, **options
    )


@partial(quick_jit, static_argnums=(0, 1))
def value_and_gradients(direction, implementation, inputs, dy, dlast):
    *arrays, resets = inputs
    (y, last), pullback = jax.vjp(partial(layer, direction, implementation, resets), *arrays)
    return y, last, *jax.tree.leaves(pullback((dy, dlast)))


def check(direction, implementation, shape, *, dtype=jnp.float32, tolerance=1e-5, with_resets=True):
    inputs, dy, dlast = layer_inputs(shape, dtype, direction=direction)
    if not with_resets:
        inputs = inputs._replace(resets=None)
    found = value_and_gradients(direction, implementation, inputs, dy, dlast)
    assert [value.dtype for value in found] == [dtype, jnp.float32, *[dtype] * 4, jnp.float32, jnp.float32]
    for value, wanted in zip(found, gated_oracle(inputs, dy, dlast, direction), strict=True):
        assert np.isfinite(np.asarray(value, np.float32)).all()
        assert_close(value, wanted, tolerance)


@pytest.mark.sampled
@pytest.mark.parametrize(("shape", "direction"), CASES, ids=str)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_values_and_gradients_match_the_definition(implementation, shape, direction):
    check(direction, implementation, shape)


@pytest.mark.slow
@settings(max_examples=3)
@given(
    shape=st.tuples(st.integers(1, 2), st.integers(1, 200), st.integers(1, 70).map(lambda half: 2 * half)),
    direction=st.sampled_from(DIRECTIONS),
    with_resets=st.booleans(),
)
def test_the_interpreter_matches_the_definition_for_any_shape(shape, direction, with_resets):
    check(direction, "pallas_interpret", shape, with_resets=with_resets)


@pytest.mark.sampled
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_bfloat16_is_accurate_to_rounding(implementation):
    check("both", implementation, (1, 256, 256), dtype=jnp.bfloat16, tolerance=2**-7)


@pytest.mark.sampled
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_saturated_gates_have_finite_gradients(implementation):
    inputs, dy, dlast = layer_inputs((1, 128, 256), direction="both")
    operands = tuple(jnp.sign(operand) * 1e4 for operand in inputs.operands)
    inputs = inputs._replace(operands=operands, gate=jnp.sign(inputs.gate) * 1e4)
    found = value_and_gradients("both", implementation, inputs, dy, dlast)
    assert all(np.isfinite(value).all() for value in found)


@pytest.mark.slow
def test_the_state_does_not_lose_small_steps_in_bfloat16():
    """The gates are open. In bfloat16, a step of 1 vanishes in a state of 256 or more."""
    shape = (1, 512, 128)
    full = jnp.full(shape, 1e4, jnp.bfloat16)
    _, last = layer(
        "forward",
        "pallas_interpret",
        None,
        (full, jnp.ones(shape, jnp.bfloat16), full),
        full,
        (jnp.zeros(128),),
        jnp.zeros((1, 128)),
    )
    np.testing.assert_array_equal(last, 512.0)


def test_a_decoded_token_does_not_lose_a_small_step_in_bfloat16():
    """The gates are open. A state of 256 in bfloat16 plus 1 would stay 256."""
    shape = (1, 1, 2)
    operands, h0 = (jnp.full(shape, 1e4), jnp.ones(shape), jnp.full(shape, 1e4)), jnp.full((1, 2), 256.0)
    parameters = (jnp.zeros(2),)
    _, last = gated_scan(GATED, operands, None, parameters, h0=h0, scan_dtype=jnp.bfloat16)
    np.testing.assert_array_equal(last, 257.0)


@pytest.mark.sampled
@pytest.mark.parametrize(("function", "plain"), [(sigmoid, jax.nn.sigmoid), (gelu, jax.nn.gelu)])
def test_functions_of_a_cell_match_jax(function, plain):
    x = jnp.linspace(-9, 9, 181)
    np.testing.assert_allclose(function(x), plain(x), atol=1e-6)
    slopes = jax.vmap(jax.grad(function))(x), jax.vmap(jax.grad(plain))(x)
    np.testing.assert_allclose(*slopes, atol=1e-5)
    check_grads(
        lambda x: function(jnp.asarray(x)), (jnp.linspace(-3, 3, 13),), order=2, atol=1e-2, rtol=1e-2
    )


@pytest.mark.parametrize("direction", DIRECTIONS)
@TPU_SHAPES
def test_tpus_use_the_kernel_if_its_tiles_fit(shape, kernel, direction):
    inputs, dy, _ = layer_inputs(shape, direction=direction)

    def gradient(inputs):
        *arrays, resets = inputs
        return jax.grad(
            lambda gate: jnp.sum(dy * layer(direction, None, resets, arrays[0], gate, *arrays[2:])[0])
        )(inputs.gate)

    check_tpu_calls(gradient, (inputs,), kernel)


@pytest.mark.parametrize(
    ("changed", "options", "message"),
    [
        ({"operands": (jnp.zeros((1, 5, 3)),) * 3}, {}, "the number of channels must be even; found 3"),
        (
            {"operands": (jnp.zeros((5, 4)),) * 3},
            {},
            r"operands must be \[batch, length, channels\]; found \(5, 4\)",
        ),
        (
            {"operands": (jnp.zeros((1, 0, 4)),) * 3},
            {},
            r"found \(1, 0, 4\) for operands; allowed: at least 1 of each axis",
        ),
        ({"gate": jnp.zeros((1, 5, 3))}, {}, r"gate must be \(1, 5, 4\); found \(1, 5, 3\)"),
        ({"operands": ()}, {}, r"operands of gated are \('input_gate', 'candidate', .*\); found 0"),
        ({"parameters": (jnp.zeros(3),)}, {}, r"bias must be \(4,\); found \(3,\)"),
        ({"h0": jnp.zeros((2, 4))}, {}, r"h0 must be \(1, 4\); found \(2, 4\)"),
        (
            {"resets": (jnp.zeros((1, 5), bool),)},
            {},
            r"resets must be a tuple of 2 arrays of shape \(1, 5\); found \[\(1, 5\)\]",
        ),
        ({}, {"direction": "up"}, r"direction 'up' is unknown; allowed: \('forward', 'reverse', 'both'\)"),
        ({}, {"implementation": "cuda"}, "implementation 'cuda' is unknown; allowed: None, 'xla', .*"),
    ],
)
def test_wrong_arguments_are_refused(changed, options, message):
    inputs, *_ = layer_inputs((1, 5, 4))
    inputs = inputs._replace(**changed)
    options = {"direction": "both", "h0": inputs.h0, "resets": inputs.resets} | options
    with pytest.raises(ValueError, match=f"^gated_scan: {message}$"):
        gated_scan.__wrapped__(GATED, inputs.operands, inputs.gate, inputs.parameters, **options)


def test_a_kernel_for_another_platform_is_refused():
    inputs, *_ = layer_inputs((1, 128, 256))
    *arrays, resets = inputs
    with pytest.raises(ValueError, match="interpret mode"):
        layer("both", "pallas_tpu", resets, *arrays)
