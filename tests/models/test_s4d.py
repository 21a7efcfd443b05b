"""Tests S4D against scipy and a float64 recurrence: kernels, and all forms with gradients and resets."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.signal
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from birdie_jax.config import ModelConfig
from birdie_jax.models import s4d
from birdie_jax.models.bigs import BiGS
from birdie_jax.models.encoder_config import EncoderConfig
from birdie_jax.models.layout import packed_layout
from birdie_jax.models.s4d import S4D, choose_form, eigenvalues
from birdie_jax.models.s4d_chunked import chunked_product
from birdie_jax.models.s4d_reference import fourier_product, recurrent_product
from birdie_jax.models.s4d_toeplitz import toeplitz_product
from birdie_jax.models.state_space import discretise
from tests.quick_jit import quick_jit

ROWS, LENGTH, WIDTH, MODES = 2, 20, 3, 6
EXACT = {
    "recurrent": recurrent_product,
    "toeplitz": toeplitz_product,
    "chunked": partial(chunked_product, chunk=7),
    "chunks of a divisor": partial(chunked_product, chunk=5),
    "chunks of a token": partial(chunked_product, chunk=1),
    "a chunk beyond the row": partial(chunked_product, chunk=LENGTH + 3),
}


def random_system(heads, seed=0, dtype=np.float64):
    """Return the continuous A, C, D and the step of every head."""
    random = np.random.default_rng(seed)
    a = -random.uniform(0.1, 1, (heads, MODES)) + 1j * random.normal(0, 3, (heads, MODES))
    c = random.normal(size=(heads, MODES)) + 1j * random.normal(size=(heads, MODES))
    complex_dtype = np.result_type(dtype, np.complex64)
    d, step = random.normal(size=heads), random.uniform(0.05, 0.5, heads)
    return a.astype(complex_dtype), c.astype(complex_dtype), d.astype(dtype), step.astype(dtype)


def scipy_output(system, head, u):
    """Return y of one head for a sequence of one channel, with scipy's discretisation and simulation."""
    a, c, d, step = (np.asarray(part[head]) for part in system)
    matrices = np.diag(a), np.ones((len(a), 1)), c[None], np.array([[d]])
    discrete = scipy.signal.cont2discrete(matrices, step, method="zoh")
    # Scipy's output reads the state before its input, ours the state after it.
    h, y = np.zeros(len(a), complex), []
    for value in u:
        h = discrete[0] @ h + discrete[1][:, 0] * value
        y.append((discrete[2] @ h).real[0] + d * value)
    return np.array(y)


DIRECTIONS = pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
# Direction and heads are independent, so each value needs one case.
CASES = pytest.mark.parametrize(
    ("heads", "reverse"), [(1, True), (2, False)], ids=["one head in reverse", "heads forward"]
)


def random_inputs(heads):
    """Return a system, inputs and a cotangent in float64."""
    u, cotangent = np.random.default_rng(heads).normal(size=(2, ROWS, LENGTH, heads, WIDTH))
    return random_system(heads), u, cotangent


@cache
def results_of_exact_forms(heads, reverse):
    """Return a function from resets to the results and gradients of every exact form."""

    def results(form, system, u, reset, cotangent):
        y, pull = jax.vjp(lambda system, u: form(discretise(*system), u, reset, reverse=reverse), system, u)
        return y, pull(cotangent)

    @quick_jit
    def all_results(system, u, reset, cotangent):
        return {name: results(form, system, u, reset, cotangent) for name, form in EXACT.items()}

    system, u, cotangent = random_inputs(heads)
    return lambda reset: all_results(system, u, reset, cotangent)


@pytest.mark.sampled
@CASES
@given(reset=arrays(bool, (ROWS, LENGTH), elements=st.booleans(), fill=st.just(False)))
def test_exact_forms_match_the_recurrence_in_values_and_gradients(heads, reverse, reset):
    with jax.enable_x64(True):
        found = results_of_exact_forms(heads, reverse)(jnp.asarray(reset))
        expected = found.pop("recurrent")
        for result in found.values():
            jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-9), result, expected)


@pytest.mark.sampled
@CASES
def test_all_forms_match_the_zero_order_hold_of_scipy(heads, reverse):
    system, u, _ = random_inputs(heads)
    turned = u[:, ::-1] if reverse else u
    expected = np.stack(
        [
            np.apply_along_axis(partial(scipy_output, system, head), 1, turned[:, :, head])
            for head in range(heads)
        ],
        axis=2,
    )
    expected = expected[:, ::-1] if reverse else expected
    with jax.enable_x64(True):

        def outputs(system, u):
            space, no_reset = discretise(*system), jnp.zeros((ROWS, LENGTH), bool)
            exact = [form(space, u, no_reset, reverse=reverse) for form in EXACT.values()]
            return [*exact, fourier_product(space, u, reverse=reverse)]

        for y in quick_jit(outputs)(system, u):
            np.testing.assert_allclose(y, expected, rtol=1e-9, atol=1e-9)


