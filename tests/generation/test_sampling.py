"""The tokens that the filters keep, checked against a rule for one row, and random draws from them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birdie_jax.generation.sampling import GREEDY, Sampling, filter_logits, sample_tokens

VOCAB = 23


def logits_of(seed, rows=4):
    return np.random.default_rng(seed).normal(0, 2, (rows, VOCAB)).astype(np.float32)


def kept(row, sampling):
    """Return the ids that may be drawn, from a sort of the vocabulary."""
    row = row.astype(np.float64) / sampling.temperature
    order = sorted(range(VOCAB), key=lambda token: -row[token])
    if sampling.top_k:
        order = order[: sampling.top_k]
    weights = np.exp(row[order] - row[order[0]])
    probabilities = weights / weights.sum()
    held, mass = [], 0.0
    for token, probability in zip(order, probabilities, strict=True):
        if held and mass >= sampling.top_p:
            break
        held.append(token)
        mass += probability
    return {token for token in held if row[token] >= row[order[0]] + np.log(max(sampling.min_p, 1e-300))}


SETTINGS = [
    Sampling(1.0),
    Sampling(0.5, top_k=1),
    Sampling(1.0, top_k=5),
    Sampling(2.0, top_k=100),
    Sampling(1.0, top_p=1e-9),
    Sampling(0.7, top_p=0.8),
    Sampling(1.0, min_p=0.2),
    Sampling(1.0, min_p=1.0),
    Sampling(0.8, top_k=9, top_p=0.9, min_p=0.05),
]


@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_filters_keep_the_expected_tokens(sampling, seed):
    logits = logits_of(seed)
    left = np.isfinite(filter_logits(jnp.asarray(logits), sampling))
    for row in range(len(logits)):
        assert set(np.flatnonzero(left[row])) == kept(logits[row], sampling)


def keys_of(rows, seed=0):
    return jax.random.split(jax.random.key(seed), rows)


def test_greedy_choice_takes_the_best_allowed_token():
    logits = jnp.asarray(logits_of(0))
    everything = jnp.ones((4, VOCAB), bool)
    best = sample_tokens(logits, everything, keys_of(4), jnp.zeros(4, jnp.int32), GREEDY)
    np.testing.assert_array_equal(best, np.argmax(logits, axis=-1))
    without = everything.at[0, best[0]].set(False)
    second = sample_tokens(logits, without, keys_of(4), jnp.zeros(4, jnp.int32), GREEDY)
    assert second[0] == np.argsort(logits[0])[-2]
    np.testing.assert_array_equal(second[1:], best[1:])


def test_draws_follow_the_probabilities():
    rows = 20_000
    probabilities = np.array([0.5, 0.3, 0.15, 0.05])
    logits = jnp.broadcast_to(jnp.log(jnp.asarray(probabilities, jnp.float32)), (rows, 4))
    allowed = jnp.broadcast_to(jnp.array([True, True, True, False]), (rows, 4))
    drawn = sample_tokens(logits, allowed, keys_of(rows), jnp.zeros(rows, jnp.int32), Sampling(0.5))
    expected = probabilities**2 * [1, 1, 1, 0]
    expected /= expected.sum()
    np.testing.assert_allclose(np.bincount(drawn, minlength=4) / rows, expected, atol=0.015)


def test_a_draw_depends_on_key_and_index_and_not_on_other_rows():
    logits, allowed, keys = jnp.asarray(logits_of(0, 64)), jnp.ones((64, VOCAB), bool), keys_of(64)
    indices = jnp.arange(64, dtype=jnp.int32)
    together = sample_tokens(logits, allowed, keys, indices, Sampling(1.5))
    some = sample_tokens(logits[5:9], allowed[5:9], keys[5:9], indices[5:9], Sampling(1.5))
    np.testing.assert_array_equal(together[5:9], some)
    assert (sample_tokens(logits, allowed, keys, indices + 1, Sampling(1.5)) != together).any()
    assert (sample_tokens(logits, allowed, keys_of(64, 1), indices, Sampling(1.5)) != together).any()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": -0.5}, "temperature: found -0.5; allowed: at least 0"),
        ({"temperature": float("nan")}, "temperature: found nan; allowed: a finite number of at least 0"),
        *(
            (
                {"temperature": temperature},
                f"temperature: found {temperature}; allowed: 0, which is greedy, or from 1e-06 to 1e+06",
            )
            for temperature in (5e-324, 1e-46, 1e-38, 9e-7, 2e6, 1e300)
        ),
        ({"temperature": 1.0, "top_k": -1}, "top_k: found -1; allowed: at least 0; 0 = no limit"),
        (
            {"temperature": 1.0, "top_p": 0.0},
            "top_p: found 0.0; allowed: above 0 and at most 1; 1 = no limit",
        ),
        ({"temperature": 1.0, "min_p": 1.5}, "min_p: found 1.5; allowed: from 0 to 1; 0 = no limit"),
        ({"top_k": 5}, "top_k: found 5; allowed: 0, because temperature = 0 chooses greedily"),
    ],
)
def test_invalid_settings_are_refused(fields, message):
    with pytest.raises(ValueError) as error:
        Sampling(**fields)
    assert str(error.value) == message
