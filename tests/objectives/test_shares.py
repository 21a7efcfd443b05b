"""Shares of examples and of target tokens describe the same mixture."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from birdie_jax.objectives.shares import sampling_probabilities, shares_of_tokens

positive = st.floats(1e-6, 1.0)
lengths = st.floats(1.0, 1e6)


def test_token_shares_account_for_the_lengths():
    # Ten examples of 20 tokens have as many tokens as one of 200.
    sampling = sampling_probabilities(np.array([0.5, 0.5]), np.array([20.0, 200.0]))
    np.testing.assert_allclose(sampling, [10 / 11, 1 / 11], rtol=1e-15)
    np.testing.assert_allclose(
        shares_of_tokens(np.array([0.3, 0.7]), np.array([100.0, 10.0])), [30 / 37, 7 / 37], rtol=1e-15
    )


def test_an_arm_without_a_share_is_not_drawn():
    mixture = np.array([0.0, 1.0], np.float32)
    sampling = sampling_probabilities(mixture, np.array([3.0, 5.0]))
    assert sampling.tolist() == [0.0, 1.0]
    assert sampling.dtype == np.float64


@given(
    st.integers(1, 12).flatmap(
        lambda arms: st.tuples(
            arrays(float, arms, elements=positive), arrays(float, arms, elements=lengths)
        )
    )
)
def test_the_two_conversions_are_inverse(drawn):
    weights, tokens = drawn
    mixture = weights / weights.sum()
    there = sampling_probabilities(mixture, tokens)
    np.testing.assert_allclose(there.sum(), 1.0, rtol=1e-12)
    np.testing.assert_allclose(shares_of_tokens(there, tokens), mixture, rtol=1e-9)
    np.testing.assert_allclose(
        sampling_probabilities(shares_of_tokens(mixture, tokens), tokens), mixture, rtol=1e-9
    )
    # Only the ratios of lengths matter.
    np.testing.assert_allclose(sampling_probabilities(mixture, 7 * tokens), there, rtol=1e-9)
