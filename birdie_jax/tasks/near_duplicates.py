"""Texts of nearly the same words, found exactly: all pairs of a Jaccard similarity, by prefix filtering.

The similarity of two texts is that of their sets of words, |A and B| / |A or B|. Two sets with at least c
words in common have at least k <= c of them among the first |A| - c + k words of A and the first
|B| - c + k of B, if all are sorted alike (Chaudhuri et al., 2006, "A Primitive Operator for Similarity
Joins in Data Cleaning"; with k > 1 Wang et al., 2012, "Can We Beat the Prefix Filtering?"). Sets of a
similarity of at least t have c >= t max(|A|, |B|). Sorted by rarity, few sets share k such words, and only
those are compared. MinHash would miss some: what is kept would depend on its hashes.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from fractions import Fraction
from itertools import chain

_WORD = re.compile(r"\w+")

# The k above: most stories that share one rare word by chance do not share three.
_COMMON_IN_PREFIX = 3


def word_set(text: str) -> frozenset[str]:
    """Return the words of a text, runs of letters and digits, in one case."""
    return frozenset(_WORD.findall(text.casefold()))


def similarity(words: frozenset[str], others: frozenset[str]) -> float:
    """Return the Jaccard similarity of two sets; of two empty ones it is 1."""
    common = len(words & others)
    either = len(words) + len(others) - common
    return common / either if either else 1.0


def find_near_duplicates(texts: Sequence[str], threshold: float) -> dict[int, int]:
    """Find the texts that are too similar to an earlier one that stays.

    The first of near duplicates stays, so that no two texts that stay are as similar as `threshold`.

    Args:
        texts: the texts.
        threshold: the similarity from which on a text is a near duplicate, more than 0 and at most 1.

    Returns:
        The index of each near duplicate, with that of the first text that stays and is so similar.

    Raises:
        ValueError: the threshold is out of its range.
    """
    if not 0 < threshold <= 1:
        raise ValueError(f"threshold: found {threshold}; allowed: more than 0 and at most 1")
    # As it is written in decimal: ceil(0.7 * 10) would be 8, and would miss pairs.
    exact = Fraction(str(threshold))
    sets = [word_set(text) for text in texts]
    frequency = Counter(word for words in sets for word in words)
    rank = {word: number for number, word in enumerate(sorted(frequency, key=lambda w: (frequency[w], w)))}
    holders: dict[int, list[int]] = defaultdict(list)
    without_words: int | None = None
    duplicates: dict[int, int] = {}
    for index, words in enumerate(sets):
        if not words:
            if without_words is None:
                without_words = index
            else:
                duplicates[index] = without_words
            continue
        min_common = math.ceil(exact * len(words))
        in_prefix = min(_COMMON_IN_PREFIX, min_common)
        ranks = sorted(map(rank.__getitem__, words))
        prefix = ranks[: len(words) - min_common + _COMMON_IN_PREFIX]
        shared = Counter(chain.from_iterable(map(holders.__getitem__, prefix)))
        candidates = sorted(other for other, count in shared.items() if count >= in_prefix)
        found = next((other for other in candidates if _are_similar(words, sets[other], exact)), None)
        if found is not None:
            duplicates[index] = found
            continue
        for word in prefix:
            holders[word].append(index)
    return duplicates


def _are_similar(words: frozenset[str], others: frozenset[str], threshold: Fraction) -> bool:
    fewer, more = sorted((len(words), len(others)))
    # numerator / denominator = threshold, in integers.
    if fewer * threshold.denominator < more * threshold.numerator:
        return False
    common = len(words & others)
    return common * threshold.denominator >= (fewer + more - common) * threshold.numerator
