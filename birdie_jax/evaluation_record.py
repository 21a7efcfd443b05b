"""The results of an evaluation: the JSON file that `evaluate` writes and the report reads."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from birdie_jax.errors import ConfigError
from birdie_jax.storage import parse_typed, to_plain
from birdie_jax.storage.json_text import parse_json

FORMAT_VERSION = 1


@dataclass(frozen=True)
class Interval:
    """A mean with its bootstrap interval.

    Attributes:
        mean: the mean over the answers, each with its weight.
        low: the lower end of the 95 % interval.
        high: the upper end of the 95 % interval.
    """

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class GroupScores:
    """The scores of the answers to questions with similar values of a group.

    Attributes:
        low: the smallest value of the group.
        high: the largest value of the group.
        count: the number of answers.
        metrics: the scores by metric.
    """

    low: int
    high: int
    count: int
    metrics: dict[str, Interval]


@dataclass(frozen=True)
class CategoryScores:
    """The scores of the answers to questions in a category.

    Attributes:
        name: the name of the category.
        count: the number of answers.
        metrics: the scores by metric.
    """

    name: str
    count: int
    metrics: dict[str, Interval]


@dataclass(frozen=True)
class Categories:
    """The scores by the categories of one kind; a question may be in several categories or none.

    Attributes:
        known: the number of answers to questions with known categories.
        scores: the scores of each category, by name.
    """

    known: int
    scores: list[CategoryScores]


@dataclass(frozen=True)
class EvaluatedModel:
    """The model that was evaluated.

    Attributes:
        origin: its workdir or exported folder.
        step: the train step of the save.
        config_sha256: the hash of its configuration.
        parameters_sha256: the hash of the names and values of its parameters.
        prompt_format: the objective arm with the format of the prompts.
    """

    origin: str
    step: int
    config_sha256: str
    parameters_sha256: str
    prompt_format: str


@dataclass(frozen=True)
class ShownAnswer:
    """A question and its answer, to read.

    Attributes:
        prompt: the text that the model read; for a long text, its beginning and end.
        answer: the text that it wrote.
        reference: the right answer.
        is_right: whether answer and reference are equal, as the task compares them.
    """

    prompt: str
    answer: str
    reference: str
    is_right: bool


@dataclass(frozen=True)
class ModelDifference:
    """Another model's scores minus those of the evaluated model, on the same questions.

    Attributes:
        model: the other model.
        pairs: the number of questions, or documents of a text, that both models answered.
        metrics: the difference of the means, by metric.
    """

    model: EvaluatedModel
    pairs: int
    metrics: dict[str, Interval]


@dataclass(frozen=True)
class EvaluationRecord:
    """The scores of a model on a task.

    Attributes:
        format_version: the version of this format.
        name: the name of the evaluation within its run.
        task: the name of the task.
        settings: the task's settings.
        main_metric: the main metric of the task.
        model: the model.
        answers: the number of scored answers.
        refused: a line for each question or record that the evaluation omitted.
        metrics: the scores by metric.
        groups: the parts of each group, from small to large.
        seconds: the duration of the evaluation.
        categories: the scores of each kind of categories.
        exact: the number of exactly right answers; None for a task without this metric.
        shown: the first questions and answers, for a task that counts exact answers.
        differences: the difference of each compared model from this one.
    """

    format_version: int
    name: str
    task: str
    settings: dict[str, Any]
    main_metric: str
    model: EvaluatedModel
    answers: int
    refused: list[str]
    metrics: dict[str, Interval]
    groups: dict[str, list[GroupScores]]
    seconds: float
    categories: dict[str, Categories] = field(default_factory=dict)
    exact: int | None = None
    shown: list[ShownAnswer] = field(default_factory=list)
    differences: list[ModelDifference] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain JSON."""
        return to_plain(self)


def parse_evaluation(contents: bytes, where: str) -> EvaluationRecord:
    """Return the record in a file's contents.

    Args:
        contents: the contents of the file.
        where: the file, for messages.

    Raises:
        ConfigError: the contents are not an evaluation record; the message names the file and the field.
    """
    try:
        value = parse_json(contents)
    except ValueError as error:
        raise ConfigError(
            f"{where}: found no JSON ({error}); allowed: a file that evaluate writes"
        ) from error
    version = value.get("format_version") if isinstance(value, Mapping) else None
    if version != FORMAT_VERSION:
        raise ConfigError(f"{where}: found format_version {version}; allowed: {FORMAT_VERSION}")
    # Records of older versions lack newer fields.
    added = {"categories": {}, "exact": None, "shown": [], "differences": []}
    return parse_typed(EvaluationRecord, {**added, **value}, where, ConfigError)
