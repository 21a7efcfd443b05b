"""linear_scan against loops in float64: values, gradients, extremes, dtypes, platforms, errors."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.test_util import check_grads

from pallas_kernels.linear_scan import linear_scan, xla
from tests.pallas_kernels.linear_scan.oracle import assert_close, inputs, oracle, oracle_gradients
from tests.quick_jit import quick_jit

DIRECTIONS = pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
scan = quick_jit(linear_scan, static_argnames=("reverse", "implementation"))


@partial(quick_jit, static_argnums=(0, 4))
def forward(path, a, x, h0, reverse):
    parts = xla._parts(a.shape[-1], None, "reverse" if reverse else "forward")
    return getattr(xla, f"_forward_{path}")(parts, a, x, h0)


@partial(quick_jit, static_argnums=(0, 5))
def backward(path, a, h, h0, dh, reverse):  # noqa: PLR0917
    parts = xla._parts(a.shape[-1], None, "reverse" if reverse else "forward")
    return getattr(xla, f"_backward_{path}")(parts, a, h, h0, dh)


@pytest.mark.slow
@settings(max_examples=8)
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 4)),
    seed=st.integers(0, 99),
    reverse=st.booleans(),
    with_state=st.booleans(),
    with_reset=st.booleans(),
)
def test_any_shape_matches_the_definition(shape, seed, reverse, with_state, with_reset):
    a, x, h0, _, reset = inputs(shape, seed=seed)
    h0, reset = h0 if with_state else None, reset if with_reset else None
    result = linear_scan(a, x, h0=h0, reverse=reverse, reset=reset)
    assert result.shape == shape
    assert_close(result, oracle(a, x, h0, reverse=reverse, reset=reset))


@DIRECTIONS
def test_gradients_equal_finite_differences(reverse):
    a, x, h0, _, reset = inputs((2, 4, 2))
    # One row begins with a reset in both directions; the other reads its initial state.
    reset = reset.at[:, jnp.array([0, -1])].set(jnp.array([[True], [False]]))

    def function(a, x, h0):
        return linear_scan(a, x, h0=h0, reset=reset, reverse=reverse)

    check_grads(jax.jit(function), (a, x, h0), order=1, modes=["rev"])


@DIRECTIONS
@pytest.mark.parametrize("path", ["loop", "prefix"])
def test_underflowing_products_give_no_nan(path, reverse):
    """Products of all decays underflow in float32, so dividing by them would give NaN."""
    a, x, h0, dh, _ = inputs((1, 64, 2))
    a = a * 1e-3
    assert np.prod(np.asarray(a), axis=1, dtype=np.float32).max() == 0
    h = forward(path, a, x, h0, reverse)
    assert_close(h, oracle(a, x, h0, reverse=reverse))
    gradients = backward(path, a, h, h0, dh, reverse)
    for result, wanted in zip(gradients, oracle_gradients(a, x, h0, dh, reverse=reverse), strict=True):
        assert_close(result, wanted)


@pytest.mark.sampled
@DIRECTIONS
@pytest.mark.parametrize("shape", [(2, 37, 3), (1, 1, 2)], ids=str)
def test_the_loop_and_the_prefix_match_the_definition(shape, reverse):
    a, x, h0, dh, _ = inputs(shape)
    expected = oracle(a, x, h0, reverse=reverse)
    loop, prefix = (forward(path, a, x, h0, reverse) for path in ("loop", "prefix"))
    assert_close(loop, expected)
    assert_close(prefix, expected)
    gradients = oracle_gradients(a, x, h0, dh, reverse=reverse)
    for path in ("loop", "prefix"):
        for result, wanted in zip(backward(path, a, loop, h0, dh, reverse), gradients, strict=True):
            assert_close(result, wanted)


@pytest.mark.sampled
@pytest.mark.parametrize("path", ["loop", "prefix"])
def test_the_carry_is_float32_for_bfloat16_inputs(path):
    """A bfloat16 carry would stop at 2 ** 8 = 256, where 1 is less than the rounding error."""
    ones = jnp.ones((1, 1000, 2), jnp.bfloat16)
    h = forward(path, ones, ones, jnp.zeros((1, 2)), False)
    assert h.dtype == jnp.bfloat16
    np.testing.assert_array_equal(h[0, :, 0], jnp.arange(1, 1001, dtype=jnp.float32).astype(jnp.bfloat16))
    _, dx, _ = backward(path, ones, h, jnp.zeros((1, 2)), ones, False)
    np.testing.assert_array_equal(dx[0, ::-1, 0], h[0, :, 0])


@pytest.mark.slow
@pytest.mark.parametrize("x64", [False, True])
def test_the_result_has_the_dtype_of_x_and_each_gradient_that_of_its_input(x64):
    a, x, h0, dh, _ = inputs()
    a = a.astype(jnp.bfloat16)

    @quick_jit
    def run(a, x, h0, dh):
        result, pullback = jax.vjp(lambda a, x, h0: linear_scan(a, x, h0=h0), a, x, h0)
        return result, pullback(dh)

    with jax.enable_x64(x64):
        result, gradients = run(a, x, h0, dh)
    assert result.dtype == jnp.float32
    assert [gradient.dtype for gradient in gradients] == [jnp.bfloat16, jnp.float32, jnp.float32]
    assert_close(result, oracle(a, x, h0))


def test_the_default_state_is_zero():
    a, x, h0, _, _ = inputs()
    np.testing.assert_array_equal(scan(a, x), scan(a, x, h0=jnp.zeros_like(h0)))


@pytest.mark.parametrize(("platform", "loops"), [("cpu", 1), ("cuda", 0), ("tpu", 0)])
def test_the_platform_selects_the_algorithm(platform, loops):
    a, x, _, dh, _ = inputs()

    def while_loops(function, *arguments):
        lowered = jax.jit(function).trace(*arguments).lower(lowering_platforms=(platform,))
        return lowered.as_text().count("stablehlo.while")

    def gradient(a, x, dh):
        return jax.grad(lambda a: jnp.sum(dh * linear_scan(a, x)))(a)

    assert while_loops(linear_scan, a, x) == loops
    assert while_loops(gradient, a, x, dh) == 2 * loops


def test_xla_can_be_chosen_by_name():
    a, x, *_ = inputs()
    np.testing.assert_array_equal(scan(a, x, implementation="xla"), scan(a, x))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"implementation": "cuda"},
            "implementation 'cuda' is unknown; allowed: None, 'xla', 'pallas_tpu', 'pallas_gpu', "
            "'pallas_interpret'",
        ),
        (
            {"x": jnp.zeros((2, 4, 3))},
            "a and x must both be [batch, length, channels]; found a (2, 5, 3) and x (2, 4, 3)",
        ),
        (
            dict.fromkeys("ax", jnp.zeros((5, 3))),
            "a and x must both be [batch, length, channels]; found a (5, 3) and x (5, 3)",
        ),
        (
            dict.fromkeys("ax", jnp.zeros((2, 0, 3))),
            "found (2, 0, 3) for a and x; allowed: at least 1 of each axis",
        ),
        ({"h0": jnp.zeros((2, 5))}, "h0 must be [batch, channels] = (2, 3); found (2, 5)"),
        ({"reset": jnp.zeros((2, 3), bool)}, "reset must be [batch, length] = (2, 5); found (2, 3)"),
    ],
)
def test_wrong_arguments_are_refused(options, message):
    """Call the function without its type annotations, which tests would check first."""
    unchecked = linear_scan.__wrapped__
    with pytest.raises(ValueError, match=f"^linear_scan: {re.escape(message)}$"):
        unchecked(**dict.fromkeys("ax", jnp.zeros((2, 5, 3))) | options)
