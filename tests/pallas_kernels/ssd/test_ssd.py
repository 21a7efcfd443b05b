"""ssd against its definition in float64: values, gradients, dtypes, errors."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pallas_kernels.matrix_state import tpu_grid
from pallas_kernels.matrix_state.sequences import HeadSequences
from pallas_kernels.ssd import ssd
from tests.pallas_kernels.linear_scan.oracle import assert_close, check_tpu_calls
from tests.pallas_kernels.matrix_state import oracle
from tests.quick_jit import quick_jit

DIRECTIONS = ("forward", "reverse", "both")
CHUNK = 8
SETTINGS = {"implementation": "xla", "chunk_size": CHUNK}


def draw(shape, groups, *, N=3, seed=0, direction="both", resets=0.2, **left_out):
    """Return the arguments of `ssd` by name, resets, and cotangents of both results, in float64.

    Args:
        shape: batch, length, heads, P.
        groups: the number of heads of B and C.
        N: the number of features of B and C.
        seed: the seed of the random numbers.
        direction: the direction; "both" has two arrays of resets.
        resets: the share of tokens with a reset.
        left_out: arguments to set to None.
    """
    random = np.random.default_rng(seed)
    batch, length, heads, _ = shape
    sequences, state, dy, dlast = oracle.draw(
        shape, groups=groups, d_k=N, seed=seed, direction=direction, resets=resets
    )
    arguments = {
        "x": sequences.v,
        "dt": random.normal(size=(batch, length, heads)),
        "A": -np.exp(2 * random.normal(size=heads)),
        "B": sequences.k,
        "C": sequences.q,
        "D": random.normal(size=heads),
        "dt_bias": random.normal(size=heads) - 2,
        "initial_state": state.swapaxes(2, 3),
    } | left_out
    if arguments["dt_bias"] is None:
        arguments["dt"] = np.abs(arguments["dt"])
    return arguments, sequences.resets, dy, dlast.swapaxes(2, 3)


def scan(arguments, resets, direction):
    """Compute (y, last state) one token at a time; see `oracle.scan`."""
    names = ("x", "dt", "A", "B", "C", "D", "dt_bias", "initial_state")
    x, dt, A, B, C, D, dt_bias, state = (arguments[name] for name in names)
    s = dt if dt_bias is None else np.log1p(np.exp(dt + dt_bias[..., None, None, :]))
    g = s * A[..., None, None, :]
    sequences = HeadSequences(C, B, s[..., None] * x, g, None, resets)
    y, last = oracle.scan(sequences, state.swapaxes(-1, -2), direction)
    return y + (0 if D is None else D[..., None, None, :, None] * x), last.swapaxes(-1, -2)


@partial(quick_jit, static_argnums=(0, 1))
def values_and_gradients(direction, settings, arguments, resets, cotangents):
    """Return (y, last state) and the cotangents of the arguments by name."""

    def read(arguments):
        return ssd(
            **arguments,
            resets=resets,
            direction=direction,
            **dict(settings),
        )

    results, pull_back = jax.vjp(read, arguments)
    return results, pull_back(cotangents)[0]


def check(shape, groups, direction, *, dtype=jnp.float32, tolerance=1e-5, **options):
    all_elements = options.pop("all_elements", True)
    settings = {name: options.pop(name, default) for name, default in SETTINGS.items()}
    arguments, resets, dy, dlast = draw(shape, groups, direction=direction, **options)
    given = oracle.to_arrays(arguments)
    given |= {name: given[name].astype(dtype) for name in ("x", "B", "C")}
    flags = jax.tree.map(jnp.asarray, resets)
    cotangents = jnp.asarray(dy, dtype), jnp.asarray(dlast, jnp.float32)
    results, found = values_and_gradients(direction, tuple(settings.items()), given, flags, cotangents)
    y, last = results
    assert (y.dtype, last.dtype) == (dtype, jnp.float32)
    # The definition reads the rounded inputs.
    rounded = jax.tree.map(lambda x: np.asarray(x, np.float64), given)
    expected_y, expected_last = scan(rounded, resets, direction)
    assert_close(y, expected_y, tolerance)
    assert_close(last, expected_last, tolerance)

    def total(arguments):
        y, last = scan(arguments, resets, direction)
        return np.sum(y * dy, axis=(-4, -3, -2, -1)) + np.sum(last * dlast, axis=(-4, -3, -2, -1))

    if not all_elements:
        oracle.compare_along(total, rounded, found, tolerance)
        return
    for name, expected in oracle.complex_step(total, rounded).items():
        assert np.isfinite(np.asarray(found[name], np.float32)).all(), name
        # The cotangents of vectors are sums over tokens, whose terms may cancel.
        assert_close(found[name], expected, (10 if expected.ndim == 1 else 1) * tolerance)


@pytest.mark.parametrize(("direction", "groups"), [("forward", 1), ("reverse", 4), ("both", 2)])
def test_values_and_gradients_match_the_definition(direction, groups):
    """Two whole chunks and a part of one, with resets inside them and at their borders."""
    check((1, 2 * CHUNK + 3, 4, 2), groups, direction)


def test_one_group_serves_both_directions():
    check((1, 11, 4, 2), 1, "both")


@pytest.mark.slow
@pytest.mark.parametrize(("direction", "groups"), [("both", 4), ("forward", 2)])
def test_the_kernel_reads_heads_of_64_features_in_pairs(direction, groups):
    check((1, 5, 4, 64), groups, direction, implementation="pallas_interpret")


@pytest.mark.slow
@pytest.mark.parametrize("carried_bytes", [tpu_grid.MAX_CARRIED_BYTES, 0])
def test_heads_with_shared_keys_take_turns_at_blocks_if_their_states_fit(carried_bytes, monkeypatch):
    monkeypatch.setattr(tpu_grid, "MAX_CHUNKS", 1)
    monkeypatch.setattr(tpu_grid, "MAX_CARRIED_BYTES", carried_bytes)
    keys, values = jnp.zeros((1, CHUNK, 1, 2)), jnp.zeros((1, CHUNK, 8, 2))
    sequences = HeadSequences(keys, keys, values, values[..., 0], None, None)
    assert tpu_grid.make_grid(sequences, "both", CHUNK).steps == (4 if carried_bytes else 1)
    # The batch keeps JAX from taking one program for the other.
    check((1 + (carried_bytes > 0), CHUNK + 3, 8, 2), 1, "both", implementation="pallas_interpret")


# The heads of values and keys, d_v and d_k.
@pytest.mark.parametrize(
    ("shape", "direction", "side", "fits"),
    [
        ((4, 1, 64, 128), "both", 2, True),
        ((2, 1, 64, 128), "both", 1, False),
        ((2, 2, 64, 64), "reverse", 2, True),
        ((6, 2, 64, 128), "forward", 1, False),
        ((1, 1, 64, 96), "forward", 1, True),
        ((4, 4, 128, 64), "both", 2, True),
        ((4, 2, 256, 128), "both", 1, True),
        ((4, 2, 96, 128), "both", 1, False),
    ],
)
def test_two_heads_of_64_features_fill_the_lanes(shape, direction, side, fits):
    heads, groups, d_v, d_k = shape
    keys, values = jnp.zeros((1, 1, groups, d_k)), jnp.zeros((1, 1, heads, d_v))
    sequences = HeadSequences(keys, keys, values, values[..., 0], None, None)
    assert tpu_grid.heads_side_by_side(sequences, direction) == side
    assert tpu_grid.fits_lanes(sequences, direction) == fits


@pytest.mark.slow
def test_the_kernel_matches_the_definition():
    """In the interpreter. A single group serves both directions."""
    check((1, 2 * CHUNK + 3, 4, 2), 1, "both", implementation="pallas_interpret")


@pytest.mark.slow
@pytest.mark.parametrize("left_out", ["D", "dt_bias"])
def test_optional_arguments_may_be_left_out(left_out):
    check((1, 5, 2, 2), 1, "forward", **{left_out: None})


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["xla", "pallas_interpret"])
def test_bfloat16_is_accurate_to_rounding(implementation):
    check((1, 40, 2, 4), 1, "both", dtype=jnp.bfloat16, tolerance=3e-2, implementation=implementation)


@pytest.mark.slow
def test_the_kernel_matches_the_definition_in_chunks_of_128_tokens():
    check(
        *((1, 129, 4, 64), 1, "both"),
        **{"N": 64, "chunk_size": 128, "resets": 0.02},
        tolerance=5e-5,
        all_elements=False,
        implementation="pallas_interpret",
    )


@pytest.mark.slow
@settings(max_examples=6)
@given(
    batch=st.integers(1, 2),
    length=st.integers(1, 40),
    heads=st.sampled_from([(2, 2), (4, 2), (2, 1), (6, 2)]),
    direction=st.sampled_from(DIRECTIONS),
    seed=st.integers(0, 100),
)
def test_any_shape_matches_the_definition(batch, length, heads, direction, seed):
    check((batch, length, heads[0], 2), heads[1], direction, seed=seed)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("length", "direction", "features"),
    [(1, "both", 64), (65, "both", 64), (257, "forward", 256), (4097, "both", 64)],
)
def test_lengths_around_chunk_borders_match_the_definition(length, direction, features):
    """On CPUs, a chunk has as many tokens as features here."""
    check(
        *((1, length, 2, features), 1, direction),
        **{"N": features, "chunk_size": 256, "resets": 0.02},
        tolerance=5e-5,
        all_elements=False,
    )


@pytest.mark.parametrize(
    ("features", "length", "kernel"), [(64, 128, True), (64, 32, False), (32, 128, False)]
)
def test_tpus_use_the_kernel_if_it_fits(features, length, kernel):
    arguments, _, dy, _ = draw((1, length, 2, features), 1, N=features)
    given = oracle.to_arrays(arguments)

    def gradient(x):
        return jax.grad(lambda x: jnp.sum(ssd(**given | {"x": x}, direction="both")[0] * dy))(x)

    check_tpu_calls(gradient, (given["x"],), kernel)


def test_d_and_the_state_default_to_zero():
    arguments, _, _, _ = draw((1, 5, 2, 2), 1, D=None, dt_bias=None)
    arguments["initial_state"] = 0 * arguments["initial_state"]
    given = oracle.to_arrays(arguments)
    y, last = quick_jit(ssd)(*(given[name] for name in ("x", "dt", "A", "B", "C")))
    expected_y, expected_last = scan(arguments, None, "forward")
    assert_close(y, expected_y)
    assert_close(last, expected_last)


@pytest.mark.parametrize(
    ("changed", "options", "message"),
    [
        ({"x": (5, 4, 2)}, {}, r"x must be \[batch, length, heads or groups, features\], .*"),
        ({"dt": (1, 5, 3)}, {}, r"dt must be \(1, 5, 4\); found \(1, 5, 3\)"),
        ({"A": (3,)}, {}, r"A must be \(4,\); found \(3,\)"),
        ({"B": (1, 4, 2, 3)}, {}, r"B must be \(1, 5, 2, 3\); found \(1, 4, 2, 3\)"),
        ({"C": (1, 5, 2, 4)}, {}, r"C must be \(1, 5, 2, 3\); found \(1, 5, 2, 4\)"),
        ({}, {"D": (3,)}, r"D must be \(4,\); found \(3,\)"),
        ({}, {"dt_bias": (3,)}, r"dt_bias must be \(4,\); found \(3,\)"),
        ({}, {"initial_state": (1, 4, 3, 2)}, r"initial_state must be \(1, 4, 2, 3\); found .*"),
        ({"B": (1, 5, 3, 3), "C": (1, 5, 3, 3)}, {}, "found 4 heads for 3 groups; allowed: a multiple"),
        ({}, {"chunk_size": 0}, "found chunk_size 0; allowed: powers of two"),
    ],
)
def test_wrong_arguments_are_refused(changed, options, message):
    shapes = {"x": (1, 5, 4, 2), "dt": (1, 5, 4), "A": (4,), "B": (1, 5, 2, 3), "C": (1, 5, 2, 3)}
    arrays = {name: jnp.zeros(shape) for name, shape in (shapes | changed).items()}
    others = {
        name: jnp.zeros(value) if isinstance(value, tuple) else value for name, value in options.items()
    }
    with pytest.raises(ValueError, match=f"^ssd: {message}$"):
        ssd.__wrapped__(**arrays, **others)
