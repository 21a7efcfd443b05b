"""Which stories with a blank entry are kept: near duplicates go, and labels that judges do not share.

Appendix C of the Birdie paper. Its sentence on near duplicates contradicts itself: "a Jaccard similarity
of 0.85, so when at least two stories share at least 15% of their words". The number with a definition is
taken, a similarity of at least 0.85: any two stories share 15 % of their words, as "the" and "she". Two of
four judges are no majority.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from birdie_jax.storage import shown
from birdie_jax.tasks.infilling import Infilling, parse_entries
from birdie_jax.tasks.near_duplicates import find_near_duplicates
from birdie_jax.tasks.records import read_field, read_records, read_text
from birdie_jax.text import DataError

SIMILARITY = 0.85
_SHOWN_NAMES = 5


class Story(NamedTuple):
    """A story that may be kept.

    Attributes:
        name: its identifier.
        text: its entries without the blank one, by which near duplicates are found.
        record: its record, with its name as the field `id`.
    """

    name: str
    text: str
    record: dict[str, Any]


class Vote(NamedTuple):
    """What a judge says of a story.

    Attributes:
        story: the name of the story.
        judge: the name of the judge.
        agrees: whether the label is the best choice.
    """

    story: str
    judge: str
    agrees: bool


def read_stories(path: str) -> list[Story]:
    """Return the stories of a file of the task `infilling`.

    Raises:
        DataError: the file cannot be read, or a record of it cannot be asked.
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
        DataError: the file cannot be read, or a record of it is no vote.
    """
    return read_records(path, _parse_vote)[0]


def has_majority(stories: Sequence[Story], votes: Sequence[Vote], path: str) -> list[bool]:
    """Tell for each story whether more than half of the judges agree with its label.

    Args:
        stories: the stories that are asked for; votes on others do not count.
        votes: the votes of all judges.
        path: the file of the votes, for messages.

    Raises:
        DataError: a judge has voted twice on a story, or not on one of `stories`.
    """
    judges = sorted({vote.judge for vote in votes})
    given = Counter((vote.story, vote.judge) for vote in votes)
    twice = [f"{judge} on {shown(name)}" for (name, judge), count in given.items() if count > 1]
    if twice:
        raise DataError(f"{path}: found two votes of {_first(twice)}; allowed: one of a judge on a story")
    missing = [
        f"{judge} on {shown(story.name)}"
        for story in stories
        for judge in judges
        if (story.name, judge) not in given
    ]
    if missing:
        raise DataError(
            f"{path}: found no vote of {_first(missing)}; allowed: one of each of {len(judges)} judges"
        )
    agreeing: dict[str, int] = defaultdict(int)
    for vote in votes:
        agreeing[vote.story] += vote.agrees
    return [2 * agreeing[story.name] > len(judges) for story in stories]


def filter_stories(
    stories: Sequence[Story], votes: Sequence[Vote] | None, votes_path: str, threshold: float
) -> tuple[list[Story], list[str]]:
    """Return the stories that are kept, and what happened to the others.

    Args:
        stories: all stories.
        votes: the votes of the judges; None = all labels are taken.
        votes_path: the file of the votes, for messages.
        threshold: the similarity from which on stories are near duplicates.

    Returns:
        The kept stories in their order, and lines with the counts.

    Raises:
        DataError: as `has_majority`; or a vote is on no story.
        ValueError: the threshold is 0.
    """
    duplicates = find_near_duplicates([story.text for story in stories], threshold)
    distinct = [story for number, story in enumerate(stories) if number not in duplicates]
    told = [f"stories: {len(stories):,}", f"near duplicates left out: {len(duplicates):,}"]
    if votes is None:
        return distinct, [*told, f"kept: {len(distinct):,}"]
    known = {story.name for story in stories}
    unknown = sorted({vote.story for vote in votes} - known)
    if unknown:
        raise DataError(
            f"{votes_path}: found votes on {_first([shown(name) for name in unknown])}, which is no story "
            "of --input; allowed: the ids of stories"
        )
    decisions = has_majority(distinct, votes, votes_path)
    kept = [story for story, keeps in zip(distinct, decisions, strict=True) if keeps]
    told.append(f"without a majority of {len({vote.judge for vote in votes})} judges: ")
    told[-1] += f"{len(distinct) - len(kept):,}"
    return kept, [*told, f"kept: {len(kept):,}"]


def _first(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN_NAMES:,} more" if len(names) > _SHOWN_NAMES else ""
    return ", ".join(names[:_SHOWN_NAMES]) + more


def _parse_vote(record: Mapping[str, Any], where: str) -> Vote:
    name = str(read_field(record, "id", str | int, where))
    return Vote(name, read_text(record, "judge", where), read_field(record, "vote", bool, where))
