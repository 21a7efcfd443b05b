"""Define a task without Python: questions in a JSONL file (docs/own_task.md).

python -m birdie_jax.evaluate --workdir=runs/tiny --task='jsonl:path=questions.jsonl'
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from birdie_jax.config_types import RequiredName, RowLength
from birdie_jax.errors import DataError, shown
from birdie_jax.generation.likelihood import Likelihood
from birdie_jax.generation.text_generation import TextAnswer
from birdie_jax.tasks.infilling import parse_label
from birdie_jax.tasks.metrics import ANSWER_METRICS
from birdie_jax.tasks.question import LENGTH_GROUP, Question, ScoredAnswer, TaskResult
from birdie_jax.tasks.records import DataPath, check_text, read_field, read_name, read_records, read_text
from birdie_jax.tasks.registry import register_task
from birdie_jax.tasks.task import QuestionTask
from birdie_jax.tasks.task_model import Progress, TaskModel, longest_choices, no_progress
from birdie_jax.tasks.training_examples import QuestionExamples
from birdie_jax.text import Tokenizer

CHOICE_METRICS = ("accuracy", "accuracy_of_sums")
LOG_LIKELIHOOD = "log_likelihood"
BITS_PER_BYTE = "bits_per_byte"
METRICS = (*ANSWER_METRICS, *CHOICE_METRICS, LOG_LIKELIHOOD, BITS_PER_BYTE)


class _Scored(NamedTuple):
    """The scores of a question for one kind of metrics."""

    answer: str
    metrics: Mapping[str, float]
    details: Mapping[str, Any]


@register_task
@dataclass(frozen=True, kw_only=True)
class JsonlTask(QuestionTask):
    """The questions of a JSONL file, scored by metrics of your choice.

    Metrics:

    - exact_match, f1, contains, contains_verbatim (`birdie_jax/tasks/metrics.py`): scores of an answer that
      the model generates by greedy decoding.
    - accuracy: whether the right choice has the highest log-likelihood per token.
    - accuracy_of_sums: whether the right choice has the highest total log-likelihood.
    - log_likelihood: the log-likelihood of the first reference, in nats.
    - bits_per_byte: bits per byte of the first reference. As it is a mean over bytes and not over
      questions, it must be the only metric.

    Attributes:
        path: the JSONL file, or its URL.
        metrics: the names of the metrics; the first is the main one. For accuracy and accuracy_of_sums, a
            record has choices and a label instead of references.
        max_tokens: the largest number of tokens of a generated answer.
        prompt_field: the field with the prompt.
        reference_field: the field with the acceptable answer or a list of them; fine-tuning uses the first.
        choices_field: the field with the list of choices.
        label_field: the field with the right choice: its number, from 0, or its letter.
        id_field: the field with the name of the question. Default name: the number of the line.
        group_fields: the fields with integers that break scores down.
        skip_bad_records: whether to skip and report bad records instead of refusing the file.
    """

    name: ClassVar[str] = "jsonl"

    path: DataPath
    metrics: tuple[str, ...] = ("exact_match", "f1", "contains")
    max_tokens: RowLength = 64
    prompt_field: RequiredName = "prompt"
    reference_field: RequiredName = "reference"
    choices_field: RequiredName = "choices"
    label_field: RequiredName = "label"
    id_field: RequiredName = "id"
    group_fields: tuple[str, ...] = ()
    skip_bad_records: bool = False

    def __post_init__(self):
        unknown = [metric for metric in self.metrics if metric not in METRICS]
        if not self.metrics or unknown or len(set(self.metrics)) < len(self.metrics):
            raise ValueError(
                f"metrics: found {shown(list(self.metrics))}; allowed: one or more of "
                f"{', '.join(METRICS)}, each once"
            )
        if BITS_PER_BYTE in self.metrics and len(self.metrics) > 1:
            raise ValueError(
                f"metrics: found {shown(list(self.metrics))}; allowed: {BITS_PER_BYTE} alone, because it "
                "is a mean over bytes"
            )
        if LENGTH_GROUP in self.group_fields or len(set(self.group_fields)) < len(self.group_fields):
            raise ValueError(
                f"group_fields: found {shown(list(self.group_fields))}; allowed: each once, and not "
                f"{LENGTH_GROUP}, which every question has"
            )

    @property
    def main_metric(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The main metric of the task."""
        return self.metrics[0]

    @property
    def _has_choices(self) -> bool:
        return not set(CHOICE_METRICS).isdisjoint(self.metrics)

    def questions(self, tokenizer: Tokenizer) -> tuple[Sequence[Question], Sequence[str]]:
        """Return a question for each record, in order."""
        del tokenizer
        return read_records(self.path, self._parse, self.skip_bad_records, lambda question: question.name)

    def training_examples(self, tokenizer: Tokenizer) -> QuestionExamples:
        """Return each prompt with the first reference or the right choice."""
        return QuestionExamples(*self.questions(tokenizer), tokenizer)

    def measure(self, model: TaskModel, progress: Progress = no_progress) -> TaskResult:
        """Generate answers, score candidates, or both, as the metrics require."""
        questions, refused = self.questions(model.tokenizer)
        written = [metric for metric in self.metrics if metric in ANSWER_METRICS]
        limits = [self.max_tokens if written else 0] * len(questions)
        if len(written) < len(self.metrics):
            limits = list(map(max, limits, longest_choices(questions, model.tokenizer)))
        questions, prompts, refused = model.prompts(questions, refused, limits)
        ways: list[Callable[[Progress], list[_Scored]]] = []
        if written:
            ways.append(
                lambda shown: [
                    _score_written(question, answer, written)
                    for question, answer in zip(
                        questions, model.generate(prompts, self.max_tokens, shown), strict=True
                    )
                ]
            )
        if len(written) < len(self.metrics):
            candidates = [question.choices or question.references[:1] for question in questions]
            ways.append(
                lambda shown: [
                    _score_likelihoods(question, texts, likelihoods)
                    for question, texts, likelihoods in zip(
                        questions,
                        candidates,
                        model.choice_likelihoods(prompts, candidates, shown),
                        strict=True,
                    )
                ]
            )
        parts = [way(_part_of(progress, number, len(ways))) for number, way in enumerate(ways)]
        answers = [self._join(question, found) for question, *found in zip(questions, *parts, strict=True)]
        return TaskResult(tuple(answers), tuple(refused))

    def _join(self, question: Question, found: Sequence[_Scored]) -> ScoredAnswer:
        scores = {name: score for part in found for name, score in part.metrics.items()}
        details = {name: value for part in found for name, value in part.details.items()}
        weight = float(len(question.references[0].encode())) if BITS_PER_BYTE in self.metrics else 1.0
        metrics = {metric: scores[metric] for metric in self.metrics}
        return ScoredAnswer(question, found[0].answer, metrics, weight, details)

    def _parse(self, record: Mapping[str, Any], where: str) -> Question:
        choices: tuple[str, ...] = ()
        if self._has_choices:
            choices = self._parse_choices(record, where)
            references = (choices[parse_label(record, self.label_field, len(choices), where)],)
        else:
            references = self._parse_references(record, where)
        groups = {group: int(read_field(record, group, int, where)) for group in self.group_fields}
        prompt = read_text(record, self.prompt_field, where)
        return Question(read_name(record, self.id_field, where), prompt, references, choices, groups)

    def _parse_references(self, record: Mapping[str, Any], where: str) -> tuple[str, ...]:
        field = self.reference_field
        if field not in record and self.choices_field in record:
            raise DataError(
                f"{where}: has no field {shown(field)}, which {', '.join(self.metrics)} need; to choose "
                "one of its "
                f'{shown(self.choices_field)}, set metrics=["accuracy"]'
            )
        found = read_field(record, field, str | list[str], where)
        references = [found] if isinstance(found, str) else found
        if not references:
            raise DataError(f"{where}: {field}: found []; allowed: at least one text")
        return tuple(check_text(text, f"{where}: {field}") for text in dict.fromkeys(references))

    def _parse_choices(self, record: Mapping[str, Any], where: str) -> tuple[str, ...]:
        field = self.choices_field
        choices = tuple(
            check_text(text, f"{where}: {field}[{number}]")
            for number, text in enumerate(read_field(record, field, list[str], where))
        )
        if len(choices) < 2 or len(set(choices)) < len(choices):
            raise DataError(
                f"{where}: {field}: found {len(choices)}, {len(set(choices))} of them different; allowed: "
                "at least 2 different ones"
            )
        return choices


