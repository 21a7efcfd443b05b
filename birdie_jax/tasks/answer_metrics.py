"""Scores of a written answer against acceptable ones: exact match, F1, and whether one is in the answer.

Exact match and F1 are those of SQuAD (Rajpurkar et al., 2016, section 6.1; 2018), computed as the official
evaluation script of version 2.0 does. That of version 1.1 gives the same but for an answer without a word,
as "the" or "!", which there never has a word in common with anything.

"Answer contains label" is the measure that the Birdie paper prefers (appendix B): full credit if any
acceptable answer is present in the response. Both are normalised first, as for exact match, so that an
answer that matches exactly contains its label too.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

# (normalised answer, normalised reference) -> score between 0 and 1
_PairScore = Callable[[str, str], float]

_ARTICLE = re.compile(r"\b(?:a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """Return a text in lower case without ASCII punctuation, English articles and superfluous spaces."""
    bare = text.lower().translate(_WITHOUT_PUNCTUATION)
    return " ".join(_ARTICLE.sub(" ", bare).split())


def exact_match(answer: str, references: Sequence[str]) -> float:
    """Return 1 if the normalised answer is one of the normalised references, else 0.

    Args:
        answer: what the model wrote.
        references: the acceptable answers.
    """
    return _best(answer, references, lambda found, wanted: float(found == wanted))


def f1(answer: str, references: Sequence[str]) -> float:
    """Return the largest harmonic mean of precision and recall of words over the references.

    Words count as often as they stand in both. Arguments are those of `exact_match`.
    """
    return _best(answer, references, _f1_of_words)


def contains(answer: str, references: Sequence[str]) -> float:
    """Return 1 if any normalised reference is within the normalised answer, else 0.

    Within a longer word counts too, as with any search for text. Arguments are those of `exact_match`.
    """
    return _best(answer, references, lambda found, wanted: float(wanted in found if wanted else not found))


def contains_verbatim(answer: str, references: Sequence[str]) -> float:
    """Return 1 if any reference, as it is written but for upper and lower case, is in the answer, else 0.

    It is the measure `contains` of the tasks of the EleutherAI harness on recall (squad_completion, fda,
    swde; Arora et al., 2024). Arguments are those of `exact_match`.
    """
    return float(any(re.search(re.escape(one), answer, re.IGNORECASE) for one in references))


# The metrics of a written answer, by the names under which results have them.
ANSWER_METRICS: Mapping[str, Callable[[str, Sequence[str]], float]] = {
    metric.__name__: metric for metric in (exact_match, f1, contains, contains_verbatim)
}


def _best(answer: str, references: Sequence[str], score: _PairScore) -> float:
    found = normalize_answer(answer)
    # The script of version 2.0 leaves out references of which nothing stays, unless there is no other.
    wanted = list(filter(None, map(normalize_answer, references))) or [""]
    return max(score(found, reference) for reference in wanted)


def _f1_of_words(answer: str, reference: str) -> float:
    found, wanted = answer.split(), reference.split()
    if not found or not wanted:
        return float(found == wanted)
    common = (Counter(found) & Counter(wanted)).total()
    precision, recall = common / len(found), common / len(wanted)
    return 2 * precision * recall / (precision + recall) if common else 0.0
