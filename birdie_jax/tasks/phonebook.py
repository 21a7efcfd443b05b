"""Phone number retrieval (Birdie paper, section 4.3 and appendix D): look up names in a long book."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from birdie_jax.config_types import Seed
from birdie_jax.errors import ConfigError, shown
from birdie_jax.objectives import Example
from birdie_jax.storage import Bounds
from birdie_jax.tasks.phonebook_text import (
    BookForm,
    BookMaker,
    check_number_format,
    max_distinct_names,
    read_numbers,
)
from birdie_jax.tasks.question import Question
from birdie_jax.tasks.registry import register_task
from birdie_jax.tasks.task import AnswerTokens, GenerationTask
from birdie_jax.tasks.training_examples import GeneratedExamples
from birdie_jax.text import Tokenizer

Entries = Annotated[int, Bounds(at_least=1, at_most=10**5)]
Positions = Annotated[int, Bounds(at_least=1, at_most=2**24)]
Questions = Annotated[int, Bounds(at_least=1, at_most=10**6)]

_EVALUATION, _TRAINING = 0, 1
# Random streams of the evaluation: seeds are [seed, stream, number of the round or question].
_ORDER_STREAM, _BOOK_STREAM = 0, 1
# Names vary in length. If a book of an expected size does not fit, the task draws another one.
_ATTEMPTS = 8


@register_task
@dataclass(frozen=True, kw_only=True)
class Phonebook(GenerationTask):
    """Look up the numbers of names in a phone book, in the format of the paper's Figure 6.

    The sizes are all pairs of a count of numbers and a count of entries. Counts of numbers double from
    `min_numbers` to `max_numbers`. Counts of entries double from `min_entries` to `max_entries`, or to the
    largest that fits. In each round, the questions go through all sizes in a new random order. So you can
    plot accuracy by either count, as in Figure 1. Question i depends only on i, the tokenizer and the other
    settings, except `num_questions`. The books of questions never occur in training examples.

    Groups:
        numbers: the count of requested numbers.
        entries: the number of entries of the book.

    Metrics, where the parts of an answer are separated by commas:
        exact_match: whether the answer is all requested numbers in order.
        number_accuracy: the share of the requested numbers that are correct at their place.
        digit_accuracy: the share of the digits of the requested numbers that are correct at their place.
        copied_entry: the share of the answer's parts that are the number of any entry of the book.
        asked_entry: the share of the answer's parts that are the requested number at their place. The
            difference to `copied_entry` is the share of numbers copied from wrong entries.

    Attributes:
        min_entries: the smallest number of entries of a book.
        max_entries: the largest number of entries of a book.
        min_numbers: the smallest count of requested numbers.
        max_numbers: the largest count of requested numbers; a book always has at least as many entries.
        max_positions: the largest number of tokens of a prompt with its answer.
        number_format: the format of a number, with # for each digit. For small models, use "####".
        name_words: the words of a name: 2 = first and last name; 1 = first name, for small models.
        question: the place of the question: "before" the book, "after" it, or "both".
        question_form: "sentence" = as in the paper; "names" = only the names, and a book without heading.
            Use "names" for small models: if tokens are letters, sentences take most of the prompt.
        num_questions: the number of questions.
        seed: the seed of the questions.
        max_tokens: the largest number of tokens of an answer; 0 = enough for `max_numbers` numbers.
    """

    name: ClassVar[str] = "phonebook"
    main_metric: ClassVar[str] = "number_accuracy"

    min_entries: Entries = 8
    max_entries: Entries = 800
    min_numbers: Entries = 1
    max_numbers: Entries = 32
    max_positions: Positions = 16_384
    number_format: str = "###-###-####"
    name_words: Literal[1, 2] = 2
    question: Literal["both", "before", "after"] = "both"
    question_form: Literal["sentence", "names"] = "sentence"
    num_questions: Questions = 480
    seed: Seed = 0
    max_tokens: AnswerTokens = 0

    def __post_init__(self):
        for low, high in (("min_entries", "max_entries"), ("min_numbers", "max_numbers")):
            if getattr(self, low) > getattr(self, high):
                found, limit = getattr(self, low), getattr(self, high)
                raise ValueError(f"{low}: found {found}; allowed: at most {high} = {limit}")
        if self.max_numbers > self.max_entries:
            raise ValueError(
                f"max_numbers: found {self.max_numbers}; allowed: at most max_entries = {self.max_entries}"
            )
        if allowed := check_number_format(self.number_format, self.max_entries):
            raise ValueError(f"number_format: found {shown(self.number_format)}; allowed: {allowed}")

    def questions(self, tokenizer: Tokenizer) -> tuple[Sequence[Question], Sequence[str]]:
        """Return the questions.

        Raises:
            ConfigError: a book of `min_entries` with `max_numbers` does not fit `max_positions`.
        """
        maker = self._maker(tokenizer)
        # The start token and the longest answer.
        answer_positions = 1 + self._answer_limit
        sizes = self._sizes(maker, answer_positions)
        questions = []
        for number in range(self.num_questions):
            round_number, place = divmod(number, len(sizes))
            order = np.random.default_rng([self.seed, _ORDER_STREAM, round_number]).permutation(len(sizes))
            numbers, entries = sizes[order[place]]
            rng = np.random.default_rng([self.seed, _BOOK_STREAM, number])
            made = None
            for _ in range(_ATTEMPTS):
                made = maker.make(
                    rng,
                    _EVALUATION,
                    numbers,
                    entries,
                    max_positions=self.max_positions,
                    answer_positions=answer_positions,
                )
                if made is not None and len(made.book.entries) >= self._min_entries(numbers):
                    break
            else:
                raise self._too_few_positions(maker, numbers, answer_positions)
            questions.append(
                Question(
                    name=f"{number:06d}",
                    prompt=made.book.prompt(self._form),
                    references=(made.book.answer(),),
                    groups={"numbers": numbers, "entries": len(made.book.entries)},
                )
            )
        return questions, ()

    def settings_within(self, tokenizer: Tokenizer, length: int) -> Mapping[str, Any]:
        """Return settings that fit. Lower the book length first, then numbers, entries and formats."""
        changes: dict[str, Any] = {"max_positions": min(self.max_positions, length)}
        for more in (
            {},
            {"max_numbers": min(self.max_numbers, 2), "min_numbers": min(self.min_numbers, 2)},
            {"min_entries": min(self.min_entries, 4), "max_entries": min(self.max_entries, 16)},
            {"number_format": "####", "name_words": 1},
            {"question_form": "names"},
        ):
            changes |= more
            fitted = replace(self, **changes)
            try:
                fitted._sizes(fitted._maker(tokenizer), 1 + fitted._answer_limit)
            except ConfigError:
                continue
            return {name: value for name, value in changes.items() if value != getattr(self, name)}
        return {}

    def score(self, question: Question, answer: str) -> Mapping[str, float]:
        """Return the metrics of an answer."""
        asked = question.references[0].split(", ")
        given = [part for part in (part.strip() for part in answer.split(",")) if part]
        book = read_numbers(question.prompt)
        in_place = sum(found == wanted for found, wanted in zip(given, asked, strict=False))
        digits = [character for wanted in asked for character in wanted if character.isdigit()]
        right_digits = sum(
            found == wanted
            for found_number, wanted_number in zip(given, asked, strict=False)
            for found, wanted in zip(found_number, wanted_number, strict=False)
            if wanted.isdigit()
        )
        return {
            "exact_match": float(given == asked),
            "number_accuracy": in_place / len(asked),
            "digit_accuracy": right_digits / len(digits),
            "copied_entry": sum(number in book for number in given) / max(1, len(given)),
            "asked_entry": in_place / max(1, len(given)),
        }

    def training_examples(self, tokenizer: Tokenizer) -> GeneratedExamples:
        """Return a generator of books of all sizes within the settings.

        Raises:
            ConfigError: the smallest book does not fit `max_positions`.
        """
        maker = self._maker(tokenizer)
        if maker.mean_positions(self.min_numbers, self._min_entries(self.min_numbers)) > self.max_positions:
            raise self._too_few_positions(maker, self.min_numbers, None)
        return PhonebookExamples(self, maker)

    @property
    def _answer_limit(self) -> int:
        """`max_tokens`, or the number of characters of the longest answer plus a leading space and END."""
        return self.max_tokens or self._form.answer_characters(self.max_numbers) + 2

    @property
    def _form(self) -> BookForm:
        return BookForm(self.name_words, self.number_format, self.question, self.question_form)

    def _maker(self, tokenizer: Tokenizer) -> BookMaker:
        distinct = max_distinct_names(self.name_words)
        if self.max_entries > distinct:
            raise ConfigError(
                f"the task {self.name}: max_entries: found {self.max_entries}; allowed: at most "
                f"{distinct}, the different names with name_words = {self.name_words}"
            )
        return BookMaker(tokenizer, self._form)

    def _min_entries(self, numbers: int) -> int:
        return max(self.min_entries, numbers)

    def _sizes(self, maker: BookMaker, answer_positions: int) -> list[tuple[int, int]]:
        """Return the sizes: pairs of a count of numbers and a largest count of entries."""
        largest_demand = maker.mean_positions(
            self.max_numbers, self._min_entries(self.max_numbers), answer_positions
        )
        if largest_demand > self.max_positions:
            raise self._too_few_positions(maker, self.max_numbers, answer_positions)
        sizes = []
        for numbers in _doubled(self.min_numbers, self.max_numbers):
            smallest = self._min_entries(numbers)
            spare = self.max_positions - maker.mean_positions(numbers, 0, answer_positions)
            largest = min(self.max_entries, int(spare / maker.mean_entry))
            counts = [count for count in _doubled(self.min_entries, largest) if count >= smallest]
            # The largest book takes as many entries as fit.
            sizes += [(numbers, count) for count in counts[:-1]] + [(numbers, self.max_entries)]
        return sizes

    def _too_few_positions(
        self, maker: BookMaker, numbers: int, answer_positions: int | None
    ) -> ConfigError:
        entries = self._min_entries(numbers)
        needed = maker.mean_positions(numbers, entries, answer_positions)
        return ConfigError(
            f"the task {self.name}: max_positions: found {self.max_positions}; a book of {entries} entries "
            f"takes about {needed:.0f} positions when {numbers} of them are asked for; allowed: some more "
            "than that, or a smaller min_entries, max_numbers, number_format or name_words"
        )


class PhonebookExamples:
    """Training books, with sizes that fill rows.

    The count of numbers is uniform over the counts that fit. Then the count of entries is uniform over the
    counts that fit. If the rest of the row would be too short for the smallest book, the book takes as many
    entries as fit.
    """

    def __init__(self, task: Phonebook, maker: BookMaker):
        """Store the task, which limits the sizes, and the maker of books."""
        self._task, self._maker = task, maker
        self._smallest = maker.mean_positions(task.min_numbers, max(task.min_entries, task.min_numbers))

    def draw(self, rng: np.random.Generator, max_positions: int) -> Example | None:
        """Return an example of at most `max_positions` positions; None if no book is that small."""
        task, maker = self._task, self._maker
        room = min(max_positions, task.max_positions)
        # Many of the smallest books are shorter than their mean length.
        if room < 0.9 * self._smallest:
            return None
        for numbers, entries in self._draw_sizes(rng, room):
            made = maker.make(rng, _TRAINING, numbers, entries, max_positions=room)
            if made is not None and len(made.book.entries) >= max(task.min_entries, numbers):
                return made.example
        return None

    def _draw_sizes(self, rng: np.random.Generator, room: int) -> Iterator[tuple[int, int]]:
        task, maker = self._task, self._maker

        def fits(numbers: int) -> bool:
            return maker.mean_positions(numbers, max(task.min_entries, numbers)) <= room

        largest = task.max_numbers
        while largest > task.min_numbers and not fits(largest):
            largest -= 1
        numbers = int(rng.integers(task.min_numbers, largest + 1))
        low = max(task.min_entries, numbers)
        spare = room - maker.mean_positions(numbers, 0)
        high = max(low, min(task.max_entries, int(spare / maker.mean_entry)))
        entries = int(rng.integers(low, high + 1))
        if room - maker.mean_positions(numbers, entries) < 1.1 * self._smallest:
            entries = task.max_entries
        yield numbers, entries
        for _ in range(_ATTEMPTS):
            yield task.min_numbers, max(task.min_entries, task.min_numbers)


def _doubled(low: int, high: int) -> list[int]:
    """Return low, 2 low, 4 low, ... below `high`, then `high`."""
    counts = [low]
    while 2 * counts[-1] < high:
        counts.append(2 * counts[-1])
    return counts if counts[-1] == high else [*counts, high]