@DIRECTIONS
def test_the_fourier_form_has_the_gradients_of_the_recurrence(reverse):
    system, u, cotangent = random_inputs(1)
    with jax.enable_x64(True):
        no_reset = jnp.zeros((ROWS, LENGTH), bool)

        @quick_jit
        def gradients(system, u):
            forms = (
                lambda space, u: fourier_product(space, u, reverse=reverse),
                lambda space, u: recurrent_product(space, u, no_reset, reverse=reverse),
            )
            return [
                jax.vjp(lambda system, u, form=form: form(discretise(*system), u), system, u)[1](cotangent)
                for form in forms
            ]

        found, expected = gradients(system, u)
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-9), found, expected)


def test_float32_kernels_are_accurate_and_short_ones_are_prefixes():
    """Uses the paper's initialisation with its smallest and largest step, for up to 4,096 tokens."""
    a = np.stack([eigenvalues("legs", 64)] * 2)
    c = np.random.default_rng(0).normal(size=(2, 64, 2)) @ np.array([1, 1j])
    system = a, c, np.ones(2), np.array([0.01, 1.0])
    with jax.enable_x64(True):
        exact = discretise(*map(jnp.asarray, system)).kernel(4096)
    types = jnp.complex64, jnp.complex64, jnp.float32, jnp.float32
    rounded = discretise(*map(jnp.asarray, system, types))
    kernel = rounded.kernel(4096)
    np.testing.assert_allclose(kernel, exact, atol=2e-5 * np.abs(exact).max(), rtol=0)
    np.testing.assert_allclose(rounded.kernel(128), kernel[:, :128], rtol=1e-6, atol=1e-7)


def test_initial_eigenvalues_match_hippo():
    legs = eigenvalues("legs", 64)
    n = np.arange(64)
    root = np.sqrt(2 * n + 1)
    hippo = -np.tril(np.outer(root, root), -1) - np.diag(n + 1)
    normal = hippo + np.outer(root, root) / 2
    np.testing.assert_allclose(normal @ normal.T, normal.T @ normal, atol=1e-8)
    expected = np.linalg.eigvals(normal)
    np.testing.assert_allclose(expected.real, -0.5, atol=1e-8)
    np.testing.assert_allclose(np.sort(legs.imag), np.sort(expected.imag), atol=1e-8)
    assert (legs.real == -0.5).all()
    np.testing.assert_allclose([np.abs(legs.imag).min(), legs.imag.max()], [0.264, 1303], rtol=1e-3)
    np.testing.assert_allclose(eigenvalues("lin", 4).imag, [0, np.pi, 2 * np.pi, 3 * np.pi])
    np.testing.assert_allclose(eigenvalues("inv", 2).imag, [2 / np.pi, 2 / np.pi * (2 / 3 - 1)])


@pytest.mark.parametrize("modes", [1, 5, 64])
def test_initial_eigenvalues_do_not_depend_on_the_rounding_of_lapack(modes, monkeypatch):
    expected = eigenvalues("legs", modes)
    exact = np.linalg.eigvalsh

    def rounded_otherwise(matrix):
        values = exact(matrix)
        # A few bits more than the difference between two LAPACKs.
        return values + np.abs(values).max() * 2.0**-48 * np.resize([1, -1, 0], modes)

    monkeypatch.setattr(np.linalg, "eigvalsh", rounded_otherwise)
    np.testing.assert_array_equal(eigenvalues("legs", modes), expected)


@pytest.mark.parametrize("length", [64, 384, 385, 4096])
def test_the_form_depends_on_the_length_of_rows(length):
    assert choose_form(EncoderConfig(), length) == ("toeplitz" if length <= 384 else "chunked")
    for form in ("toeplitz", "chunked"):
        assert choose_form(EncoderConfig(ssm_form=form), length) == form


