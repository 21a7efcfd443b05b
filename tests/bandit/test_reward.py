import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birdie_jax.bandit import reward


def independent_reward(old, new):
    old, new = np.float64(old), np.float64(new)
    n = np.exp(1.0) * np.sqrt(old * new) * np.power((new - old) / (old + 1e-8), 3)
    return np.minimum(1.0, np.maximum(-1.0, -100.0 * np.exp(1.0) * np.tanh(n)))


def test_rewards_match_the_formula_in_float64():
    generator = np.random.default_rng(0)
    old = generator.uniform(0.01, 12, (40, 5))
    new = old * generator.uniform(0.85, 1.15, (40, 5))
    got = reward(old, new)
    assert got.dtype == jnp.float32 and got.shape == (40, 5)
    expected = independent_reward(old.astype(np.float32), new.astype(np.float32))
    np.testing.assert_allclose(got, expected, rtol=2e-4, atol=1e-6)
    # The comparison needs rewards that are neither clipped nor negligible.
    assert 0.2 < np.mean((np.abs(expected) > 1e-3) & (np.abs(expected) < 1)) < 0.9


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (2.0, 1.98, 0.0014702),
        (2.0, 1.9, 0.180044),
        (2.0, 2.1, -0.189282),
        (2.0, 1.0, 1.0),
        (2.0, 4.0, -1.0),
        (3.0, 3.0, 0.0),
        (0.0, 0.0, 0.0),
        (0.0, 5.0, 0.0),
        (5.0, 0.0, 0.0),
        (np.nan, 1.0, 0.0),
        (1.0, np.nan, 0.0),
        (np.inf, np.inf, 0.0),
        (-1.0, 1.0, 0.0),
    ],
)
def test_reward_returns_known_values(old, new, expected):
    np.testing.assert_allclose(reward(old, new), expected, atol=2e-5)


def test_reward_accepts_any_shape_under_jit():
    assert reward(jnp.ones(()), jnp.ones(())).shape == ()
    assert reward(jnp.ones((2, 3, 4)), jnp.ones((4,))).shape == (2, 3, 4)
    old, new = jnp.array([2.0, 3.0], jnp.bfloat16), jnp.array([1.9, 3.1], jnp.bfloat16)
    compiled = jax.jit(reward)(old, new)
    assert compiled.dtype == jnp.float32
    np.testing.assert_allclose(compiled, reward(old, new), rtol=1e-5)
