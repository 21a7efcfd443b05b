"""gated_delta_rule against its definition in float64: values, gradients, dtypes, errors."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pallas_kernels.gated_delta_rule import gated_delta_rule
from pallas_kernels.matrix_state import tpu_grid
from tests.pallas_kernels.linear_scan.oracle import assert_close, check_tpu_calls
from tests.pallas_kernels.matrix_state import oracle
from tests.quick_jit import quick_jit

DIRECTIONS = ("forward", "reverse", "both")
CHUNK = 8


@partial(quick_jit, static_argnums=(0, 1, 3))
def values_and_gradients(direction, chunk_size, arrays, implementation="xla"):
    """Return (o, last state) and the cotangents of the arguments by name."""
    sequences, state, do, dlast = arrays
    resets = sequences.resets

    def read(arguments):
        arguments = dict(arguments)
        state = arguments.pop("state")
        return gated_delta_rule(
            **arguments,
            initial_state=state,
            resets=resets,
            direction=direction,
            chunk_size=chunk_size,
            implementation=implementation,
        )

    arguments = {name: array for name, array in sequences._asdict().items() if name != "resets"}
    results, pull_back = jax.vjp(read, arguments | {"state": state})
    return results, pull_back((do, dlast))[0]


def check(shape, direction, *, dtype=jnp.float32, chunk_size=CHUNK, tolerance=1e-5, **options):
    implementation, all_elements = options.pop("implementation", "xla"), options.pop("all_elements", True)
    sequences, state, do, dlast = oracle.draw(shape, direction=direction, **options)
    given = oracle.to_arrays((sequences, state, do, dlast))
    sequences_in, state_in, do_in, dlast_in = given
    narrow = sequences_in._replace(
        **{name: getattr(sequences_in, name).astype(dtype) for name in ("q", "k", "v")}
    )
    (o, last), found = values_and_gradients(
        direction, chunk_size, (narrow, state_in, do_in.astype(dtype), dlast_in), implementation
    )
    assert (o.dtype, last.dtype) == (dtype, jnp.float32)
    # The definition reads the rounded inputs.
    rounded = jax.tree.map(
        lambda x: np.asarray(x, bool if x.dtype == bool else np.float64), (narrow, state_in)
    )
    expected_o, expected_last = oracle.scan(*rounded, direction)
    assert_close(o, expected_o, tolerance)
    assert_close(last, expected_last, tolerance)
    if not all_elements:
        total = oracle.total_of(rounded[0], do, dlast, direction)
        oracle.compare_along(total, oracle.by_name(*rounded), found, tolerance)
        return
    for name, expected in oracle.gradients(*rounded, do, dlast, direction).items():
        assert np.isfinite(np.asarray(found[name], np.float32)).all(), name
        assert_close(found[name], expected, tolerance)


@pytest.mark.parametrize("by_channel", [False, True])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_values_and_gradients_match_the_definition(direction, by_channel):
    """Two whole chunks and a part of one, with resets inside them and at their borders."""
    check((1, 2 * CHUNK + 3, 2, 2), direction, by_channel=by_channel)


@pytest.mark.parametrize("groups", [1, 2])
def test_heads_share_keys(groups):
    check((1, 11, 4, 2), "both", groups=groups)


def test_decays_by_channel_that_are_split_match_the_definition():
    """A chunk with more tokens than `matrix_state.decays` computes elementwise is split at an anchor."""
    check((1, 20, 2, 2), "both", by_channel=True, chunk_size=32)


@pytest.mark.slow
@pytest.mark.parametrize("by_channel", [False, True])
def test_bfloat16_is_accurate_to_rounding(by_channel):
    check((1, 40, 2, 4), "both", by_channel=by_channel, dtype=jnp.bfloat16, tolerance=3e-2)


def test_several_heads_of_both_directions_work_in_bfloat16():
    """XLA's CPU compiler accepts products of bfloat16 with two batch axes in loops, but cannot run them."""
    check((1, 32, 4, 4), "both", dtype=jnp.bfloat16, chunk_size=16, tolerance=3e-2)


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["both", "reverse"])
def test_the_kernel_matches_the_definition(direction, monkeypatch):
    """In the interpreter, with two blocks of two chunks, the last one padded. Heads share keys."""
    monkeypatch.setattr(tpu_grid, "MAX_CHUNKS", 2)
    check((1, 3 * CHUNK + 3, 4, 4), direction, groups=2, implementation="pallas_interpret")


@pytest.mark.slow
def test_the_kernel_reads_pairs_of_heads_with_shared_keys():
    check((1, 5, 4, 64), "both", groups=2, implementation="pallas_interpret")


@pytest.mark.slow
@pytest.mark.parametrize(("direction", "resets"), [("both", 0), ("reverse", 0.2)])
def test_the_kernel_matches_the_definition_in_bfloat16(direction, resets):
    check(
        *((1, 40, 2, 4), direction),
        dtype=jnp.bfloat16,
        tolerance=3e-2,
        resets=resets,
        implementation="pallas_interpret",
    )


