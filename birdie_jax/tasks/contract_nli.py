"""ContractNLI (Koreeda and Manning 2021) in SCROLLS's format: whether a contract entails a hypothesis.

python -m birdie_jax.evaluate --workdir=runs/cnli --task=contract_nli:path=validation.jsonl
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from birdie_jax.errors import DataError, shown
from birdie_jax.models.classification_head import CLASSIFICATION
from birdie_jax.models.task_head import Head
from birdie_jax.tasks.head_task import HeadTask, Sample, SampleExamples
from birdie_jax.tasks.metrics import class_scores
from birdie_jax.tasks.question import LENGTH_GROUP, Question, ScoredAnswer, TaskResult
from birdie_jax.tasks.records import DataPath, check_text, read_field, read_name, read_records, read_text
from birdie_jax.tasks.registry import register_task
from birdie_jax.tasks.task_model import Progress, TaskModel, no_progress
from birdie_jax.text import Tokenizer

CLASSES = ("Contradiction", "Entailment", "Not mentioned")
# In SCROLLS, the first empty line ends the hypothesis. The contract may contain more.
_BORDER = "\n\n"


@register_task
@dataclass(frozen=True, kw_only=True)
class ContractNLI(HeadTask):
    """Classify pairs of a hypothesis and a contract.

    A record is a JSON object on a line. `id` names it. `input` holds the hypothesis, an empty line and the
    contract. `output` is the class. `max_positions` truncates the contract.

    Attributes:
        main_metric: accuracy, which is SCROLLS's exact match.
        path: the JSONL file, or its URL, for training or evaluation.
        skip_bad_records: whether to skip and report bad records instead of refusing the file.
    """

    name: ClassVar[str] = "contract_nli"
    main_metric: ClassVar[str] = "accuracy"

    path: DataPath
    skip_bad_records: bool = False

    @property
    def head(self) -> Head:
        """Three classes."""
        return Head(CLASSIFICATION, self.name, len(CLASSES), CLASSES)

    def samples(self) -> tuple[list[tuple[str, Sample]], list[str]]:
        """Return the ids and samples of the records, and a message for each skipped record.

        Raises:
            DataError: the file cannot be read, or a record is bad. The message names the lines.
        """
        return read_records(self.path, _parse, self.skip_bad_records, lambda record: record[0])

    def training_examples(self, tokenizer: Tokenizer) -> SampleExamples:
        """Return an example for each record."""
        records, refused = self.samples()
        return self.examples([sample for _, sample in records], refused, tokenizer)

    def check_data(self, tokenizer: Tokenizer) -> None:
        """Read the records."""
        del tokenizer
        self.samples()

    def measure(self, model: TaskModel, progress: Progress = no_progress) -> TaskResult:
        """Predict the class of every record with the head."""
        records, refused = self.samples()
        found, too_long = self.scores([sample for _, sample in records], model, progress)
        answers = []
        for number, positions, scores in found:
            name, sample = records[number]
            predicted, label = scores.index(max(scores)), sample.label - 1
            groups = {LENGTH_GROUP: positions}
            question = Question(name, _BORDER.join(sample.texts), (CLASSES[label],), CLASSES, groups)
            metrics = class_scores(label, predicted)
            answers.append(ScoredAnswer(question, CLASSES[predicted], metrics, details={"scores": scores}))
        return TaskResult(tuple(answers), (*refused, *too_long))


def _parse(record: Mapping[str, Any], where: str) -> tuple[str, Sample]:
    whole, output = read_text(record, "input", where), read_field(record, "output", str, where)
    hypothesis, border, contract = whole.strip().partition(_BORDER)
    if not border:
        raise DataError(
            f"{where}: input: found {shown(whole, 80)}; allowed: a hypothesis, an empty line and a contract"
        )
    if output not in CLASSES:
        raise DataError(f"{where}: output: found {shown(output)}; allowed: {', '.join(CLASSES)}")
    texts = (hypothesis, check_text(contract, f"{where}: input").strip())
    return read_name(record, "id", where), Sample(where, texts, 1 + CLASSES.index(output))
