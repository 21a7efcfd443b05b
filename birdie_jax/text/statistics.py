"""Statistics of a prepared text, as references for a model's loss."""

import numpy as np
from jaxtyping import Float64

from birdie_jax.text.corpora import Corpora, RowText
from birdie_jax.text.token_shards import TokenShards


def unigram_entropy(text: RowText, max_tokens: int = 1 << 22) -> float:
    """Return the entropy of the token frequencies of a text or of weighted texts, in nats per token.

    This is the loss of the best model that ignores all context. It is measured on up to about `max_tokens`
    tokens, from records spread evenly over the text.
    """
    corpora = Corpora.of(text)
    texts = zip(corpora.texts, corpora.weights, strict=True)
    shares = sum(weight * _frequencies(each, max_tokens) for each, weight in texts) / sum(corpora.weights)
    shares = np.asarray(shares)[np.asarray(shares) > 0]
    return float(-np.sum(shares * np.log(shares)))


def _frequencies(text: TokenShards, max_tokens: int) -> Float64[np.ndarray, " vocabulary"]:
    stride = max(1, text.num_tokens // max_tokens)
    counts = np.zeros(text.vocab_size, np.int64)
    for number in range(0, len(text), stride):
        counts += np.bincount(text[number].tokens, minlength=len(counts))
    return counts / counts.sum()
