"""Phone books as text, in the format of the Birdie paper's Figure 6, that fit a number of positions."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from names import FILES

from birdie_jax.objectives import Example
from birdie_jax.tasks.training_examples import training_example
from birdie_jax.text import Tokenizer

# The placeholder for a digit in the format of numbers.
DIGIT = "#"
_MAX_DIGITS = 15
_NUMBER_FORMAT = re.compile(rf"{DIGIT}+(-{DIGIT}+)*")


class Entry(NamedTuple):
    """A line of a phone book.

    Attributes:
        name: the name, unique in the book.
        number: the number, unique in the book.
    """

    name: str
    number: str


class NameLists(NamedTuple):
    """The names of the US census of 1990.

    Attributes:
        first: the 5,163 first names of women and men.
        last: the 18,839 last names that at least one in 100,000 people has.
    """

    first: tuple[str, ...]
    last: tuple[str, ...]


@lru_cache(maxsize=1)
def find_names() -> NameLists:
    """Return the lists of the package `names`."""
    shares = {kind: _read_shares(Path(file)) for kind, file in FILES.items()}
    first = sorted(shares["first:male"].keys() | shares["first:female"].keys())
    last = sorted(name for name, share in shares["last"].items() if share > 0)
    return NameLists(tuple(first), tuple(last))


def _read_shares(file: Path) -> dict[str, float]:
    """Return the percentage of the population with each name, in steps of 0.001."""
    lines = (line.split() for line in file.read_text(encoding="ascii").splitlines())
    return {name.capitalize(): float(share) for name, share, *_ in lines}


def check_number_format(number_format: str, entries: int) -> str | None:
    """Return the allowed formats if `number_format` is invalid for this many entries; else None."""
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

    Names are uniform over the lists. The ranks of the names that the paper prints are also uniform. With
    names in proportion to the population, half of 800 entries would share their last name.

    Args:
        rng: the random generator.
        count: the number of entries.
        name_words: 2 = first and last name, 1 = first name.
        number_format: the format of a number, with # for each digit; the first digit is not zero.
        split: 0 or 1, the parity of the first entry's name in its list. So books of different splits begin
            with different entries.

    Returns:
        The entries. All except the first are in random order.
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
    """Move a name whose list position has parity `split` to the front, in place."""
    if positions[0] % 2 == split:
        return
    fitting = np.flatnonzero(positions % 2 == split)
    if fitting.size:
        other = int(fitting[0])
        for array in (positions, chosen):
            array[0], array[other] = array[other], array[0]
    else:
        # All names have the other parity, so the neighbouring name in the list is unused.
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
    """Return the number of distinct names of 1 or 2 words."""
    lists = find_names()
    return len(lists.first) if name_words == 1 else len(lists.first) * len(lists.last)


_HEADING = "Phonebook:"
_SAMPLED_ENTRIES = 256


@dataclass(frozen=True)
class BookForm:
    """The format of books.

    Attributes:
        name_words: the number of words of a name: 2, or 1 for first names.
        number_format: the format of a number, with # for each digit.
        question_place: the place of the question: "before" the book, "after" it, or "both".
        question_form: "sentence" = as in Figure 6; "names" = the requested names and a question mark, and a
            book without heading.
    """

    name_words: int
    number_format: str
    question_place: str
    question_form: str = "sentence"

    def answer_characters(self, numbers: int) -> int:
        """Return the number of characters of an answer of `numbers` numbers."""
        return len(self.number_format) * numbers + len(", ") * (numbers - 1)


class Book(NamedTuple):
    """A phone book and its question.

    Attributes:
        entries: all entries in order.
        asked: the requested entries, in the order of the question.
    """

    entries: tuple[Entry, ...]
    asked: tuple[Entry, ...]

    def prompt(self, form: BookForm) -> str:
        """Return the book with its question.

        Figure 6 requests 32 numbers. A sentence that requests one number uses the singular.
        """
        names = join_names([entry.name for entry in self.asked])
        lines = [f"{name}: {number}" for name, number in self.entries]
        if form.question_form == "names":
            before = after = f"{names}?"
        else:
            what, them = (
                ("are the phone numbers", "them") if len(self.asked) > 1 else ("is the phone number", "it")
            )
            before, after = (
                f"What {what} for {names}? Find {them} in the phonebook {where}."
                for where in ("below", "above")
            )
            lines.insert(0, _HEADING)
        parts = ["\n".join(lines)] if lines else []
        if form.question_place != "after":
            parts.insert(0, before)
        if form.question_place != "before":
            parts.append(after)
        return "\n\n".join(parts)

    def answer(self) -> str:
        """Return the requested numbers, in the order of the question."""
        return ", ".join(entry.number for entry in self.asked)


def join_names(names: Sequence[str]) -> str:
    """Join names for a sentence: `A`, `A and B`, `A, B, and C`."""
    if len(names) < 3:
        return " and ".join(names)
    return f"{', '.join(names[:-1])}, and {names[-1]}"


def read_numbers(prompt: str) -> set[str]:
    """Return the numbers of all entries of the book in `prompt`."""
    return {line.rpartition(": ")[2] for line in prompt.split("\n") if ": " in line}


class FittedBook(NamedTuple):
    """A book that fits a number of positions.

    Attributes:
        book: the book with its question.
        example: the training example of prompt and answer.
    """

    book: Book
    example: Example


class BookMaker:
    """Makes random books that fit a number of positions, for a tokenizer.

    Attributes:
        form: the format of the books.
        mean_entry: the mean number of tokens of an entry, with its line end.
        mean_asked: the mean number of tokens that a requested name adds to the prompt, in all copies of the
            question.
        mean_number: the mean number of tokens of a number in the answer.
        mean_frame: the approximate number of tokens of a prompt without entries and names.
    """

    def __init__(self, tokenizer: Tokenizer, form: BookForm):
        """Measure the mean numbers of tokens on fixed entries."""
        self.form = form
        self._tokenizer = tokenizer
        self._no_line = len(tokenizer.encode(_HEADING))
        rng = np.random.default_rng(0)
        entries = draw_entries(rng, _SAMPLED_ENTRIES, form.name_words, form.number_format, 0)
        self.mean_entry = float(self._line_costs(entries).mean())
        few, many = (self._without_entries(entries[:count]) for count in (2, 34))
        self.mean_asked = (len(many.context) - len(few.context)) / 32
        self.mean_number = (len(many.target) - len(few.target)) / 32
        self.mean_frame = len(few.context) - 2 * self.mean_asked

    def mean_positions(self, numbers: int, entries: int, answer_positions: int | None = None) -> float:
        """Return the approximate number of positions of a book with its question and answer.

        Args:
            numbers: the number of requested entries.
            entries: the number of all entries.
            answer_positions: the positions reserved for the answer; None = its tokens and END.
        """
        answer = 1 + numbers * self.mean_number if answer_positions is None else answer_positions
        return self.mean_frame + numbers * self.mean_asked + entries * self.mean_entry + answer

    def make(
        self,
        rng: np.random.Generator,
        split: int,
        numbers: int,
        entries: int,
        *,
        max_positions: int,
        answer_positions: int | None = None,
    ) -> FittedBook | None:
        """Return a random book.

        Args:
            rng: the random generator.
            split: 0 or 1; no book of one split equals a book of the other.
            numbers: the number of requested entries.
            entries: the largest number of entries. The book has fewer if they do not fit.
            max_positions: the largest number of positions of prompt and answer.
            answer_positions: the positions reserved for the answer; None = its tokens and END.

        Returns:
            The book, or None if the requested entries do not fit.
        """
        form = self.form
        # Draw only as many entries as may fit: tokenizing them takes most of the time.
        of_use = int(max_positions / self.mean_entry * 1.25) + 8
        count = max(numbers, min(entries, of_use))
        drawn = draw_entries(rng, count, form.name_words, form.number_format, split)
        costs = self._line_costs(drawn)
        chosen = rng.permutation(count)[:numbers]
        asked = tuple(drawn[index] for index in chosen.tolist())
        # Keep the first entry, which distinguishes the splits, and the requested entries.
        needed = np.union1d(chosen, [0])
        others = np.setdiff1d(np.arange(count), needed)
        frame = self._without_entries(asked)
        kept = len(frame.target) if answer_positions is None else answer_positions
        room = max_positions - len(frame.context) - kept - int(costs[needed].sum())
        fitting = int(np.searchsorted(costs[others].cumsum(), room, side="right"))
        while room >= 0:
            rest = np.concatenate([needed[1:], others[:fitting]])
            order = [0, *rng.permutation(rest).tolist()]
            book = Book(tuple(drawn[index] for index in order), asked)
            example = training_example(book.prompt(form), book.answer(), self._tokenizer)
            excess = len(example.context) + kept - max_positions
            if excess <= 0:
                return FittedBook(book, example)
            # A tokenizer may merge the end of a line with the beginning of the next.
            if fitting == 0:
                break
            fitting = max(0, fitting - 1 - int(excess / self.mean_entry))
        return None

    def _line_costs(self, entries: Sequence[Entry]) -> np.ndarray:
        """Return the number of tokens that each entry adds to a text: int64 [entries]."""
        lines = [f"{_HEADING}\n{name}: {number}" for name, number in entries]
        tokens = self._tokenizer.encode_batch(lines)
        return np.array([len(line) for line in tokens], np.int64) - self._no_line

    def _without_entries(self, asked: Sequence[Entry]) -> Example:
        book = Book((), tuple(asked))
        return training_example(book.prompt(self.form), book.answer(), self._tokenizer)
