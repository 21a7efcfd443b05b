r"""Classify your own texts and pairs of texts with a fine-tuned head (docs/glue.md).

python -m birdie_jax.evaluate --workdir=runs/mail \
        --task=labelled_text:path=dev.jsonl,classes='["mail","spam"]',max_positions=128
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from birdie_jax.config_types import RequiredName
from birdie_jax.errors import DataError, shown
from birdie_jax.models.classification_head import CLASSIFICATION
from birdie_jax.models.task_head import POOLER, TASK_HEAD, Head
from birdie_jax.tasks.head_task import HeadTask, Sample, SampleExamples
from birdie_jax.tasks.metrics import INNER_METRICS, MATTHEWS, class_scores, confusion, matthews_of_means
from birdie_jax.tasks.question import LENGTH_GROUP, Question, ScoredAnswer, TaskResult
from birdie_jax.tasks.records import DataPath, read_field, read_name, read_records, read_text
from birdie_jax.tasks.registry import register_task
from birdie_jax.tasks.task_model import Progress, TaskModel, no_progress
from birdie_jax.text import Tokenizer

_TWO = 2


class _Labelled(NamedTuple):
    """A record.

    Attributes:
        name: the id, or the number of the line.
        sample: the texts and the class.
        groups: the integers that break scores down.
    """

    name: str
    sample: Sample
    groups: Mapping[str, int]


@register_task
@dataclass(frozen=True, kw_only=True)
class LabelledText(HeadTask):
    """Classify records `{"text", "label"}` or `{"text", "text_pair", "label"}`, a JSON object a line.

    Metrics: accuracy; for two classes also Matthews' correlation.

    Attributes:
        main_metric: accuracy.
        path: the JSONL file, or its URL, for training or evaluation.
        classes: the labels of the records, in the order of the head's scores. To measure a run, give the
            order that it was trained with.
        head_name: the name of the head. A run that starts from a head with the same name and classes reuses
            its classifier.
        text_field: the field with the text.
        text_pair_field: the field with the second text of a pair; optional in each record.
        label_field: the field with the class.
        id_field: the field with the name of the record. Default name: the number of the line.
        group_fields: the fields with integers that break scores down.
        skip_bad_records: whether to skip and report bad records instead of refusing the file.
    """

    name: ClassVar[str] = "labelled_text"
    main_metric: ClassVar[str] = "accuracy"

    path: DataPath
    classes: tuple[str, ...]
    head_name: RequiredName = "label"
    text_field: RequiredName = "text"
    text_pair_field: RequiredName = "text_pair"
    label_field: RequiredName = "label"
    id_field: RequiredName = "id"
    group_fields: tuple[str, ...] = ()
    skip_bad_records: bool = False

    def __post_init__(self):
        if len(self.classes) < _TWO or len(set(self.classes)) < len(self.classes):
            raise ValueError(f"classes: found {shown(list(self.classes))}; allowed: two or more, each once")
        if self.head_name == POOLER:
            raise ValueError(
                f"head_name: found {POOLER!r}; allowed: another name: {TASK_HEAD}/{POOLER} is the layer "
                "that all heads share"
            )
        if LENGTH_GROUP in self.group_fields or len(set(self.group_fields)) < len(self.group_fields):
            raise ValueError(
                f"group_fields: found {shown(list(self.group_fields))}; allowed: each once, and not "
                f"{LENGTH_GROUP}, which every record has"
            )

    @property
    def head(self) -> Head:
        """The classification head."""
        return Head(CLASSIFICATION, self.head_name, len(self.classes), self.classes)

    def records(self) -> tuple[list[_Labelled], list[str]]:
        """Return the records, and a message for each skipped record.

        Raises:
            DataError: the file cannot be read, or a record is bad. The message names the lines.
        """
        return read_records(self.path, self._parse, self.skip_bad_records, lambda record: record.name)

    def training_examples(self, tokenizer: Tokenizer) -> SampleExamples:
        """Return an example for each record."""
        records, refused = self.records()
        return self.examples([record.sample for record in records], refused, tokenizer)

    def check_data(self, tokenizer: Tokenizer) -> None:
        """Read the records."""
        del tokenizer
        self.records()

    def measure(self, model: TaskModel, progress: Progress = no_progress) -> TaskResult:
        """Predict the class of every record with the head."""
        records, refused = self.records()
        found, too_long = self.scores([record.sample for record in records], model, progress)
        answers = []
        for number, positions, scores in found:
            record = records[number]
            predicted, label = scores.index(max(scores)), record.sample.label - 1
            question = Question(
                name=record.name,
                prompt="\n".join(record.sample.texts),
                references=(self.classes[label],),
                choices=self.classes,
                groups={LENGTH_GROUP: positions, **record.groups},
            )
            metrics = class_scores(label, predicted)
            if len(self.classes) == _TWO:
                metrics |= confusion(label, predicted)
            answers.append(
                ScoredAnswer(question, self.classes[predicted], metrics, details={"scores": scores})
            )
        return TaskResult(tuple(answers), (*refused, *too_long))

    def derived_metrics(self, means: Mapping[str, float]) -> Mapping[str, float]:
        """Return Matthews' correlation if there are two classes."""
        return {MATTHEWS: matthews_of_means(means)} if len(self.classes) == _TWO else {}

    @property
    def inner_metrics(self) -> frozenset[str]:
        """The metrics that Matthews' correlation is derived from."""
        return INNER_METRICS

    def _parse(self, record: Mapping[str, Any], where: str) -> _Labelled:
        texts = [read_text(record, self.text_field, where)]
        if record.get(self.text_pair_field) is not None:
            texts.append(read_text(record, self.text_pair_field, where))
        label = read_field(record, self.label_field, str, where)
        if label not in self.classes:
            raise DataError(
                f"{where}: {self.label_field}: found {shown(label)}; allowed: {', '.join(self.classes)}"
            )
        return _Labelled(
            name=read_name(record, self.id_field, where),
            sample=Sample(where, tuple(texts), 1 + self.classes.index(label)),
            groups={field: read_field(record, field, int, where) for field in self.group_fields},
        )
