"""QuALITY (Pang et al. 2022): questions on long articles with four options, each scored by a head.

python -m birdie_jax.evaluate --workdir=runs/quality --task=quality:path=QuALITY.v1.0.1.htmlstripped.dev
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np

from birdie_jax.errors import DataError, shown
from birdie_jax.models.choice_head import CHOICE, RIGHT_CHOICE, WRONG_CHOICE
from birdie_jax.models.task_head import Head
from birdie_jax.objectives import Example
from birdie_jax.tasks.head_task import HeadTask, Sample, SampleExamples
from birdie_jax.tasks.metrics import class_scores
from birdie_jax.tasks.question import LENGTH_GROUP, Question, ScoredAnswer, TaskResult
from birdie_jax.tasks.records import DataPath, check_text, read_field, read_records, read_text
from birdie_jax.tasks.registry import register_task
from birdie_jax.tasks.task_model import Progress, TaskModel, no_progress
from birdie_jax.text import Tokenizer

OPTIONS = 4


class QualityQuestion(NamedTuple):
    """A question on an article.

    Attributes:
        name: the identifier of the question, unique in its file.
        where: the location of the question in the file.
        article: the article.
        question: the question.
        options: the options.
        label: the number of the right option, from 0.
        difficult: whether the question is in the hard subset.
    """

    name: str
    where: str
    article: str
    question: str
    options: tuple[str, ...]
    label: int
    difficult: bool

    def samples(self) -> list[Sample]:
        """Return a sample for each option: the pair of question plus option, and article."""
        labels = [RIGHT_CHOICE if number == self.label else WRONG_CHOICE for number in range(OPTIONS)]
        return [
            Sample(self.where, (f"{self.question} {option}", self.article), label)
            for option, label in zip(self.options, labels, strict=True)
        ]


class ChoiceExamples:
    """The training examples of questions, with an example for each option; `GroupedExamples`.

    Attributes:
        group_size: the number of options.
        lengths: the total number of positions of each question's options, int64 [questions].
        sha256: the hash of all examples.
        refused: a message for each skipped article.
    """

    group_size = OPTIONS

    def __init__(self, examples: SampleExamples):
        """Group the examples by question, four each."""
        self._examples = examples
        self.lengths = examples.lengths.reshape(-1, OPTIONS).sum(axis=1)
        self.sha256, self.refused = examples.sha256, examples.refused

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Example:
        return self.group(index)[0]

    def group(self, index: int) -> Sequence[Example]:
        """Return the examples of a question."""
        return [self._examples[OPTIONS * index + number] for number in range(OPTIONS)]

    def name_of(self, index: int) -> str:
        """Return the location of a question."""
        return self._examples.name_of(OPTIONS * index)


@register_task
@dataclass(frozen=True, kw_only=True)
class Quality(HeadTask):
    """The questions of a published file, which has an `article` and its `questions` as JSON on each line.

    The head scores each option from a pair of texts: the question with the option, and the article.
    `max_positions` truncates the article.

    Groups:
        difficult: 1 = the question is in the hard subset, 0 = it is not.

    Attributes:
        main_metric: accuracy.
        path: the file, or its URL, for training or evaluation.
        skip_bad_records: whether to skip and report articles that cannot be read instead of refusing the
            file.
    """

    name: ClassVar[str] = "quality"
    main_metric: ClassVar[str] = "accuracy"

    path: DataPath
    skip_bad_records: bool = False

    @property
    def head(self) -> Head:
        """The choice head, with a score for each of four options."""
        return Head(CHOICE, self.name, OPTIONS)

    def questions(self) -> tuple[list[QualityQuestion], list[str]]:
        """Return all questions, and a message for each skipped article.

        Raises:
            DataError: the file cannot be read, an article is bad, or there is no question. The message
                names the lines.
        """
        articles, refused = read_records(self.path, partial(_parse_unique, {}), self.skip_bad_records)
        questions = [question for article in articles for question in article]
        if not questions:
            raise DataError(f"{self.path}: holds no question; allowed: at least one")
        return questions, refused

    def training_examples(self, tokenizer: Tokenizer) -> ChoiceExamples:
        """Return the options of each question."""
        questions, refused = self.questions()
        samples = [sample for question in questions for sample in question.samples()]
        return ChoiceExamples(self.examples(samples, refused, tokenizer))

    def check_data(self, tokenizer: Tokenizer) -> None:
        """Read the articles."""
        del tokenizer
        self.questions()

    def measure(self, model: TaskModel, progress: Progress = no_progress) -> TaskResult:
        """Score every option with the head; skip a question if one of its options is too long."""
        questions, refused = self.questions()
        samples = [sample for question in questions for sample in question.samples()]
        found, too_long = self.scores(samples, model, progress)
        by_number = {number: (positions, scores[0]) for number, positions, scores in found}
        answers = []
        for place, question in enumerate(questions):
            options = [by_number.get(OPTIONS * place + number) for number in range(OPTIONS)]
            scored = [option for option in options if option is not None]
            if len(scored) < OPTIONS:
                continue
            scores = [score for _, score in scored]
            predicted = int(np.argmax(scores))
            groups = {"difficult": int(question.difficult), LENGTH_GROUP: max(scored)[0]}
            asked = Question(
                question.name,
                f"{question.question}\n\n{question.article}",
                (question.options[question.label],),
                question.options,
                groups,
            )
            metrics = class_scores(question.label, predicted)
            answers.append(
                ScoredAnswer(asked, question.options[predicted], metrics, details={"scores": scores})
            )
        # Several options of a question may be too long.
        skipped: dict[str, str] = {}
        for line in too_long:
            skipped.setdefault(line.rpartition(": has ")[0], line)
        return TaskResult(tuple(answers), (*refused, *skipped.values()))


def _parse_unique(places: dict[str, str], record: Mapping[str, Any], where: str) -> list[QualityQuestion]:
    """Return the questions of an article, and add their names and lines to `places`.

    Raises:
        DataError: the article is bad, or a name occurs twice.
    """
    questions = _parse(record, where)
    own: dict[str, str] = {}
    for question in questions:
        if first := places.get(question.name) or own.get(question.name):
            raise DataError(
                f"{question.where}: question_unique_id: found {shown(question.name)}, which {first} has; "
                "allowed: another"
            )
        own[question.name] = "line" + question.where.rpartition(": line")[2]
    places |= own
    return questions


def _parse(record: Mapping[str, Any], where: str) -> list[QualityQuestion]:
    article = read_text(record, "article", where).strip()
    questions = []
    for number, entry in enumerate(read_field(record, "questions", list[dict[str, Any]], where)):
        place = f"{where}: questions[{number}]"
        options = tuple(
            check_text(option, f"{place}: options").strip()
            for option in read_field(entry, "options", list[str], place)
        )
        if len(options) != OPTIONS:
            raise DataError(f"{place}: options: found {len(options)}; allowed: {OPTIONS}")
        label = read_field(entry, "gold_label", int, place)
        if not 1 <= label <= OPTIONS:
            raise DataError(f"{place}: gold_label: found {label}; allowed: 1 to {OPTIONS}")
        questions.append(
            QualityQuestion(
                read_text(entry, "question_unique_id", place),
                place,
                article,
                read_text(entry, "question", place).strip(),
                options,
                label - 1,
                bool(read_field(entry, "difficult", int, place, default=0)),
            )
        )
    return questions
