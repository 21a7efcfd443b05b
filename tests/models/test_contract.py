"""Tests of requirements on every model, except for information flow."""

from functools import partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import tree_map_with_path

from tests.models.conftest import BY_MIXER, tiered
from tests.quick_jit import quick_jit

# These parameters saturate Mamba's step and output gate. Mamba multiplies input, step and weights with one
# another, so a factor of 300 on all of them would overflow float32.
SATURATED = {
    "mamba": ("A_log", "step", "step_bias", "output_gate"),
    "mamba2": ("A_log", "step", "step_bias", "output_gate"),
}


@pytest.mark.parametrize(
    ("name", "dtype"),
    tiered([("mamba", "bfloat16")], [("mamba", "float32"), *product(BY_MIXER.values(), ["bfloat16"])]),
)
def test_gradients_are_finite_with_saturated_gates(name, dtype, make, packed):
    """A gate at 0 or 1, a decay of exactly 1, a softmax on one token."""
    model, variables = make(name=name, dtype=dtype)

    @quick_jit
    @jax.value_and_grad
    def loss(params):
        return jnp.mean(jnp.square(model.apply({"params": params}, packed)))

    def saturated(sign, path, x):
        names = [part.key for part in path]
        chosen = SATURATED.get(name)
        if "mixer" not in names or names[-2] == "out":
            return x
        return sign * 300 * x if chosen is None or set(chosen).intersection(names) else x

    for sign in (1, -1):
        value, gradient = loss(tree_map_with_path(partial(saturated, sign), variables["params"]))
        assert jnp.isfinite(value)
        assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
        assert jnp.linalg.norm(gradient["embedding"]) > 0


@pytest.mark.parametrize("name", tiered({"gated_ssm_plus"}, ["gated_ssm_plus", "griffin", "bigs"]))
def test_a_seed_gives_the_same_parameters(name, make, packed):
    model, _ = make(name=name)
    first, second = (quick_jit(model.init)(jax.random.key(1), packed) for _ in range(2))
    jax.tree.map(np.testing.assert_array_equal, first, second)
