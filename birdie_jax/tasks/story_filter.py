"""The filter for infilling stories: remove near duplicates, and labels that most judges reject.

The filter follows appendix C of the Birdie paper. The paper's sentence on near duplicates contradicts
itself: "a Jaccard similarity of 0.85, so when at least two stories share at least 15% of their words". The
filter uses a similarity of at least 0.85, because any two stories share 15 % of their words, such as "the"
and "she". Two of four judges are not a majority.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import chain
from typing import Any, NamedTuple

from birdie_jax.errors import DataError, shown
from birdie_jax.tasks.infilling import Infilling, parse_entries
from birdie_jax.tasks.records import read_field, read_records, read_text

# The similarity of two texts is the similarity of their sets of words, |A and B| / |A or B|. Sort the words
# of all sets in the same order. If two sets have at least c words in common, then at least k <= c of these
# are among the first |A| - c + k words of A and the first |B| - c + k words of B (Chaudhuri et al.,
# 2006, "A Primitive Operator for Similarity Joins in Data Cleaning"; for k > 1 Wang et al., 2012, "Can
# We Beat the Prefix Filtering?"). Sets of similarity at least t have c >= t max(|A|, |B|). With rare
# words first, few pairs of sets share k such words, and the filter compares only these pairs. MinHash
# would miss some pairs, and its result would depend on the hashes.

_WORD = re.compile(r"\w+")

# The k above. Stories that share one rare word by chance seldom share three.
_COMMON_IN_PREFIX = 3


def word_set(text: str) -> frozenset[str]:
    """Return the set of a text's words: runs of letters, digits and underscores, case-folded."""
    return frozenset(_WORD.findall(text.casefold()))


def similarity(words: frozenset[str], others: frozenset[str]) -> float:
    """Return the Jaccard similarity of two sets; 1 if both are empty."""
    common = len(words & others)
    either = len(words) + len(others) - common
    return common / either if either else 1.0


def find_near_duplicates(texts: Sequence[str], threshold: float) -> dict[int, int]:
    """Return the texts that are near duplicates of an earlier text.

    The first of several near duplicates is kept. So the similarity of any two kept texts is below
    `threshold`.

    Args:
        texts: the texts.
        threshold: the smallest similarity of near duplicates, more than 0 and at most 1.

    Returns:
        A mapping from the index of each near duplicate to the index of the first kept text that is similar.

    Raises:
        ValueError: the threshold is out of range.
    """
    if not 0 < threshold <= 1:
        raise ValueError(f"threshold: found {threshold}; allowed: more than 0 and at most 1")
    # Use the decimal value: in floating point ceil(0.28 * 25) is 8, which would miss pairs.
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
    # Compare with the threshold in integers.
    if fewer * threshold.denominator < more * threshold.numerator:
        return False
    common = len(words & others)
    return common * threshold.denominator >= (fewer + more - common) * threshold.numerator


SIMILARITY = 0.85
_SHOWN_NAMES = 5


class Story(NamedTuple):
    """A story to filter.

    Attributes:
        name: the identifier of the story.
        text: the entries except the blank one, to search for near duplicates.
        record: the record of the story, with the name as the field `id`.
    """

    name: str
    text: str
    record: dict[str, Any]


class Vote(NamedTuple):
    """A judge's vote on a story.

    Attributes:
        story: the name of the story.
        judge: the name of the judge.
        agrees: whether the judge considers the label the best choice.
    """

    story: str
    judge: str
    agrees: bool


def read_stories(path: str) -> list[Story]:
    """Return the stories of a file for the task `infilling`.

    Raises:
        DataError: the file cannot be read, or a record is invalid.
    """
    task = Infilling(path=path)

    def parse(record: Mapping[str, Any], where: str) -> Story:
        name = task.parse_record(record, where).name
        entries = parse_entries(record, where)
        return Story(name, "\n".join(filter(None, entries)), {"id": name, **record})

    return read_records(path, parse, name_of=lambda story: story.name)[0]


def read_votes(path: str) -> list[Vote]:
    """Return the votes of a file: records with the fields `id`, `judge` and `vote`, true or false.

    Raises:
        DataError: the file cannot be read, or a record is not a vote.
    """
    return read_records(path, _parse_vote)[0]


def has_majority(stories: Sequence[Story], votes: Sequence[Vote], path: str) -> list[bool]:
    """Return for each story whether more than half of the judges agree with its label.

    Args:
        stories: the stories; votes on other stories do not count.
        votes: the votes of all judges.
        path: the file of the votes, for error messages.

    Raises:
        DataError: a judge voted twice on a story, or did not vote on one of `stories`.
    """
    judges = sorted({vote.judge for vote in votes})
    given = Counter((vote.story, vote.judge) for vote in votes)
    twice = [f"{judge} on {shown(name)}" for (name, judge), count in given.items() if count > 1]
    if twice:
        raise DataError(
            f"{path}: found two votes of {_first(twice)}; allowed: one vote for each judge and story"
        )
    missing = [
        f"{judge} on {shown(story.name)}"
        for story in stories
        for judge in judges
        if (story.name, judge) not in given
    ]
    if missing:
        raise DataError(
            f"{path}: found no vote of {_first(missing)}; allowed: a vote of each of {len(judges)} judges"
        )
    agreeing: dict[str, int] = defaultdict(int)
    for vote in votes:
        agreeing[vote.story] += vote.agrees
    return [2 * agreeing[story.name] > len(judges) for story in stories]


def filter_stories(
    stories: Sequence[Story], votes: Sequence[Vote] | None, votes_path: str, threshold: float
) -> tuple[list[Story], list[str]]:
    """Remove near duplicates and stories without a majority of votes.

    Args:
        stories: all stories.
        votes: the votes of the judges; None = keep all labels.
        votes_path: the file of the votes, for error messages.
        threshold: the smallest similarity of near duplicates, more than 0 and at most 1.

    Returns:
        The kept stories in order, and lines of text with the counts.

    Raises:
        DataError: as `has_majority`; or a vote is on an unknown story.
        ValueError: the threshold is out of range.
    """
    duplicates = find_near_duplicates([story.text for story in stories], threshold)
    distinct = [story for number, story in enumerate(stories) if number not in duplicates]
    lines = [f"stories: {len(stories):,}", f"near duplicates left out: {len(duplicates):,}"]
    if votes is None:
        return distinct, [*lines, f"kept: {len(distinct):,}"]
    known = {story.name for story in stories}
    unknown = sorted({vote.story for vote in votes} - known)
    if unknown:
        raise DataError(
            f"{votes_path}: found votes on {_first([shown(name) for name in unknown])}, which is no story "
            "of --input; allowed: the ids of stories"
        )
    decisions = has_majority(distinct, votes, votes_path)
    kept = [story for story, keeps in zip(distinct, decisions, strict=True) if keeps]
    lines.append(f"without a majority of {len({vote.judge for vote in votes})} judges: ")
    lines[-1] += f"{len(distinct) - len(kept):,}"
    return kept, [*lines, f"kept: {len(kept):,}"]


def _first(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN_NAMES:,} more" if len(names) > _SHOWN_NAMES else ""
    return ", ".join(names[:_SHOWN_NAMES]) + more


def _parse_vote(record: Mapping[str, Any], where: str) -> Vote:
    name = str(read_field(record, "id", str | int, where))
    return Vote(name, read_text(record, "judge", where), read_field(record, "vote", bool, where))
