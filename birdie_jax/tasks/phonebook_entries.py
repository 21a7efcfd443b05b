"""The entries of phone books: names that the US census lists, and numbers, all of a book distinct."""

import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from birdie_jax.config_errors import ConfigError

# A digit is written as this character in the format of numbers.
DIGIT = "#"
_MAX_DIGITS = 15
_NUMBER_FORMAT = re.compile(rf"{DIGIT}+(-{DIGIT}+)*")


class Entry(NamedTuple):
    """A line of a phone book.

    Attributes:
        name: the name, with which no other entry of the book begins.
        number: the number, which no other entry of the book has.
    """

    name: str
    number: str


class NameLists(NamedTuple):
    """The names of the US census of 1990.

    Attributes:
        first: the first names of women and men, 5,163 of them.
        last: the last names that one in 100,000 people has, or more: 18,839 of them.
    """

    first: tuple[str, ...]
    last: tuple[str, ...]


@lru_cache(maxsize=1)
def find_names() -> NameLists:
    """Read the lists of the package `names`.

    Raises:
        ConfigError: the package is not installed; names the extra that brings it.
    """
    try:
        import names
    except ImportError as error:
        raise ConfigError(
            "the task phonebook: needs the package names, which is not installed; install birdie-jax with "
            "its extra: pip install 'birdie-jax[phonebook]'"
        ) from error
    shares = {kind: _read_shares(Path(file)) for kind, file in names.FILES.items()}
    first = sorted(shares["first:male"].keys() | shares["first:female"].keys())
    last = sorted(name for name, share in shares["last"].items() if share > 0)
    return NameLists(tuple(first), tuple(last))


def _read_shares(file: Path) -> dict[str, float]:
    """Return the percentage of the population, in steps of 0.001, that has each name."""
    lines = (line.split() for line in file.read_text(encoding="ascii").splitlines())
    return {name.capitalize(): float(share) for name, share, *_ in lines}


def check_number_format(number_format: str, entries: int) -> str | None:
    """Return what would be allowed instead of a format of numbers, for books of `entries`; or None."""
    digits = number_format.count(DIGIT)
    if not _NUMBER_FORMAT.fullmatch(number_format) or digits > _MAX_DIGITS:
        return f"1 to {_MAX_DIGITS} times {DIGIT}, with single hyphens between them, as in ###-###-####"
    if _number_span(digits) < entries:
        return f"enough digits for max_entries = {entries} different numbers"
    return None


def draw_entries(
    rng: np.random.Generator, count: int, name_words: int, number_format: str, split: int
) -> list[Entry]:
    """Draw entries with distinct names and distinct numbers.

    Names are uniform over the lists. So are, by their ranks, those that the paper prints; in proportion to
    the population, half of 800 entries would share their last name with another.

    Args:
        rng: the source of every random choice.
        count: the number of entries.
        name_words: 2 for a first and a last name, 1 for a first name alone.
        number_format: the form of a number, with # for each digit; the first digit is not zero.
        split: 0 or 1, the parity of the first entry's name in the lists. A book that begins with the first
            entry of one split equals none that begins with that of the other.

    Returns:
        The entries; all but the first are in random order.
    """
    lists = find_names()
    words: Sequence[str] = lists.first if name_words == 1 else lists.last
    combinations = len(words) if name_words == 1 else len(lists.first) * len(words)
    chosen = rng.choice(combinations, count, replace=False)
    positions = chosen % len(words)
    _put_split_first(positions, chosen, split)
    names = [words[position] for position in positions.tolist()]
    if name_words == 2:
        firsts = (chosen // len(words)).tolist()
        names = [f"{lists.first[first]} {name}" for first, name in zip(firsts, names, strict=True)]
    digits = number_format.count(DIGIT)
    lowest = 10 ** (digits - 1)
    numbers = lowest + rng.choice(_number_span(digits), count, replace=False)
    template = re.sub(rf"{DIGIT}+", lambda part: f"{{:0{len(part[0])}d}}", number_format)
    return [
        Entry(name, number)
        for name, number in zip(names, _write_numbers(numbers, template, number_format), strict=True)
    ]


def _put_split_first(positions: np.ndarray, chosen: np.ndarray, split: int) -> None:
    """Exchange the first name for one with a list position of parity `split`, in place."""
    if positions[0] % 2 == split:
        return
    fitting = np.flatnonzero(positions % 2 == split)
    if fitting.size:
        other = int(fitting[0])
        for array in (positions, chosen):
            array[0], array[other] = array[other], array[0]
    else:
        # All have the other parity, so that no other entry has this neighbour's name.
        step = -1 if positions[0] > 0 else 1
        positions[0] += step
        chosen[0] += step


def _write_numbers(numbers: np.ndarray, template: str, number_format: str) -> list[str]:
    parts = []
    rest = numbers.copy()
    for part in reversed(number_format.split("-")):
        rest, digits = np.divmod(rest, 10 ** len(part))
        parts.append(digits.tolist())
    return [template.format(*of_number) for of_number in zip(*reversed(parts), strict=True)]


def _number_span(digits: int) -> int:
    return 9 * 10 ** (digits - 1)


def max_distinct_names(name_words: int) -> int:
    """Return how many distinct names of 1 or 2 words there are."""
    lists = find_names()
    return len(lists.first) if name_words == 1 else len(lists.first) * len(lists.last)
