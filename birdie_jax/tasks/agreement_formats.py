"""Readers of published files with pairs of sentences that differ in one word."""

import csv
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from birdie_jax.errors import DataError, shown
from birdie_jax.storage.json_text import parse_json
from birdie_jax.tasks.records import (
    check_text,
    check_unicode,
    decode_contents,
    decode_line,
    read_contents,
    read_field,
    read_lines,
)

_NUMBERS = re.compile(r"(singular|plural)_(singular|plural)")
_MASKED = re.compile(r"\*\*\*mask\*\*\*", re.IGNORECASE)
# The columns that the reader uses from the table of Gulordava et al., and the classes of its rows.
_COLUMNS = frozenset({"pattern", "form", "class", "n_attr", "len_prefix", "sent"})
_RIGHT, _WRONG = "correct", "wrong"
_Row = Mapping[str, str]


class MinimalPair(NamedTuple):
    """A sentence, and two forms of one of its words.

    Attributes:
        before: the text before the word, without the space between them.
        good: the right form.
        bad: the wrong form.
        after: the text after the word, with the space between them if there is one.
        condition: the construction of the sentence; empty = the file does not name it.
        attractors: how many nouns between subject and verb differ from the subject in number; None =
            unknown.
    """

    before: str
    good: str
    bad: str
    after: str
    condition: str = ""
    attractors: int | None = None


# (the location of a record, its pair or its error)
Entry = tuple[str, MinimalPair | DataError]


def read_pairs(path: str, form: str) -> Iterator[Entry]:
    """Yield the pairs of a file in order.

    Args:
        path: the file, or its URL.
        form: the format of the file, a key of `FORMATS`.

    Raises:
        DataError: the file cannot be read, or does not have this format.
    """
    return FORMATS[form](path, read_contents(path))


def _choices(path: str, contents: bytes) -> Iterator[Entry]:
    """Read JSON of BIG-bench: the start of each sentence, and two ends with the scores 1 and 0."""
    text = decode_contents(contents, path)
    try:
        content = parse_json(text)
    except ValueError as error:
        raise DataError(f"{path}: is not JSON that can be read: {error}") from error
    if not isinstance(content, Mapping):
        raise DataError(f"{path}: found {shown(content, 80)}; allowed: a JSON object")
    check_unicode(content, path)
    for number, record in enumerate(read_field(content, "examples", list[Any], path)):
        where = f"{path}: examples[{number}]"
        yield where, _caught(_parse_choices, record, where)


def _parse_choices(record: Any, where: str) -> MinimalPair:
    if not isinstance(record, Mapping):
        raise DataError(f"{where}: found {shown(record, 80)}; allowed: a JSON object")
    before = read_field(record, "input", str, where)
    scores = read_field(record, "target_scores", dict[str, int], where)
    if sorted(scores.values()) != [0, 1]:
        raise DataError(
            f"{where}: target_scores: found {shown(list(scores.values()))}; allowed: 1 for one end of the "
            "sentence, 0 for another"
        )
    good, bad = sorted(scores, key=lambda end: -scores[end])
    (good, good_rest), (bad, bad_rest) = (_first_word(end) for end in (good, bad))
    if good_rest != bad_rest:
        raise DataError(
            f"{where}: target_scores: found ends that differ in more than their first word; allowed: ends "
            "that differ in it alone"
        )
    condition = read_field(record, "comment", str, where, default="")
    numbers = _NUMBERS.fullmatch(condition)
    attractors = None if numbers is None else int(numbers[1] != numbers[2])
    return MinimalPair(before.rstrip(), good, bad, good_rest, condition, attractors)


def _first_word(text: str) -> tuple[str, str]:
    """Return the first word of a text without trailing punctuation, and the rest of the text."""
    word = re.match(r"\S*\w|\S*", text.lstrip())
    assert word is not None  # the pattern also matches an empty text
    return word[0], text.lstrip()[word.end() :]


def _gulordava(path: str, contents: bytes) -> Iterator[Entry]:
    """Read the table of Gulordava et al. 2018: a row for the right form, then a row for the wrong form."""
    head, *lines = read_lines(contents, path) or [(f"{path}: line 1", b"")]
    columns = _cells(head[1], head[0])
    if missing := sorted(_COLUMNS.difference(columns)):
        raise DataError(f"{path}: has no columns {', '.join(missing)}; allowed: a table that has them")
    rows = [_parse_row(columns, line, where) for where, line in lines]
    number = 0
    while number < len(rows):
        first, second = rows[number], rows[number + 1] if number + 1 < len(rows) else None
        # If a row has no partner, later rows still pair correctly.
        is_alone = second is None or _class(second) == _RIGHT or _class(first) == _WRONG
        pair = (first, None if is_alone else second)
        yield lines[number][0], _caught(_parse_rows, pair, lines[number][0])
        number += 1 if is_alone else 2


