"""Shares of a mixture, as shares of examples (as in the papers) or of target tokens.

The mixture draws examples, but the loss is a mean over target tokens. Let q_a be the probability that an
example comes from arm a, and m_a the mean number of target tokens of its examples. The arm's share of the
loss is

    p_a = q_a m_a / sum_b q_b m_b,    and so    q_a = (p_a / m_a) / sum_b (p_b / m_b).

The papers' probabilities are q. "We define actions as training objectives along with their probabilities of
being sampled or applied to incoming training data during training" (Birdie, EMNLP 2024, section 3.3). Its
Figure 3 shows "sampling probabilities". The published code, of November 2024 and of today, draws one
objective for each sample from the bandit's action.
"""

import numpy as np
from jaxtyping import Float, Float64

EXAMPLES = "examples"
TARGET_TOKENS = "target_tokens"
UNITS = (EXAMPLES, TARGET_TOKENS)


def sampling_probabilities(
    token_shares: Float[np.ndarray, " arms"], target_tokens: Float[np.ndarray, " arms"]
) -> Float64[np.ndarray, " arms"]:
    """Return the sampling probabilities q that give the arms the shares p of all target tokens.

    Args:
        token_shares: p, the arms' shares of the target tokens, in any unit; at least one is positive.
        target_tokens: m, the mean number of target tokens in an example of each arm, all positive.
    """
    ratios = token_shares.astype(np.float64) / target_tokens
    return ratios / ratios.sum()


def shares_of_tokens(
    probabilities: Float[np.ndarray, " arms"], tokens: Float[np.ndarray, " arms"]
) -> Float64[np.ndarray, " arms"]:
    """Return the arms' shares p of all tokens for the sampling probabilities q.

    Args:
        probabilities: q, the probability that an example comes from each arm, in any unit.
        tokens: the mean number of tokens in an example of each arm: target tokens, for shares of the loss,
            or positions.
    """
    products = probabilities.astype(np.float64) * tokens
    return products / products.sum()
