"""A statement is a piece of a page's prose with format fields in place of its figures.

It holds if the page has the piece with the figures of the recorded results. Line breaks, emphasis and the
targets of links do not count. Each figure of a covered section has to be in a field of a statement that
holds, or in a setting (`settings.py`).
"""

import re
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

_FIGURE = re.compile(r"(?<![\w.])(?<![A-Za-z]-)\d+(?:[.,]\d+)*")
_GENERATED_OR_CODE = re.compile(r"<!-- begin .*?<!-- end [^>]*-->|```.*?```", re.DOTALL)
_PICTURE, _LINK = re.compile(r"!\[[^]]*\]\([^)]*\)"), re.compile(r"\[([^]]*)\]\([^)]*\)")
# A field's text is between two of these.
_MARK = "\0"
_BEFORE, _AFTER = 40, 20


class Statement(NamedTuple):
    """A piece of prose and its figures.

    Attributes:
        page: the page, as seen from the repository.
        text: the piece in the form of `str.format`.
        figures: what its fields show.
    """

    page: str
    text: str
    figures: tuple[Any, ...]

    @property
    def pieces(self) -> list[str]:
        """The formatted text in pieces; every second one is a field."""
        return " ".join(_MarkedFields().format(self.text, *self.figures).split()).split(_MARK)


def on(page: str) -> Callable[..., Statement]:
    """Return a function (text, *figures) that makes a statement on a page."""
    return lambda text, *figures: Statement(page, text, figures)


class _MarkedFields(string.Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        return f"{_MARK}{super().format_field(value, format_spec)}{_MARK}"


class Setting(NamedTuple):
    """Figures of prose that are no results, or have no record.

    Attributes:
        pattern: a regular expression of the figures with the words that identify them.
        reason: why no statement computes them.
    """

    pattern: str
    reason: str


def prose(markdown: str) -> str:
    """Return prose in one line, without emphasis, pictures, link targets, code and generated parts."""
    text = _LINK.sub(r"\1", _PICTURE.sub("", _GENERATED_OR_CODE.sub("", markdown)))
    return " ".join(text.replace("**", "").split())


def section_of(markdown: str, heading: str) -> str | None:
    """Return the text from a heading to the next one, without generated parts; None if it is missing.

    The heading "" is the whole page.
    """
    text = _GENERATED_OR_CODE.sub("", markdown)
    if not heading:
        return text
    _, found, rest = f"\n{text}".partition(f"\n{heading}\n")
    return rest.partition("\n#")[0] if found else None


def wrong(statements: Sequence[Statement], pages: Mapping[str, str]) -> Iterator[str]:
    """Yield each statement that its page does not have, as computed from the records."""
    texts = {page: prose(markdown) for page, markdown in pages.items()}
    for one in statements:
        if (text := "".join(one.pieces)) not in texts[one.page]:
            yield f"{one.page}: the records give: {text}"


def uncovered(text: str, statements: Sequence[Statement], settings: Sequence[Setting]) -> Iterator[str]:
    """Yield each figure of the prose of a section that is in no field and no setting, with its context."""
    covered = [match.span() for one in settings for match in re.finditer(one.pattern, text)]
    for one in statements:
        parts = [re.escape(piece) for piece in one.pieces]
        pattern = "".join(f"({part})" if place % 2 else part for place, part in enumerate(parts))
        for match in re.finditer(pattern, text):
            covered += [match.span(number + 1) for number in range(len(parts) // 2)]
    for figure in _FIGURE.finditer(text):
        start, end = figure.span()
        if not any(first <= start and end <= last for first, last in covered):
            context = f"{text[max(0, start - _BEFORE) : start]}[{figure[0]}]{text[end : end + _AFTER]}"
            yield f"{figure[0]} is in no statement: ... {context} ..."
