"""A tokenizer for the tests of tasks."""

import random
from functools import cache

from birdie_jax.text import Tokenizer, train_tokenizer


@cache
def word_tokenizer() -> Tokenizer:
    """Return a tokenizer with 400 pieces, which splits words and numbers."""
    words = random.Random(0)
    syllables = [a + b for a in "bcdfghlmnrst" for b in ("a", "e", "i", "o", "an", "er", "is")]

    def line() -> str:
        name = " ".join("".join(words.choices(syllables, k=3)).capitalize() for _ in range(2))
        return f"{name}: {words.randrange(1000):03}-{words.randrange(10000):04}, and so on."

    texts = ["\n".join(line() for _ in range(20)) for _ in range(60)]
    return train_tokenizer(texts, 400)