@pytest.mark.slow
def test_the_kernel_matches_the_definition_in_chunks_of_128_tokens():
    check(
        *((1, 129, 2, 64), "both"),
        **{"d_k": 64, "resets": 0.02, "chunk_size": 128},
        tolerance=5e-5,
        all_elements=False,
        implementation="pallas_interpret",
    )


@pytest.mark.parametrize(
    ("features", "length", "kernel"), [(64, 128, True), (64, 32, False), (32, 128, False)]
)
def test_tpus_use_the_kernel_if_it_fits(features, length, kernel):
    sequences, state, do, _ = oracle.draw((1, length, 2, features), d_k=features)
    (arguments, first), do = oracle.to_arrays((sequences, state)), jnp.asarray(do, jnp.float32)

    def gradient(v):
        def total(v):
            o, _ = gated_delta_rule(
                *(arguments.q, arguments.k, v, arguments.g, arguments.beta),
                initial_state=first,
                direction="both",
            )
            return jnp.sum(o * do)

        return jax.grad(total)(v)

    check_tpu_calls(gradient, (arguments.v,), kernel)


@pytest.mark.parametrize(("dtype", "d_v"), [(jnp.float32, 256), (jnp.bfloat16, 512)])
def test_tpus_use_the_kernel_for_states_that_fit(dtype, d_v):
    for width in (d_v, d_v + 64):
        sequences, *_ = oracle.draw((1, 128, 1, width), d_k=256, direction="forward")
        q, k, v, g, beta, _ = oracle.to_arrays(sequences, dtype)
        check_tpu_calls(gated_delta_rule, (q, k, v, g, beta), width == d_v, calls=1)


def test_padding_counts_towards_the_states_that_fit():
    """A TPU v4 cannot compile the gradient of 1,024 tokens with these heads, which fill 256 x 512."""
    keys, values, numbers = jnp.zeros((1, 128, 2, 136)), jnp.zeros((1, 128, 2, 480)), jnp.zeros((1, 128, 2))
    check_tpu_calls(gated_delta_rule, (keys, keys, values, numbers, numbers), False)


def test_the_kernel_refuses_decays_by_channel():
    sequences, _, _, _ = oracle.draw((1, 5, 2, 2), by_channel=True)
    arguments = oracle.to_arrays(sequences)
    with pytest.raises(ValueError, match="found 'pallas_tpu' for decays by channel; allowed: None, 'xla'"):
        gated_delta_rule(*arguments[:5], implementation="pallas_tpu")


@pytest.mark.slow
@settings(max_examples=6)
@given(
    batch=st.integers(1, 2),
    length=st.integers(1, 40),
    heads=st.sampled_from([(2, 2), (4, 2), (2, 1), (6, 2)]),
    direction=st.sampled_from(DIRECTIONS),
    kind=st.fixed_dictionaries({"by_channel": st.booleans(), "resets": st.sampled_from([0, 0.2])}),
    seed=st.integers(0, 100),
)
def test_any_shape_matches_the_definition(batch, length, heads, direction, kind, seed):  # noqa: PLR0917
    shape = (batch, length, heads[0], 2)
    check(shape, direction, groups=heads[1], seed=seed, **kind)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("length", "direction", "by_channel"),
    [
        *((1, "both", False), (1, "reverse", False), (63, "forward", False), (64, "reverse", False)),
        *((65, "both", False), (65, "both", True)),
    ],
)
def test_lengths_around_chunk_borders_match_the_definition(length, direction, by_channel):
    """With 64 features, a chunk has 64 tokens on CPUs too."""
    check(
        *((1, length, 2, 64), direction),
        **{"d_k": 64, "by_channel": by_channel, "chunk_size": 64, "resets": 0.02},
        tolerance=5e-5,
        all_elements=False,
    )


def test_similar_keys_keep_their_precision():
    """Here powers of a chunk's triangular matrix have entries of more than 1,000."""
    sequences, state, _, _ = oracle.draw((1, 128, 2, 64), d_k=64, resets=False)
    keys = sequences.k + np.ones(64) / 4
    keys /= np.linalg.norm(keys, axis=-1, keepdims=True)
    similar = sequences._replace(k=keys, g=0.01 * sequences.g, beta=np.full_like(sequences.beta, 0.9))
    assert np.mean(keys[0, :64, 0] @ keys[0, :64, 0].T) > 0.75
    arguments, first = oracle.to_arrays((similar, state))
    o, last = gated_delta_rule(*arguments[:5], initial_state=first, direction="both")
    expected = oracle.scan(similar, state, "both")
    assert_close(o, expected[0])
    assert_close(last, expected[1])


def test_a_reset_keeps_the_precision_of_later_decays():
    """A reset as a large negative log decay would remove the digits of small ones in a cumulative sum."""
    length = 64
    ones = jnp.ones((1, length, 1, 1))
    reset = jnp.arange(length)[None] == 1
    g = jnp.full((1, length, 1), -1e-3)
    o, _ = gated_delta_rule(ones, ones, ones, g, jnp.full((1, length, 1), 1e-6), resets=(reset,))
    # Up to the share of the old value, 1e-6 here, the output is the decayed sum of the tokens.
    expected = 1e-6 * np.cumsum(np.exp(-1e-3 * np.arange(length - 1)))
    np.testing.assert_allclose(o[0, 1:, 0, 0], expected, rtol=1e-4)