def _parse_row(columns: Sequence[str], line: bytes, where: str) -> _Row | DataError:
    """Return a row as a mapping from columns to cells, or the row's error."""
    try:
        cells = _cells(line, where)
    except DataError as error:
        return error
    if len(cells) != len(columns):
        return DataError(
            f"{where}: found {len(cells)} columns; allowed: {len(columns)}: {', '.join(columns)}"
        )
    return dict(zip(columns, cells, strict=True))


def _cells(line: bytes, where: str) -> list[str]:
    """Return the cells of a line. A cell that contains quotation marks is quoted."""
    text = decode_line(line, where)
    try:
        return next(csv.reader([text], delimiter="\t", strict=True), [])
    except csv.Error as error:
        raise DataError(
            f"{where}: found {shown(text, 80)} ({error}); allowed: columns separated by tabs, and closed "
            "quotation marks"
        ) from error


def _class(row: _Row | DataError) -> str | None:
    return None if isinstance(row, DataError) else row["class"]


def _parse_rows(rows: tuple[_Row | DataError, _Row | DataError | None], where: str) -> MinimalPair:
    right, wrong = rows
    if isinstance(right, DataError):
        raise right
    if isinstance(wrong, DataError):
        raise wrong
    classes = [right["class"], None if wrong is None else wrong["class"]]
    if wrong is None or classes != [_RIGHT, _WRONG] or right["sent"] != wrong["sent"]:
        raise DataError(
            f"{where}: found rows of the classes {shown(classes)}; allowed: a correct row and then a wrong "
            "row of the same sentence"
        )
    words = right["sent"].removesuffix("<eos>").split()
    place = read_field({"len_prefix": _number(right["len_prefix"])}, "len_prefix", int, where)
    if not 0 <= place < len(words):
        raise DataError(f"{where}: len_prefix: found {place}; allowed: 0 to {len(words) - 1}")
    attractors = read_field({"n_attr": _number(right["n_attr"])}, "n_attr", int, where)
    before, after = _around(words, place)
    return MinimalPair(before, right["form"], wrong["form"], after, right["pattern"], attractors)


def _linzen(path: str, contents: bytes) -> Iterator[Entry]:
    """Read lines with attractors, the sentence, the sentence with ***mask***, and both forms."""
    for where, line in read_lines(contents, path):
        yield where, _caught(_parse_masked, line, where)


def _parse_masked(line: bytes, where: str) -> MinimalPair:
    fields = decode_line(line, where).split("\t")
    if len(fields) != 5 or len(_MASKED.findall(fields[2])) != 1:
        raise DataError(
            f"{where}: found {len(fields)} fields; allowed: 5, separated by tabs, the third a sentence "
            "with ***mask*** once"
        )
    attractors = read_field({"attractors": _number(fields[0])}, "attractors", int, where)
    before, after = _MASKED.split(fields[2])
    return MinimalPair(before.rstrip(), fields[3].strip(), fields[4].strip(), after, "", attractors)


def _marvin_linzen(path: str, contents: bytes) -> Iterator[Entry]:
    """Read lines that begin with the construction and end with the right and the wrong sentence."""
    for where, line in read_lines(contents, path):
        yield where, _caught(_parse_sentences, line, where)


def _parse_sentences(line: bytes, where: str) -> MinimalPair:
    fields = decode_line(line, where).split("\t")
    if len(fields) < 3:
        raise DataError(f"{where}: found {len(fields)} fields; allowed: at least 3, separated by tabs")
    good, bad = fields[-2].split(), fields[-1].split()
    differing = [place for place, words in enumerate(zip(good, bad, strict=False)) if len(set(words)) == 2]
    if len(good) != len(bad) or len(differing) != 1:
        raise DataError(
            f"{where}: found sentences of {len(good)} and {len(bad)} words that differ in "
            f"{len(differing)}; allowed: sentences that differ in one word"
        )
    (place,) = differing
    before, after = _around(good, place)
    return MinimalPair(before, good[place], bad[place], after, fields[0])


def _around(words: list[str], place: int) -> tuple[str, str]:
    """Return the text before a word, and the text after it."""
    return " ".join(words[:place]), "".join(f" {word}" for word in words[place + 1 :])


def _number(text: Any) -> Any:
    """Return digits as an integer, and anything else unchanged. The caller checks the type."""
    return int(text) if isinstance(text, str) and re.fullmatch(r"\d{1,9}", text) else text


def _caught(parse: Callable[[Any, str], MinimalPair], record: Any, where: str) -> MinimalPair | DataError:
    """Return the checked pair of a record, or the record's error."""
    try:
        pair = parse(record, where)
        for name in ("good", "bad"):
            check_text(getattr(pair, name), f"{where}: {name}")
        if pair.good == pair.bad:
            raise DataError(f"{where}: found the form {shown(pair.good)} twice; allowed: two forms")
    except DataError as error:
        return error
    return pair


FORMATS: Mapping[str, Callable[[str, bytes], Iterator[Entry]]] = {
    "choices": _choices,
    "gulordava": _gulordava,
    "linzen": _linzen,
    "marvin_linzen": _marvin_linzen,
}
