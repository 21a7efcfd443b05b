"""Every backend in every direction against the definitions in float64; the default of each platform."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pallas_kernels.linear_scan import bidirectional_scan, linear_scan
from tests.pallas_kernels.linear_scan.oracle import (
    TPU_SHAPES,
    assert_close,
    check_tpu_calls,
    inputs,
    oracle,
    oracle_gradients,
)
from tests.quick_jit import quick_jit

DIRECTIONS = ("forward", "reverse", "both")
# Sizes of one block, sizes of several blocks, and sizes that are no multiple of a tile.
SHAPES = [(1, 128, 256), (2, 640, 256), (1, 100, 70), (2, 1, 2), (1, 130, 6)]
CASES = [*((shape, "both") for shape in SHAPES), ((2, 1, 2), "forward"), ((2, 1, 2), "reverse")]


def scan(direction, implementation, arrays, resets):
    """Run the public operation of a direction; `resets` are two arrays of flags, or None."""
    a, x, h0 = arrays
    if direction == "both":
        forward_reset, reverse_reset = resets or (None, None)
        return bidirectional_scan(
            a,
            x,
            h0=h0,
            forward_reset=forward_reset,
            reverse_reset=reverse_reset,
            implementation=implementation,
        )
    reset = resets[0] if resets else None
    reverse = direction == "reverse"
    return linear_scan(a, x, h0=h0, reverse=reverse, reset=reset, implementation=implementation)


@partial(quick_jit, static_argnums=(0, 1))
def value_and_gradients(direction, implementation, arrays, resets, dh):
    h, pullback = jax.vjp(partial(scan, direction, implementation, resets=resets), arrays)
    return (h, *pullback(dh)[0])


def expected_of(direction, arrays, resets, dh):
    """Compute h, da, dx, dh0 by the definitions, separately for the channels of each direction."""
    a, x, h0 = (np.asarray(array, np.float64) for array in arrays)
    half = a.shape[-1] // 2
    parts = {
        "forward": [(slice(None), 0, False)],
        "reverse": [(slice(None), 0, True)],
        "both": [(slice(0, half), 0, False), (slice(half, None), 1, True)],
    }[direction]
    results = []
    for channels, which, reverse in parts:
        options = {"reverse": reverse, "reset": resets[which] if resets else None}
        part = (a[..., channels], x[..., channels], h0[:, channels])
        gradients = oracle_gradients(*part, np.asarray(dh, np.float64)[..., channels], **options)
        results.append((oracle(*part, **options), *gradients))
    return [np.concatenate(values, axis=-1) for values in zip(*results, strict=True)]


def check(
    direction, implementation, shape, *, dtype=jnp.float32, with_resets=True, tolerance=1e-5, decay=None
):
    a, x, h0, dh, reset = inputs(shape, dtype)
    if decay is not None:
        a = jnp.full_like(a, decay)
    resets = (reset, jnp.roll(reset, 1, axis=1)) if with_resets else None
    results = value_and_gradients(direction, implementation, (a, x, h0), resets, dh)
    assert [value.dtype for value in results] == [dtype] * 4
    for value, wanted in zip(results, expected_of(direction, (a, x, h0), resets, dh), strict=True):
        assert np.isfinite(np.asarray(value, np.float32)).all()
        assert_close(value, wanted, tolerance)


@pytest.mark.sampled
@pytest.mark.parametrize(("shape", "direction"), CASES, ids=str)
@pytest.mark.parametrize("implementation", ["xla", "pallas_interpret"])
def test_values_and_gradients_match_the_definition(implementation, shape, direction):
    check(direction, implementation, shape)


@pytest.mark.slow
@settings(max_examples=3)
@given(
    shape=st.tuples(st.integers(1, 2), st.integers(1, 300), st.integers(1, 70).map(lambda half: 2 * half)),
    direction=st.sampled_from(DIRECTIONS),
    with_resets=st.booleans(),
)
def test_the_interpreter_matches_the_definition_for_any_shape(shape, direction, with_resets):
    check(direction, "pallas_interpret", shape, with_resets=with_resets)


@pytest.mark.sampled
@pytest.mark.parametrize("decay", [0.0, 1.0, 1e-30, -0.9])
@pytest.mark.parametrize("implementation", ["xla", "pallas_interpret"])
def test_extreme_decays_match_the_definition(implementation, decay):
    check("both", implementation, (1, 256, 256), with_resets=False, decay=decay)


@pytest.mark.sampled
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("implementation", ["xla", "pallas_interpret"])
def test_bfloat16_is_accurate_to_rounding(implementation, direction):
    check(direction, implementation, (1, 256, 256), dtype=jnp.bfloat16, tolerance=2**-7)


@pytest.mark.slow
def test_the_carry_is_float32_in_the_kernel():
    """A bfloat16 carry would stop at 2 ** 8 = 256, where 1 is less than the rounding error."""
    ones = jnp.ones((1, 1024, 128), jnp.bfloat16)
    h = linear_scan(ones, ones, implementation="pallas_interpret")
    expected = jnp.arange(1, 1025, dtype=jnp.float32).astype(jnp.bfloat16)
    np.testing.assert_array_equal(h[0, :, 0], expected)


@pytest.mark.parametrize("direction", DIRECTIONS)
@TPU_SHAPES
def test_tpus_use_the_kernel_if_its_tiles_fit(shape, kernel, direction):
    a, x, h0, dh, reset = inputs(shape)

    def gradient(a, x, h0):
        return jax.grad(lambda a: jnp.sum(dh * scan(direction, None, (a, x, h0), (reset, reset))))(a)

    check_tpu_calls(gradient, (a, x, h0), kernel)


def test_a_kernel_for_another_platform_is_refused():
    a, x, *_ = inputs((1, 128, 128))
    with pytest.raises(ValueError, match="interpret mode"):
        linear_scan(a, x, implementation="pallas_tpu")


@pytest.mark.parametrize(
    ("channels", "options", "message"),
    [
        (3, {}, "the number of channels must be even; found 3"),
        (0, {}, r"found \(1, 5, 0\) for a and x; allowed: at least 1 of each axis"),
        (4, {"forward_reset": jnp.zeros((1, 5), bool)}, "give both resets or neither"),
        (
            4,
            {"forward_reset": jnp.zeros((1, 5), bool), "reverse_reset": jnp.zeros((1, 4), bool)},
            r"reverse_reset must be \[batch, length\] = \(1, 5\); found \(1, 4\)",
        ),
    ],
)
def test_wrong_arguments_are_refused(channels, options, message):
    a = jnp.zeros((1, 5, channels))
    with pytest.raises(ValueError, match=f"^bidirectional_scan: {message}$"):
        bidirectional_scan.__wrapped__(a, a, **options)
