"""Figures of a prepared text that a model's loss can be compared with."""

import numpy as np

from birdie_jax.text.token_shards import TokenShards


def unigram_entropy(text: TokenShards, max_tokens: int = 1 << 22) -> float:
    """Return the entropy of the text's token frequencies, in nats a token.

    It is the loss of the best model that ignores all context. Measured on up to about `max_tokens` tokens,
    taken from records spread evenly over the text.
    """
    stride = max(1, text.num_tokens // max_tokens)
    counts = np.zeros(text.vocab_size, np.int64)
    for number in range(0, len(text), stride):
        counts += np.bincount(text[number].tokens, minlength=len(counts))
    shares = counts[counts > 0] / counts.sum()
    return float(-np.sum(shares * np.log(shares)))