@pytest.mark.parametrize("by_channel", [False, True])
def test_results_stay_finite_for_decays_near_zero(by_channel):
    """Here exp(G_i) exp(-G_j) would be zero times infinity."""
    sequences, state, do, dlast = oracle.draw((1, 16, 2, 2), by_channel=by_channel)
    sequences = sequences._replace(g=np.full_like(sequences.g, -50.0))
    arguments = oracle.to_arrays((sequences, state, do, dlast))
    (o, _), found = values_and_gradients("both", 16, arguments)
    assert all(np.isfinite(array).all() for array in jax.tree.leaves((o, found)))
    assert_close(o, oracle.scan(sequences, state, "both")[0])


def test_a_token_with_zero_decay_and_beta_keeps_the_state():
    sequences, state, _, _ = oracle.draw((1, 5, 2, 2), resets=False)
    quiet = sequences._replace(g=0 * sequences.g, beta=0 * sequences.beta)
    arguments, first = oracle.to_arrays((quiet, state))
    _, last = gated_delta_rule(*arguments[:5], initial_state=first, direction="both")
    np.testing.assert_array_equal(last, first)


def test_the_gradient_keeps_only_the_arguments():
    """No array of the forward pass holds the states of the 64 chunks."""
    sequences, state, _, _ = oracle.draw((1, 64 * CHUNK, 2, 16), d_k=16)
    arguments, first = oracle.to_arrays((sequences, state))

    def read(v):
        return gated_delta_rule(
            *arguments[:2],
            v,
            *arguments[3:5],
            initial_state=first,
            direction="both",
            resets=arguments.resets,
            chunk_size=CHUNK,
        )[0]

    _, pull_back = jax.vjp(read, arguments.v)
    kept = jax.tree.leaves(pull_back)
    largest = max(array.size for array in kept)
    assert largest == arguments.v.size
    assert sum(array.size for array in kept) < 5 * arguments.v.size


@pytest.mark.parametrize(
    ("changed", "options", "message"),
    [
        ({"v": (1, 5, 2)}, {}, r"v must be \[batch, length, heads, features\], .*; found \(1, 5, 2\)"),
        ({"k": (1, 0, 2, 3)}, {}, r"k must be \[.*\], at least 1 of each axis; found \(1, 0, 2, 3\)"),
        ({"k": (1, 4, 2, 3)}, {}, r"k must be \(1, 5, 2, 3\); found \(1, 4, 2, 3\)"),
        ({"q": (1, 5, 2, 4)}, {}, r"q must be \(1, 5, 2, 3\); found \(1, 5, 2, 4\)"),
        ({"g": (1, 5, 2, 2)}, {}, r"g must be \(1, 5, 2, 3\); found \(1, 5, 2, 2\)"),
        ({"beta": (1, 5, 1)}, {}, r"beta must be \(1, 5, 2\); found \(1, 5, 1\)"),
        ({}, {"initial_state": (1, 2, 2, 3)}, r"initial_state must be \(1, 2, 3, 2\); found .*"),
        ({}, {"resets": ((1, 4),)}, r"resets must be a tuple of 1 arrays of .* found \[\(1, 4\)\]"),
        ({"v": (1, 5, 3, 2), "g": (1, 5, 3), "beta": (1, 5, 3)}, {}, "found 3 heads for 2 groups; .*"),
        (
            {name: (1, 5, 3, 2) for name in "qkv"} | {"g": (1, 5, 3), "beta": (1, 5, 3)},
            {"direction": "both"},
            'found 3 heads of 3 groups for direction "both"; allowed: even numbers, or a single group',
        ),
        ({}, {"direction": "up"}, r"direction 'up' is unknown; allowed: \('forward', 'reverse', 'both'\)"),
        ({}, {"chunk_size": 48}, "found chunk_size 48; allowed: powers of two"),
        ({}, {"implementation": "cuda"}, "implementation 'cuda' is unknown; allowed: None, 'xla', .*"),
    ],
)
def test_wrong_arguments_are_refused(changed, options, message):
    shapes = {"q": (1, 5, 2, 3), "k": (1, 5, 2, 3), "v": (1, 5, 2, 2), "g": (1, 5, 2), "beta": (1, 5, 2)}
    arrays = {name: jnp.zeros(shape) for name, shape in (shapes | changed).items()}
    if "initial_state" in options:
        options = {"initial_state": jnp.zeros(options["initial_state"])}
    if "resets" in options:
        options = {"resets": tuple(jnp.zeros(shape, bool) for shape in options["resets"])}
    with pytest.raises(ValueError, match=f"^gated_delta_rule: {message}$"):
        gated_delta_rule.__wrapped__(**arrays, **options)
