"""The infilling task of the Birdie paper: choose the text that fills the blank entry of a story.

    python -m birdie_jax.evaluate --workdir=runs/tiny --task=infilling:path=stories.jsonl

In the paper (section 4.5 and appendix C), a story has 3 to 7 entries, one of them blank, and four choices.
The answer is the choice with the lowest loss per token (Table 8). The data of the paper are not published.
To filter your own data as the paper does, use `birdie_jax/tasks/infilling_filter.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any, ClassVar

from birdie_jax.errors import DataError, shown
from birdie_jax.tasks.question import Question
from birdie_jax.tasks.records import DataPath, check_text, read_field, read_name, read_records
from birdie_jax.tasks.registry import register_task
from birdie_jax.tasks.task import ChoiceTask
from birdie_jax.tasks.training_examples import QuestionExamples
from birdie_jax.text import Tokenizer

BLANK = "(blank)"

# The wording is from Figures 4 and 5. The line breaks follow Figure 4: one line for each entry and choice.
_INTRODUCTION = (
    "Consider the following sequence of events, then select a choice that best fills in the missing entry:"
)
_QUESTION = "Which choice best fills in the missing entry?"


@register_task
@dataclass(frozen=True, kw_only=True)
class Infilling(ChoiceTask):
    """Choose the text that fills the blank of a story.

    A record has these fields:

    - `entries`: the texts of the story, one of them null or "(blank)".
    - `choices`: 2 to 26 texts.
    - `label`: the number of the right choice, from 0, or its letter.
    - `id`: the name of the record; optional, default: its line number.

    Attributes:
        path: the JSONL file, or its URL.
        letter_in_answer: whether the scored answer begins with the choice's letter, as in Figures 4 and 5:
            "(D) The letter leads ...". Otherwise the answer is the text of the choice.
        skip_bad_records: whether to skip and report bad records instead of refusing the file.
    """

    name: ClassVar[str] = "infilling"

    path: DataPath
    letter_in_answer: bool = True
    skip_bad_records: bool = False

    def questions(self, tokenizer: Tokenizer) -> tuple[Sequence[Question], Sequence[str]]:
        """Return a question for each record, in order. The group "entries" is the number of entries."""
        del tokenizer
        return read_records(
            self.path, self.parse_record, self.skip_bad_records, lambda question: question.name
        )

    def training_examples(self, tokenizer: Tokenizer) -> QuestionExamples:
        """Return the prompt and the right choice of each story."""
        return QuestionExamples(*self.questions(tokenizer), tokenizer)

    def parse_record(self, record: Mapping[str, Any], where: str) -> Question:
        """Return the question of a record.

        Args:
            record: the fields of the record.
            where: the location of the record, for error messages.

        Raises:
            DataError: the record is invalid. The message names `where`.
        """
        entries = parse_entries(record, where)
        choices = [
            check_text(choice, f"{where}: choices[{number}]")
            for number, choice in enumerate(read_field(record, "choices", list[str], where))
        ]
        if not 2 <= len(choices) <= len(ascii_uppercase) or len(set(choices)) < len(choices):
            raise DataError(
                f"{where}: choices: found {len(choices)}, {len(set(choices))} of them different; allowed: "
                f"2 to {len(ascii_uppercase)} different ones"
            )
        label = parse_label(record, "label", len(choices), where)
        with_letters = [f"({ascii_uppercase[number]}) {text}" for number, text in enumerate(choices)]
        answers = tuple(with_letters if self.letter_in_answer else choices)
        groups = {"entries": len(entries)}
        return Question(
            name=read_name(record, "id", where),
            prompt=_prompt(entries, with_letters),
            references=(answers[label],),
            choices=answers,
            groups=groups,
        )


def parse_entries(record: Mapping[str, Any], where: str) -> list[str | None]:
    """Return the entries of a story, None for the blank one.

    Args:
        record: the fields of the record.
        where: the location of the record, for error messages.

    Raises:
        DataError: there are fewer than two entries, or not exactly one is blank, or one has no text.
    """
    entries = [
        None
        if entry is None or entry.strip() == BLANK
        else check_text(entry, f"{where}: entries[{number}]")
        for number, entry in enumerate(read_field(record, "entries", list[str | None], where))
    ]
    if len(entries) < 2 or entries.count(None) != 1:
        raise DataError(
            f"{where}: entries: found {len(entries)}, {entries.count(None)} of them blank; allowed: at "
            f'least 2, exactly one of them null or "{BLANK}"'
        )
    return entries


def parse_label(record: Mapping[str, Any], field: str, choices: int, where: str) -> int:
    """Return the number of the right choice, from 0. A record has the number or the letter.

    Args:
        record: the fields of the record.
        field: the name of the field with the label.
        choices: the number of choices.
        where: the location of the record, for error messages.

    Raises:
        DataError: there is no such choice.
    """
    label = read_field(record, field, int | str, where)
    letters = ascii_uppercase[:choices]
    number = label if isinstance(label, int) else letters.find(label) if len(label) == 1 else -1
    if not 0 <= number < choices:
        by_letter = f', or a letter from "A" to "{letters[-1]}"' if letters else ""
        raise DataError(
            f"{where}: {field}: found {shown(label)}; allowed: a number from 0 to {choices - 1}{by_letter}"
        )
    return number


def _prompt(entries: Sequence[str | None], choices: Sequence[str]) -> str:
    story = [f"{number}. {BLANK if text is None else text}" for number, text in enumerate(entries, start=1)]
    parts = (_INTRODUCTION, "\n".join(story), "Choices:", "\n".join(choices), _QUESTION)
    return "\n\n".join(parts)
