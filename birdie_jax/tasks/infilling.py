"""Stories with a blank entry, and choices to fill it: the infilling task of the Birdie paper.

    python -m birdie_jax.evaluate --workdir=runs/tiny --task=infilling:path=stories.jsonl

Section 4.5 and appendix C: a story has 3 to 7 entries, one of them blank, and four choices. The answer is
the choice with the lowest loss a token (Table 8). The paper's data are not published with it;
`birdie_jax/tasks/infilling_filter.py` is its filter for your own data.
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

# Figures 4 and 5: the words to the letter. The lines are those of Figure 4, each entry and choice on one.
_INTRODUCTION = (
    "Consider the following sequence of events, then select a choice that best fills in the missing entry:"
)
_QUESTION = "Which choice best fills in the missing entry?"


@register_task
@dataclass(frozen=True, kw_only=True)
class Infilling(ChoiceTask):
    """Choose the text that fills the blank of a story.

    A record has `entries`, the texts of the story, one of them null or "(blank)"; `choices`, 2 to 26 texts;
    `label`, the number of the right one from 0 on, or its letter; and an `id`, or else goes by its line.

    Attributes:
        path: the JSONL file, or its URL.
        letter_in_answer: whether the scored answer begins with the choice's letter, as the label of Figures
            4 and 5 does: "(D) The letter leads ...". Otherwise it is the text of the choice alone.
        skip_bad_records: whether to skip and report bad records instead of refusing the file.
    """

    name: ClassVar[str] = "infilling"

    path: DataPath
    letter_in_answer: bool = True
    skip_bad_records: bool = False

    def questions(self, tokenizer: Tokenizer) -> tuple[Sequence[Question], Sequence[str]]:
        """Return a question for each record, in their order, with its entries counted as a group."""
        del tokenizer
        return read_records(
            self.path, self.parse_record, self.skip_bad_records, lambda question: question.name
        )

    def training_examples(self, tokenizer: Tokenizer) -> QuestionExamples:
        """Return the stories with their labels."""
        return QuestionExamples(*self.questions(tokenizer), tokenizer)

    def parse_record(self, record: Mapping[str, Any], where: str) -> Question:
        """Return the question of a record.

        Args:
            record: the fields of the record.
            where: the place of the record, for messages.

        Raises:
            DataError: the record is invalid; names `where`.
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
    """Return the entries of a story's record, None for the blank one.

    Args:
        record: the fields of the record.
        where: the place of the record, for messages.

    Raises:
        DataError: there are fewer than two, not exactly one of them is blank, or another holds no text.
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
    """Return the number, from 0 on, of the right choice, which a record gives so or by its letter.

    Args:
        record: the fields of the record.
        field: the name of the field with the label.
        choices: the number of choices.
        where: the place of the record, for messages.

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
