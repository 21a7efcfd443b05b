"""selective_scan against its definition in float64: values, gradients, dtypes, platforms, errors."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pallas_kernels.selective_scan import selective_scan, tpu_call, tpu_steps, xla
from tests.pallas_kernels.linear_scan.oracle import TPU_SHAPES, assert_close, check_tpu_calls
from tests.pallas_kernels.selective_scan.oracle import scan_inputs, scan_oracle
from tests.quick_jit import quick_jit

DIRECTIONS = ("forward", "reverse", "both")


def scan(direction, implementation, resets, inputs):
    """Call the public operation with `SelectiveScanInputs`, where A has its channels last."""
    u, dt, A, B, C, D, z, dt_bias, h0, _ = inputs
    return selective_scan(
        *(u, dt, A.T, B, C, D),
        z=z,
        dt_bias=dt_bias,
        h0=h0,
        resets=resets,
        direction=direction,
        implementation=implementation,
    )


@partial(quick_jit, static_argnums=(0, 1))
def value_and_gradients(direction, implementation, inputs, dy, dlast):
    function = partial(scan, direction, implementation, inputs.resets)
    (y, last), pullback = jax.vjp(function, inputs._replace(resets=None))
    return y, last, pullback((dy, dlast))[0]


def compare(inputs, results, expected, tolerance=1e-5):
    """Compare y, the last state and the cotangents of the inputs with those of the oracle."""
    y, last, found = results
    expected_y, expected_last, expected_found = expected
    assert (y.dtype, last.dtype) == (inputs.u.dtype, jnp.float32)
    assert_close(y, expected_y, tolerance)
    assert_close(last, expected_last, tolerance)
    for name, value in found._asdict().items():
        if getattr(inputs, name) is None or name == "resets":
            assert value is None
            continue
        assert np.isfinite(np.asarray(value, np.float32)).all(), name
        assert_close(value, getattr(expected_found, name), tolerance)


def check(direction, implementation, shape, *, tolerance=1e-5, **options):
    inputs, dy, dlast = scan_inputs(shape, direction=direction, **options)
    results = value_and_gradients(direction, implementation, inputs, dy, dlast)
    compare(inputs, results, scan_oracle(inputs, dy, dlast, direction), tolerance)
    assert [value.dtype for value in jax.tree.leaves(results[2])] == [
        value.dtype for value in jax.tree.leaves(inputs._replace(resets=None))
    ]


@pytest.mark.sampled
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_xla_matches_the_definition(direction):
    check(direction, "xla", (2, 11, 6))


def test_xla_matches_the_definition_with_several_chunks(monkeypatch):
    monkeypatch.setattr(xla, "CHUNK", 4)
    check("both", "xla", (2, 11, 6))


@pytest.mark.slow
def test_the_parallel_prefix_matches_the_definition(monkeypatch):
    """Only accelerators use it by default."""
    monkeypatch.setattr(xla, "CHUNK", 4)
    monkeypatch.setattr(jax.lax, "platform_dependent", lambda *arrays, cpu, default: default(*arrays))
    check("both", "xla", (2, 10, 4))


@pytest.mark.slow
def test_the_kernel_matches_the_definition(monkeypatch):
    """In the interpreter, with two blocks in time and a rate of zero."""
    monkeypatch.setattr(tpu_call, "MAX_BLOCK_ROWS", 128)
    inputs, dy, dlast = scan_inputs((1, 130, 4), states=2, direction="reverse")
    inputs = inputs._replace(A=inputs.A.at[0, 0].set(0.0))
    found = value_and_gradients("reverse", "pallas_interpret", inputs, dy, dlast)
    compare(inputs, found, scan_oracle(inputs, dy, dlast, "reverse"))


@pytest.mark.slow
def test_the_kernel_works_without_optional_arguments(monkeypatch):
    """In bfloat16, with several groups of channels, and one group of states per turn."""
    monkeypatch.setattr(tpu_steps, "groups_together", lambda groups: 1)
    options = dict.fromkeys(("z", "dt_bias", "resets")) | {"states": 5, "dtype": jnp.bfloat16}
    check("both", "pallas_interpret", (1, 50, 512), tolerance=2**-7, **options)


@pytest.mark.parametrize("left_out", ["z", "dt_bias", "resets"])
def test_optional_arguments_may_be_left_out(left_out):
    check("forward", "xla", (1, 5, 4), **{left_out: None})


@pytest.mark.slow
def test_d_and_the_state_default_to_zero():
    inputs, dy, dlast = scan_inputs((1, 5, 4), direction="forward")
    u, dt, A, B, C, D, *_ = inputs
    y, last = selective_scan(u, jnp.abs(dt), A.T, B, C)
    zeros = {"D": jnp.zeros_like(D), "h0": jnp.zeros_like(dlast), "dt": jnp.abs(dt)}
    bare = inputs._replace(z=None, dt_bias=None, resets=None, **zeros)
    expected_y, expected_last, _ = scan_oracle(bare, dy, dlast, "forward")
    assert_close(y, expected_y)
    assert_close(last, expected_last)


def test_bfloat16_is_accurate_to_rounding():
    check("both", "xla", (1, 40, 4), dtype=jnp.bfloat16, tolerance=2**-7)


@pytest.mark.slow
def test_the_state_does_not_lose_small_steps_in_bfloat16():
    """In bfloat16, a step of 1 vanishes in a state of 256 or more."""
    ones = jnp.ones((1, 512, 2), jnp.bfloat16)
    weights = jnp.ones((1, 512, 1), jnp.bfloat16)
    _, last = selective_scan(ones, ones, jnp.full((2, 1), -1e-9), weights, weights)
    np.testing.assert_array_equal(last, 512.0)


@pytest.mark.slow
@settings(max_examples=4)
@given(
    shape=st.tuples(st.integers(1, 2), st.integers(1, 70), st.integers(1, 3).map(lambda half: 2 * half)),
    states=st.integers(1, 5),
    direction=st.sampled_from(DIRECTIONS),
    seed=st.integers(0, 100),
)
def test_any_shape_matches_the_definition(shape, states, direction, seed):
    check(direction, "xla", shape, states=states, seed=seed)


def jaxprs(jaxpr):
    """Yield a program and all programs inside it."""
    yield jaxpr
    for equation in jaxpr.eqns:
        for value in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "jaxpr")):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from jaxprs(inner)


def test_no_array_holds_all_states_of_all_steps():
    """With 640 steps in chunks of 64, every array is smaller than a quarter of N times the input."""
    inputs, dy, dlast = scan_inputs((2, 640, 32), states=16)
    program = jax.make_jaxpr(partial(value_and_gradients.__wrapped__, "both", "xla"))(inputs, dy, dlast)
    sizes = [var.aval.size for part in jaxprs(program.jaxpr) for eqn in part.eqns for var in eqn.outvars]
    assert max(sizes) < inputs.u.size * 16 / 4
    assert max(sizes) >= inputs.u.size


@pytest.mark.sampled
@pytest.mark.parametrize("direction", DIRECTIONS)
@TPU_SHAPES
def test_tpus_use_the_kernel_if_its_tiles_fit(shape, kernel, direction):
    inputs, dy, _ = scan_inputs(shape, direction=direction)

    def gradient(inputs):
        return jax.grad(
            lambda u: jnp.sum(dy * scan(direction, None, inputs.resets, inputs._replace(u=u))[0])
        )(inputs.u)

    check_tpu_calls(gradient, (inputs,), kernel)


@pytest.mark.parametrize(("dtype", "most"), [(jnp.float32, 64), (jnp.bfloat16, 128)])
def test_the_kernel_takes_as_many_states_as_fit_a_tpu(dtype, most):
    for states in (most, most + 1):
        inputs, *_ = scan_inputs((1, 128, 128), states=states, dtype=dtype, direction="forward")
        check_tpu_calls(partial(scan, "forward", None, None), (inputs,), states <= most, calls=1)
    message = f"N must be at most {most} for pallas_tpu with sequences of .*; found {most + 1}"
    with pytest.raises(ValueError, match=message):
        scan("forward", "pallas_tpu", None, inputs)


@pytest.mark.slow
def test_a_kernel_for_another_platform_is_refused():
    inputs, *_ = scan_inputs((1, 128, 256))
    with pytest.raises(ValueError, match="interpret mode"):
        scan("both", "pallas_tpu", inputs.resets, inputs)


@pytest.mark.parametrize(
    ("changed", "options", "message"),
    [
        ({"u": jnp.zeros((5, 4))}, {}, r"u must be \[batch, length, channels\]; found \(5, 4\)"),
        ({"u": jnp.zeros((1, 0, 4))}, {}, r"found \(1, 0, 4\) for u; allowed: at least 1 of each axis"),
        ({"A": jnp.zeros((0, 4))}, {}, r"found \(4, 0\) for A; allowed: at least 1 state"),
        ({"u": jnp.zeros((1, 5, 3))}, {}, r"A must be \(3, N\); found \(4, 3\)"),
        ({"dt": jnp.zeros((1, 5, 3))}, {}, r"dt must be \(1, 5, 4\); found \(1, 5, 3\)"),
        ({"B": jnp.zeros((1, 5, 2))}, {}, r"B must be \(1, 5, 3\); found \(1, 5, 2\)"),
        ({"C": jnp.zeros((1, 4, 3))}, {}, r"C must be \(1, 5, 3\); found \(1, 4, 3\)"),
        ({"D": jnp.zeros(3)}, {}, r"D must be \(4,\); found \(3,\)"),
        ({"z": jnp.zeros((1, 5, 3))}, {}, r"z must be \(1, 5, 4\); found \(1, 5, 3\)"),
        ({"dt_bias": jnp.zeros(3)}, {}, r"dt_bias must be \(4,\); found \(3,\)"),
        ({"h0": jnp.zeros((1, 4, 3))}, {}, r"h0 must be \(1, 3, 4\); found \(1, 4, 3\)"),
        ({}, {"resets": (jnp.zeros((1, 5), bool),)}, r"resets must be a tuple of 2 arrays of .*"),
        ({}, {"direction": "up"}, r"direction 'up' is unknown; allowed: \('forward', 'reverse', 'both'\)"),
        ({}, {"implementation": "cuda"}, "implementation 'cuda' is unknown; allowed: None, 'xla', .*"),
    ],
)
def test_wrong_arguments_are_refused(changed, options, message):
    inputs, *_ = scan_inputs((1, 5, 4))
    u, dt, A, B, C, D, z, dt_bias, h0, resets = inputs._replace(**changed)
    options = {"direction": "both", "resets": resets} | options
    with pytest.raises(ValueError, match=f"^selective_scan: {message}$"):
        selective_scan.__wrapped__(u, dt, A.T, B, C, D, z=z, dt_bias=dt_bias, h0=h0, **options)


def test_both_directions_refuse_an_odd_number_of_channels():
    inputs, *_ = scan_inputs((1, 5, 3), direction="forward")
    with pytest.raises(ValueError, match="the number of channels must be even; found 3"):
        scan("both", None, None, inputs)
