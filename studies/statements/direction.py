"""Statements about when reading direction matters."""

from collections.abc import Iterable, Iterator

import numpy as np

from studies.retrieval.direction import AFTER, BEFORE, answers_by_arm, deciding_score, differences
from studies.statements.figures import Gap, Records, ends, gap, word
from studies.statements.statement import Statement, on

_BIRDIE = on("docs/what_birdie_does.md")
_README = on("README.md")
_RETRIEVAL = on("docs/measurements/retrieval.md")

_BOTH = "both"
_PLACES = {AFTER: "after the book", BEFORE: "before it", _BOTH: "on both sides"}
_CONDITIONS = ("B128", "C128", "B64", "C64")


class _Found:
    """The answers of every condition, and how conditions compare."""

    def __init__(self, records: Records) -> None:
        self.answers = answers_by_arm(records["retrieval", "direction"])
        self.runs = sum(map(len, self.answers.values()))

    def scores(self, condition: str, place: str) -> list[float]:
        return [deciding_score(answers, place) for answers in self.answers[condition].values()]

    def mean(self, condition: str, place: str) -> float:
        return float(np.mean(self.scores(condition, place)))

    def differences(self, first: str, second: str, place: str) -> list[float]:
        return differences(self.answers, first, second, place)

    def gap(self, first: str, second: str, place: str) -> Gap:
        return gap(self.differences(first, second, place))

    def interaction(self, first: str, second: str) -> Gap:
        places = (self.differences(first, second, place) for place in (AFTER, BEFORE))
        return gap([after - before for after, before in zip(*places, strict=True)])

    def two_entries(self, conditions: Iterable[str], place: str) -> list[float]:
        return [
            answers[place]["entries_2"]
            for condition in conditions
            for answers in self.answers[condition].values()
        ]


def statements(records: Records) -> Iterator[Statement]:
    """Yield the statements on all pages."""
    found = _Found(records)
    seeds = word(len(found.scores("B128", AFTER)))
    interaction = found.interaction("B128", "C64")
    after, before = (found.gap("B128", "C64", place) for place in (AFTER, BEFORE))
    yield _RETRIEVAL("All {} runs are done.", found.runs)
    yield _RETRIEVAL(
        "The predicted interaction is there. B128 is above C64 by {1.mean:.0f} points with the question "
        "after the book, and by {2.mean:.0f} with the question before it. The difference of the two is "
        "{0.mean:.0f} points ({0:.0f}, {3} seeds).",
        *(interaction, after, before, seeds),
    )
    yield _RETRIEVAL(
        "Question after the book: direction decides. B128 answers {0:.0f} % and C64 {1:.0f} %. The "
        "difference is {2.mean:.0f} points ({2:.0f}), and at least 20 were predicted. C128 has twice as "
        "many forward channels as B128, and answers {3:.0f} %. On two entries the causal models answer "
        "{4:.0f} to {5:.0f} %: they do not learn to look up in 4,000 steps, so their figures do not "
        "measure what their state can hold.",
        *(found.mean("B128", AFTER), found.mean("C64", AFTER), after, found.mean("C128", AFTER)),
        *ends(found.two_entries(("C64", "C128"), AFTER)),
    )
    yield _RETRIEVAL(
        "Question before the book: the prediction fails, and no difference is shown. The mean is "
        "{0.mean:.0f} points, and at most 5 were predicted. Its interval is wide ({0:.0f}): B128 answers "
        "{1:.0f} to {2:.0f} % by seed, and C64 {3:.0f} to {4:.0f} %.",
        *(before, *ends(found.scores("B128", BEFORE)), *ends(found.scores("C64", BEFORE))),
    )
    small = found.gap("B64", "C64", BEFORE)
    yield _RETRIEVAL(
        "A state of 64 channels is too small to divide. With the question before the book, B64 answers "
        "{0:.0f} to {1:.0f} %, {2:.0f} points less than C64 ({3:.0f} to {4:.0f}). With the question after "
        "the book it answers {5:.0f} to {6:.0f} %.",
        *(*ends(found.scores("B64", BEFORE)), -small.mean, -small.high, -small.low),
        *ends(found.scores("B64", AFTER)),
    )
    yield _RETRIEVAL(
        "Question on both sides: B128 answers {0:.0f} to {1:.0f} % by seed, and the causal models "
        "{2:.0f} to {3:.0f} %. B128 is above C128 by {4.mean:.0f} points ({4:.0f}); from C64 no difference "
        "is shown ({5.mean:.0f}; {5:.0f}).",
        *ends(found.scores("B128", _BOTH)),
        *ends([*found.scores("C64", _BOTH), *found.scores("C128", _BOTH)]),
        *(found.gap("B128", condition, _BOTH) for condition in ("C128", "C64")),
    )
    for place, title in _PLACES.items():
        means = [found.mean(condition, place) for condition in _CONDITIONS]
        yield _BIRDIE("| {} | {:.0f} % | {:.0f} % | {:.0f} % | {:.0f} % |", title, *means)
    yield _BIRDIE(
        "With the question after the book, 128 channels in two directions are {0.mean:.0f} points above 64 "
        "that read forwards ({0:.0f}). With the question before it, no difference is shown: {1.mean:.0f} "
        "points ({1:.0f}).",
        *(after, before),
    )
    yield _README(
        "With the question after a phone book, small models of both directions answer {:.0f} % of the "
        "questions, and causal ones {:.0f} %",
        *(found.mean("B128", AFTER), found.mean("C128", AFTER)),
    )