@pytest.mark.sampled
@DIRECTIONS
def test_the_layer_matches_scipy_with_its_saved_parameters(reverse):
    """Uses the paper's 64 modes; a real part of A above -1e-4 is clipped."""
    layer = S4D(EncoderConfig(ssm_heads=2), reverse, jnp.dtype("float32"))
    segments = jnp.ones((1, LENGTH), jnp.int32)
    layout = packed_layout(segments, segments > 0)
    u = np.random.default_rng(0).normal(size=(1, LENGTH, 2)).astype(np.float32)
    params = quick_jit(layer.init)(jax.random.key(1), jnp.asarray(u), layout)["params"]
    params = params | {"A_re": params["A_re"].at[:, 0].set(0.5), "D": jnp.array([0.3, -2.0])}
    found = quick_jit(layer.apply)({"params": params}, jnp.asarray(u), layout)[0]
    saved = {name: np.asarray(value, np.float64) for name, value in params.items()}
    a = np.minimum(saved["A_re"], -1e-4) + 1j * saved["A_im"]
    system = a, saved["C"] @ np.array([1, 1j]), saved["D"], np.exp(saved["log_step"])
    order = slice(None, None, -1 if reverse else 1)
    for head in range(2):
        expected = scipy_output(system, head, u[0, order, head])[order]
        np.testing.assert_allclose(found[:, head], expected, atol=2e-5 * np.abs(expected).max(), rtol=0)


def test_initial_parameters_match_the_paper():
    """dt is log-uniform between its bounds, Re C and Im C have a variance of 1/2, and D is 1."""
    heads = 2000
    layer = S4D(EncoderConfig(ssm_heads=heads, ssm_state=4), False, jnp.dtype("float32"))
    one = jnp.ones((1, 1), jnp.int32)
    arguments = jax.random.key(0), jnp.ones((1, 1, heads)), packed_layout(one, one > 0)
    params = jax.tree.map(np.asarray, quick_jit(layer.init)(*arguments)["params"])
    steps = params["log_step"]
    assert np.log(0.01) <= steps.min() < np.log(0.0105)
    assert np.log(0.95) < steps.max() <= 0
    np.testing.assert_allclose(
        np.quantile(steps, [0.25, 0.5, 0.75]), np.log(0.01) * np.array([0.75, 0.5, 0.25]), atol=0.2
    )
    np.testing.assert_allclose(params["C"].var(axis=(0, 1)), 0.5, rtol=0.05)
    np.testing.assert_allclose(params["C"].mean(axis=(0, 1)), 0, atol=0.03)
    assert (params["D"] == 1).all()
    np.testing.assert_array_equal(params["A_re"], np.full((heads, 4), -0.5, np.float32))
    np.testing.assert_allclose(
        params["A_im"], np.broadcast_to(eigenvalues("legs", 4).imag, (heads, 4)), rtol=1e-6
    )


def lowered_flops(function, *arguments):
    """Return the FLOPs of a lowered program, without compiling it."""
    return jax.jit(function).lower(*arguments).cost_analysis()["flops"]


def abstract(shape, dtype="float32"):
    return jax.ShapeDtypeStruct(shape, dtype)


def test_the_toeplitz_form_adds_at_most_a_twentieth_to_blocks_of_128_tokens(monkeypatch):
    """For width 512, forward and backward, without the head and the optimizer."""
    width, length, rows = 512, 128, 8
    section = EncoderConfig(positions=length)
    config = ModelConfig(
        name="bigs", features=width, mlp_features=3 * width, dtype="float32", sections=(section,)
    )
    x, segments = abstract((rows, length, width)), abstract((rows, length), "int32")

    def output(params, x, segments):
        return BiGS(config).apply({"params": params}, x, packed_layout(segments, segments > 0))[0].sum()

    def init(x, segments):
        return BiGS(config).init(jax.random.key(0), x, packed_layout(segments, segments > 0))["params"]

    def counted():
        gradient = jax.grad(output, argnums=(0, 1))
        return lowered_flops(gradient, jax.eval_shape(init, x, segments), x, segments)

    whole = counted()
    monkeypatch.setattr(s4d, "toeplitz_product", lambda space, u, reset, *, reverse: u)
    added = whole / counted() - 1
    # The product alone adds 4 L D to 26 D^2.
    assert 4 * length / (26 * width) < added < 0.05


@DIRECTIONS
def test_the_chunked_form_has_a_constant_cost_per_token(reverse):
    def flops_of_token(length):
        def output(parts, u, reset):
            return chunked_product(discretise(*parts), u, reset, reverse=reverse, chunk=128).sum()

        parts = [abstract((1, 64), dtype) for dtype in ("complex64", "complex64")]
        parts += [abstract((1,)), abstract((1,))]
        gradient = jax.grad(output, argnums=1)
        return (
            lowered_flops(gradient, parts, abstract((1, length, 1, 64)), abstract((1, length), "bool"))
            / length
        )

    assert flops_of_token(16_384) == pytest.approx(flops_of_token(512), rel=0.1)
