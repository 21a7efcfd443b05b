"""The GPU kernels against the definition, in the interpreter of Pallas."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.gated_delta_rule import gated_delta_rule
from pallas_kernels.matrix_state import gpu, gpu_passes
from pallas_kernels.matrix_state.sequences import HeadSequences
from tests.pallas_kernels.linear_scan.oracle import assert_close
from tests.pallas_kernels.matrix_state import oracle
from tests.quick_jit import quick_jit


@partial(quick_jit, static_argnums=0)
def values_and_gradients(direction, sequences, state, cotangents):
    """Return both results, and the cotangents of all arguments."""

    def read(sequences, state, resets):
        given = sequences._replace(resets=resets)
        return gpu.read_sequence(given, state, direction=direction, interpret=True)

    given = sequences._replace(resets=None)
    results, pull_back = jax.vjp(lambda *known: read(*known, sequences.resets), given, state)
    return results, pull_back(cotangents)


def check(shape, direction, *, dtype=jnp.float32, tolerance=1e-5, **options):
    """Compare the results and all gradients with the definition."""
    sequences, state, do, dlast = oracle.draw(shape, direction=direction, **options)
    if dtype == jnp.bfloat16:
        rounded = oracle.to_arrays((sequences.q, sequences.k, sequences.v, do), dtype)
        q, k, v, do = (np.asarray(array, np.float64) for array in rounded)
        sequences = sequences._replace(q=q, k=k, v=v)
    expected = oracle.scan(sequences, state, direction)
    wanted = oracle.gradients(sequences, state, do, dlast, direction)
    arrays = oracle.to_arrays(sequences)
    q, k, v = (array.astype(dtype) for array in arrays[:3])
    cotangents = jnp.asarray(do, dtype), jnp.asarray(dlast, jnp.float32)
    given = HeadSequences(q, k, v, *arrays[3:])
    found, (dsequences, dstate) = values_and_gradients(
        direction, given, jnp.asarray(state, jnp.float32), cotangents
    )
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other, tolerance)
    named = {name: array for name, array in dsequences._asdict().items() if array is not None}
    for name, array in (named | {"state": dstate}).items():
        assert_close(array, wanted[name], tolerance)


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "direction", ["both", pytest.param("forward", marks=SLOW), pytest.param("reverse", marks=SLOW)]
)
def test_values_and_gradients_match_the_definition(direction, monkeypatch):
    """Two chunks with padding; features in two parts, of keys that heads share, also padded."""
    monkeypatch.setattr(gpu_passes, "COLUMNS", 16)
    monkeypatch.setattr(gpu_passes, "KEY_FEATURES", 16)
    check((1, 66, 2, 17), direction, d_k=17, groups=1)


def test_values_that_are_added_match_the_definition():
    check((2, 70, 4, 3), "both", groups=1, added=True)


@pytest.mark.slow
def test_one_chunk_without_resets_matches_the_definition():
    check((1, 5, 2, 3), "both", resets=False)


@pytest.mark.slow
@pytest.mark.parametrize("added", [False, True])
def test_bfloat16_is_accurate_to_rounding(added):
    check((1, 70, 2, 4), "both", dtype=jnp.bfloat16, tolerance=3e-2, added=added)


def test_decays_near_zero_stay_finite():
    sequences, state, do, dlast = oracle.draw((1, 64, 2, 3), direction="forward")
    sequences = sequences._replace(g=np.full_like(sequences.g, -1e30))
    arguments = oracle.to_arrays((sequences, state, (do, dlast)))
    found = values_and_gradients("forward", *arguments)
    assert all(jnp.isfinite(array).all() for array in jax.tree.leaves(found))


def test_a_gpu_uses_the_kernels_only_if_you_choose_them():
    sequences, _, do, _ = oracle.draw((1, 70, 2, 16), d_k=16)
    arguments, do = oracle.to_arrays(sequences), jnp.asarray(do, jnp.float32)

    def gradient(v, implementation):
        def total(v):
            q, k, _, g, beta, resets = arguments
            o, _ = gated_delta_rule(
                *(q, k, v, g, beta), resets=resets, direction="both", implementation=implementation
            )
            return jnp.sum(o * do)

        return jax.grad(total)(v)

    for implementation, calls in ((None, 0), ("pallas_gpu", 6)):
        traced = jax.jit(gradient, static_argnums=1).trace(arguments.v, implementation)
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
        assert text.count("@__gpu$xla.gpu.triton") == calls