def _score_written(question: Question, answer: TextAnswer, metrics: Sequence[str]) -> _Scored:
    scores = {metric: ANSWER_METRICS[metric](answer.text, question.references) for metric in metrics}
    return _Scored(answer.text, scores, {"tokens": answer.tokens, "stopped_by": answer.stopped_by})


def _score_likelihoods(
    question: Question, texts: Sequence[str], likelihoods: Sequence[Likelihood]
) -> _Scored:
    summed = [found.log_likelihood for found in likelihoods]
    per_token = [found.log_likelihood / max(found.tokens, 1) for found in likelihoods]
    label, best = texts.index(question.references[0]), per_token.index(max(per_token))
    scores = {
        "accuracy": float(best == label),
        "accuracy_of_sums": float(summed.index(max(summed)) == label),
        LOG_LIKELIHOOD: summed[label],
        BITS_PER_BYTE: -summed[label] / math.log(2) / len(texts[label].encode()),
    }
    details = {
        "log_likelihoods": summed,
        "likelihood_tokens": [found.tokens for found in likelihoods],
    }
    return _Scored(texts[best], scores, details)


def _part_of(progress: Progress, number: int, of_all: int) -> Progress:
    """Return the progress function for one of several passes over the same questions."""
    return lambda done, count: progress(number * count + done, of_all * count)
