"""GLUE (Wang et al. 2019): a fine-tuned head predicts labels of sentences and pairs (docs/glue.md).

python -m birdie_jax.evaluate --workdir=runs/rte --task=glue:dataset=rte,path=data/glue/RTE
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from birdie_jax.errors import DataError, shown
from birdie_jax.models.classification_head import CLASSIFICATION
from birdie_jax.models.regression_head import REGRESSION, label_of_number, number_of_label
from birdie_jax.models.task_head import Head
from birdie_jax.storage import make_path
from birdie_jax.tasks.glue_files import (
    ACCURACY,
    GLUE_DATASETS,
    MAX_SCORE,
    PHENOMENON,
    GlueDataset,
    predictions_table,
    read_phenomena,
    read_tsv,
    read_unlabelled,
)
from birdie_jax.tasks.head_task import HeadTask, Sample, SampleExamples
from birdie_jax.tasks.metrics import (
    F1,
    INNER_METRICS,
    MATTHEWS,
    PEARSON,
    SPEARMAN,
    class_scores,
    confusion,
    correlation_of_means,
    correlation_scores,
    correlation_scores_within,
    f1_of_means,
    matthews_of_means,
)
from birdie_jax.tasks.question import LENGTH_GROUP, Question, ScoredAnswer, TaskResult
from birdie_jax.tasks.records import DataPath, OptionalDataPath, check_text
from birdie_jax.tasks.registry import register_task
from birdie_jax.tasks.task_model import Progress, TaskModel, no_progress
from birdie_jax.text import Tokenizer

TRAIN = "train"
# The largest rounding error of a float32 number up to 5.
_FLOAT32_ERROR = 1e-6


@register_task
@dataclass(frozen=True, kw_only=True)
class Glue(HeadTask):
    """A data set of GLUE, in the published files.

    Fine-tuning uses `train.tsv`. On a split with published labels, the task measures the model. On other
    splits, it writes predictions in the leaderboard's format.

    Metrics:

    - QNLI, RTE, SST-2, WNLI and MNLI: accuracy.
    - QQP and MRPC: F1 of class 1, and accuracy.
    - CoLA: Matthews' correlation, and accuracy.
    - STS-B: Spearman's and Pearson's correlation.

    Attributes:
        dataset: the data set.
        path: the folder with the files, or its URL.
        split: the split. To measure: dev (for MNLI: dev_matched or dev_mismatched) or train. To predict:
            test (for MNLI: test_matched or test_mismatched). Empty = dev, or for MNLI dev_matched.
        phenomena: for CoLA, the annotated development set, a file or its URL. Its phenomena are categories
            that break scores down (birdie_jax/tasks/glue_files.py). Empty = no breakdown.
        skip_bad_records: whether to skip and report rows that cannot be read instead of refusing the file.
    """

    name: ClassVar[str] = "glue"

    dataset: Literal["cola", "sst2", "mrpc", "qqp", "stsb", "mnli", "qnli", "rte", "wnli"]
    path: DataPath
    split: Literal[
        "", "dev", "dev_matched", "dev_mismatched", "train", "test", "test_matched", "test_mismatched"
    ] = ""
    phenomena: OptionalDataPath = ""
    skip_bad_records: bool = False

    def __post_init__(self):
        if self.phenomena and self.dataset != "cola":
            raise ValueError(f"phenomena: found {self.phenomena!r}; allowed for {self.dataset}: none")
        allowed = ("", *self._form.splits, TRAIN, *self._form.predictions)
        if self.split not in allowed:
            names = ", ".join(filter(None, allowed))
            raise ValueError(f"split: found {self.split!r}; allowed for {self.dataset}: {names}")
        if self.phenomena and self.predictions_file:
            raise ValueError(f"phenomena: found {self.phenomena!r}; allowed for {self.split}: none")

    @property
    def _form(self) -> GlueDataset:
        return GLUE_DATASETS[self.dataset]

    @property
    def main_metric(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The main metric of the data set."""
        return self._form.metrics[0]

    @property
    def head(self) -> Head:
        """The classification or regression head, with the name of the data set."""
        classes = self._form.classes
        return (
            Head(CLASSIFICATION, self.dataset, len(classes), classes)
            if classes
            else Head(REGRESSION, self.dataset)
        )

    def samples(self, split: str) -> tuple[list[Sample], list[str]]:
        """Return the samples of a split, and a message for each skipped row.

        Raises:
            DataError: the file cannot be read, or a row is bad. The message names the lines.
        """
        form, path = self._form, make_path(self.path) / f"{split}.tsv"

        def parse(row: Mapping[str, str], where: str) -> Sample:
            texts = tuple(check_text(row[column], f"{where}: {column}").strip() for column in form.texts)
            return Sample(where, texts, _label(form, row[form.label], f"{where}: {form.label}"))

        needed = (*form.texts, form.label)
        return read_tsv(path, parse, needed, columns=form.columns, skip_bad=self.skip_bad_records)

    def training_examples(self, tokenizer: Tokenizer) -> SampleExamples:
        """Return the examples of `train.tsv`."""
        return self.examples(*self.samples(TRAIN), tokenizer)

    def check_data(self, tokenizer: Tokenizer) -> None:
        """Read the split and the annotated phenomena."""
        del tokenizer
        if self.predictions_file:
            self._unlabelled()
        else:
            self._categories(self._measured()[0])

    def measure(self, model: TaskModel, progress: Progress = no_progress) -> TaskResult:
        """Predict every label of the split with the head."""
        if self.predictions_file:
            return self._predict(model, progress)
        samples, refused = self._measured()
        categories = self._categories(samples)
        found, too_long = self.scores(samples, model, progress)
        predicted = [_prediction(self._form, scores) for _, _, scores in found]
        labels = [_number(self._form, samples[number].label) for number, _, _ in found]
        metrics = self._metrics(labels, predicted)
        answers = []
        for (place, positions, scores), number, metric in zip(found, predicted, metrics, strict=True):
            sample = samples[place]
            question = Question(
                name=sample.name,
                prompt="\n".join(sample.texts),
                references=(self._shown(_number(self._form, sample.label)),),
                choices=self._form.classes,
                groups={LENGTH_GROUP: positions},
                categories=categories[place],
            )
            answers.append(ScoredAnswer(question, self._shown(number), metric, details={"scores": scores}))
        return TaskResult(tuple(answers), (*refused, *too_long))

    @property
    def predictions_file(self) -> str:
        """The leaderboard's file name for the predictions of a split without labels; else empty."""
        return self._form.predictions.get(self.split, "")

    def predictions(self, answers: Sequence[ScoredAnswer]) -> bytes:
        """Return the predictions file. Each line has an index, and a class or a number from 0 to 5."""
        return predictions_table(
            [answer.question.name for answer in answers], [answer.answer for answer in answers]
        )

    def _predict(self, model: TaskModel, progress: Progress) -> TaskResult:
        """Predict the labels of a split without labels, in the order of the file."""
        indices, samples = self._unlabelled()
        found, _ = self.scores(samples, model, progress, all_needed=True)
        answers = []
        for index, sample, (_, positions, scores) in zip(indices, samples, found, strict=True):
            predicted = _prediction(self._form, scores)
            # The head's number may be out of range.
            shown_here = self._shown(
                predicted if self._form.classes else min(max(predicted, 0.0), MAX_SCORE)
            )
            question = Question(
                name=index,
                prompt="\n".join(sample.texts),
                references=(),
                choices=self._form.classes,
                groups={LENGTH_GROUP: positions},
            )
            answers.append(ScoredAnswer(question, shown_here, {}, details={"scores": scores}))
        return TaskResult(tuple(answers))

    def _measured(self) -> tuple[list[Sample], list[str]]:
        """Return the samples of the measured split, and a message for each skipped row."""
        return self.samples(self.split or self._form.splits[0])

    def _unlabelled(self) -> tuple[list[str], list[Sample]]:
        """Return the indices and samples of the split without labels."""
        return read_unlabelled(make_path(self.path) / f"{self.split}.tsv", self._form)

    def _categories(self, samples: Sequence[Sample]) -> list[dict[str, tuple[str, ...]]]:
        """Return the phenomena of each sample; empty for a sample without annotation."""
        found = read_phenomena(make_path(self.phenomena)) if self.phenomena else {}
        categories: list[dict[str, tuple[str, ...]]] = []
        for sample in samples:
            of_sentence = found.get(sample.texts[0])
            if of_sentence is None:
                categories.append({})
            else:
                # If a sentence occurs twice, each occurrence has its own annotation.
                shown_here = of_sentence.pop(0) if len(of_sentence) > 1 else of_sentence[0]
                categories.append({PHENOMENON: shown_here})
        if self.phenomena and not any(categories):
            raise DataError(
                f"{self.phenomena}: has none of the sentences of {self.path}; allowed: annotations of the "
                "split that is measured"
            )
        return categories

    def derived_metrics(self, means: Mapping[str, float]) -> Mapping[str, float]:
        """Return F1 and the correlations that the data set uses."""
        derived = {
            F1: f1_of_means,
            MATTHEWS: matthews_of_means,
            SPEARMAN: lambda found: correlation_of_means(found, SPEARMAN),
            PEARSON: lambda found: correlation_of_means(found, PEARSON),
        }
        return {name: derived[name](means) for name in self._form.metrics if name in derived}

    def rescored(self, answers: Sequence[ScoredAnswer]) -> Sequence[ScoredAnswer]:
        """Recompute the ranks of numbers among these answers."""
        if self._form.classes:
            return answers
        metrics = correlation_scores_within([answer.metrics for answer in answers])
        return [answer._replace(metrics=own) for answer, own in zip(answers, metrics, strict=True)]

    @property
    def inner_metrics(self) -> frozenset[str]:
        """The metrics that F1 and the correlations are derived from."""
        return INNER_METRICS

    def _metrics(self, labels: Sequence[float], predicted: Sequence[float]) -> list[dict[str, float]]:
        """Return the metrics of each answer."""
        if not self._form.classes:
            return correlation_scores(labels, predicted) if labels else []
        pairs = [(int(label), int(number)) for label, number in zip(labels, predicted, strict=True)]
        scores = [class_scores(*pair) for pair in pairs]
        if self._form.metrics[0] != ACCURACY:
            scores = [score | confusion(*pair) for score, pair in zip(scores, pairs, strict=True)]
        return scores

    def _shown(self, number: float) -> str:
        return self._form.classes[int(number)] if self._form.classes else f"{number:.3f}"


def _label(form: GlueDataset, found: str, where: str) -> int:
    """Return the head's label of a cell."""
    if form.classes:
        if found not in form.classes:
            raise DataError(f"{where}: found {shown(found)}; allowed: {', '.join(form.classes)}")
        return 1 + form.classes.index(found)
    try:
        number = float(found)
    except ValueError:
        number = -1.0
    label = label_of_number(number) if 0 <= number <= MAX_SCORE else 0
    # Refuse a number that the label would round, but allow float32 errors: 3.799999952316284 is 3.8.
    if not label or abs(number_of_label(label) - number) > _FLOAT32_ERROR:
        raise DataError(
            f"{where}: found {shown(found)}; allowed: a number from 0 to {MAX_SCORE:g} with at most three "
            "decimals"
        )
    return label


def _number(form: GlueDataset, label: int) -> float:
    """Return the class or the number of a label."""
    return float(label - 1) if form.classes else number_of_label(label)


def _prediction(form: GlueDataset, scores: Sequence[float]) -> float:
    """Return the class or the number that a head predicts."""
    return float(scores.index(max(scores))) if form.classes else scores[0]
