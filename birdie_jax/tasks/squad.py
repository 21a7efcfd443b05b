"""SQuAD (Rajpurkar et al., 2016; 2018): questions on a paragraph, with spans of it as answers.

    python -m birdie_jax.evaluate --workdir=runs/tiny --task=squad:path=dev-v2.0.json

The task follows the Birdie paper (section 4.4, appendix B). It measures the answerable questions of
SQuAD v2, zero-shot, with greedy decoding of at most 64 tokens. The metrics are "Answer Contains Label"
and F1. It has no training examples, because the paper does not fine-tune on SQuAD.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

from birdie_jax.errors import DataError, shown
from birdie_jax.storage import Bounds, parse_typed
from birdie_jax.storage.json_text import parse_json
from birdie_jax.tasks.metrics import contains, exact_match, f1
from birdie_jax.tasks.question import Question
from birdie_jax.tasks.records import (
    DataPath,
    check_text,
    check_unicode,
    decode_contents,
    read_contents,
    refuse_bad,
)
from birdie_jax.tasks.registry import register_task
from birdie_jax.tasks.task import GenerationTask
from birdie_jax.text import Tokenizer

# The development set of v1.1 has 15 answers with a start that is off by one, at a space or a full stop.
_MAX_START_ERROR = 1


class SquadAnswer(NamedTuple):
    """A span of a context.

    Attributes:
        text: the text of the span.
        start: the index of the first character in the context.
    """

    text: str
    start: int


class SquadQuestion(NamedTuple):
    """A question on a paragraph.

    Attributes:
        name: the identifier of the question, unique in its file.
        context: the paragraph.
        question: the question.
        answers: the acceptable answers; empty if the question is unanswerable.
        where: the location of the question in its file.
    """

    name: str
    context: str
    question: str
    answers: tuple[SquadAnswer, ...]
    where: str


def read_squad(path: str, *, skip_bad: bool) -> tuple[list[SquadQuestion], list[str]]:
    """Return the questions of a file of v1.1 or v2.0 in order, and a message for each skipped part.

    Args:
        path: the JSON file, or its URL.
        skip_bad: whether to skip questions that cannot be read.

    Raises:
        DataError: the file cannot be read; or questions cannot be read, and `skip_bad` is false or no
            question is good. The message counts them, and names the first.
    """
    questions: list[SquadQuestion] = []
    refused: list[str] = []
    names = set[str]()
    for where, context, entry in _entries(path, refused):
        try:
            question = _parse_question(entry, context, where)
            if question.name in names:
                raise DataError(
                    f"{where}.id: found {shown(question.name)} again; allowed: an id that no other has"
                )
        except DataError as error:
            refused.append(str(error))
            continue
        names.add(question.name)
        questions.append(question)
    refuse_bad(path, refused, len(questions), skip_bad=skip_bad)
    return questions, refused


def _entries(path: str, refused: list[str]) -> Iterator[tuple[str, str, Any]]:
    """Yield (location, context, entry) of each question; append a message on bad parts to `refused`."""
    content = _read_json(path)
    for article_place, article in _list_of(content, "data", f"{path}: ", refused):
        for place, paragraph in _list_of(article, "paragraphs", f"{article_place}.", refused):
            try:
                context = check_text(_field(paragraph, "context", str, place), f"{place}.context")
            except DataError as error:
                refused.append(str(error))
                continue
            for entry_place, entry in _list_of(paragraph, "qas", f"{place}.", refused):
                yield entry_place, context, entry


def _parse_question(entry: Any, context: str, where: str) -> SquadQuestion:
    """Return a question with its answers."""
    name = check_text(_field(entry, "id", str, where), f"{where}.id")
    question = check_text(_field(entry, "question", str, where), f"{where}.question")
    answers: list[SquadAnswer] = []
    for number, answer in enumerate(_field(entry, "answers", list[Any], where)):
        place = f"{where}.answers[{number}]"
        text = check_text(_field(answer, "text", str, place), f"{place}.text")
        start = _field(answer, "answer_start", int, place)
        first = max(start - _MAX_START_ERROR, 0)
        nearby = context[first : start + len(text) + _MAX_START_ERROR]
        if start < 0 or text not in nearby:
            raise DataError(
                f"{place}: found {shown(text, 80)} at answer_start {start}, where the context has "
                f"{shown(context[max(start, 0) : max(start, 0) + len(text)], 80)}; allowed: a part of the "
                "context at its place"
            )
        at_place = context.startswith(text, start)
        answers.append(SquadAnswer(text, start if at_place else first + nearby.index(text)))
    impossible = _field(entry, "is_impossible", bool, where) if "is_impossible" in entry else False
    if impossible == bool(answers):
        raise DataError(
            f"{where}: found {len(answers)} answers and is_impossible {str(impossible).lower()}; allowed: "
            "at least one answer, or none and is_impossible true"
        )
    return SquadQuestion(name, context, question, tuple(answers), where)


def _read_json(path: str) -> Any:
    contents = read_contents(path)
    if not contents.strip():
        raise DataError(f"{path}: is empty; allowed: a JSON file of SQuAD v1.1 or v2.0")
    text = decode_contents(contents, path)
    try:
        content = parse_json(text)
    except json.JSONDecodeError as error:
        raise DataError(
            f"{path}: is not JSON: {error.msg} (line {error.lineno}, character {error.colno})"
        ) from error
    except ValueError as error:
        raise DataError(f"{path}: is not JSON that can be read: {error}") from error
    check_unicode(content, path)
    return content


def _list_of(holder: Any, name: str, before: str, refused: list[str]) -> Iterator[tuple[str, Any]]:
    """Yield the location and value of each item of a list; append to `refused` if there is no list."""
    place = before + name
    try:
        items = _field(holder, name, list[Any], before.rstrip(".: "))
    except DataError as error:
        refused.append(str(error))
        return
    for number, item in enumerate(items):
        yield f"{place}[{number}]", item


def _field(holder: Any, name: str, kind: Any, where: str) -> Any:
    if not isinstance(holder, Mapping):
        raise DataError(f"{where}: found {shown(holder, 80)}; allowed: a JSON object")
    if name not in holder:
        raise DataError(f"{where}: has no field {shown(name)}; its fields are {shown(sorted(holder), 80)}")
    return parse_typed(kind, holder[name], f"{where}.{name}", DataError)


QuestionLimit = Annotated[int, Bounds(at_least=1, at_most=2**31)]


@register_task
@dataclass(frozen=True, kw_only=True)
class Squad(GenerationTask):
    r"""The answerable questions of a file of SQuAD v1.1 or v2.0.

    Attributes:
        main_metric: whether the answer contains a reference, the paper's "Answer Contains Label".
        path: the JSON file, or its URL.
        separator: the text between context and question. The paper describes the format as
            "contextquestion" (section 4.4) and shows no example. The default is an empty line, as in
            FLAN's templates for questions on a passage, which the paper's models were tuned on (A.2). To
            append the question directly, set `separator=""`.
        max_questions: the largest number of questions, evenly spread over the file; None = all.
        skip_bad_records: whether to skip and report questions that cannot be read instead of refusing the
            file.
    """

    name: ClassVar[str] = "squad"
    main_metric: ClassVar[str] = "contains"

    path: DataPath
    separator: str = "\n\n"
    max_questions: QuestionLimit | None = None
    skip_bad_records: bool = False

    def questions(self, tokenizer: Tokenizer) -> tuple[Sequence[Question], Sequence[str]]:
        """Return the answerable questions in the order of the file, and messages on skipped questions."""
        del tokenizer
        found, refused = read_squad(self.path, skip_bad=self.skip_bad_records)
        questions = [
            Question(
                one.name,
                one.context + self.separator + one.question,
                tuple(dict.fromkeys(answer.text for answer in one.answers)),
            )
            for one in found
            if one.answers
        ]
        unanswerable = len(found) - len(questions)
        if not questions:
            raise DataError(
                f"{self.path}: holds no answerable question, and {unanswerable:,} unanswerable ones; "
                "allowed: at least one that has an answer"
            )
        if unanswerable:
            refused.append(f"{self.path}: {unanswerable:,} unanswerable questions are skipped")
        if self.max_questions is not None and self.max_questions < len(questions):
            asked = range(self.max_questions)
            questions = [questions[number * len(questions) // self.max_questions] for number in asked]
        return questions, refused

    def score(self, question: Question, answer: str) -> Mapping[str, float]:
        """Return exact match, F1 and whether the answer contains a reference."""
        metrics = (exact_match, f1, contains)
        return {metric.__name__: metric(answer, question.references) for metric in metrics}
