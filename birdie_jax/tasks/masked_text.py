"""Accuracy and loss of an encoder on hidden tokens of held-out text.

    python -m birdie_jax.evaluate --workdir=runs/bigs_tiny --task=masked_text:path=held-out.txt

The task cuts a text into windows of a fixed number of tokens. In each window, masked LM hides random
tokens; the seed selects them. The loss is not the loss of the whole text, because a masked language
model does not assign a probability to a text.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from birdie_jax.config_types import RequiredName, RowLength, Seed, Share, ShareOfBoth
from birdie_jax.errors import ConfigError, DataError, UnsuitableText
from birdie_jax.objectives import NO_LABEL, Arm, Example
from birdie_jax.objectives.masked_lm import MaskedLM
from birdie_jax.tasks.perplexity import DocumentLimit, Perplexity, perplexity_of, windows_of
from birdie_jax.tasks.question import Question, ScoredAnswer, TaskResult
from birdie_jax.tasks.records import OptionalDataPath
from birdie_jax.tasks.registry import register_task
from birdie_jax.tasks.task import Task
from birdie_jax.tasks.task_model import FoundTokens, Progress, TaskModel, no_progress
from birdie_jax.text import Tokenizer

# In the name of an answer, between the document and the first token of the window.
_FROM = " from "


@register_task
@dataclass(frozen=True, kw_only=True)
class MaskedText(Task):
    """Predict hidden tokens of held-out text.

    Texts have the format of the model's masked LM arm, with the rates of this task. Each window has a
    scored answer. Its weight is the number of hidden tokens. Its name consists of the file, the number
    of the document in the file and the index of the window's first token, both from 0. The answers of a
    document are one unit: a single document has an interval without width.

    Metrics: accuracy; loss in nats per hidden token; perplexity, the exponential of the loss.

    Attributes:
        path: the documents: a file, a folder, a glob, `stdlib` or a URL, as for `prepare_data`.
        prepared: a folder that `prepare_data` wrote with the model's tokenizer, instead of `path`.
        split: the split of the prepared folder.
        text_field: the field of JSON lines and Parquet that holds the text.
        window: the largest number of tokens of a window. A text, or the rest after its last whole
            window, is skipped and reported if it is shorter than the arm's `min_length`, by default 8
            tokens.
        max_documents: the number of documents to read, from the first; None = all.
        rate: the share of tokens to hide.
        mask_share: the share of hidden tokens that become [MASK].
        random_share: the share of hidden tokens that become a random token; the others are unchanged.
        seed: the seed that selects hidden tokens.
    """

    name: ClassVar[str] = "masked_text"
    main_metric: ClassVar[str] = "accuracy"
    in_place: ClassVar[bool] = True

    path: OptionalDataPath = ""
    prepared: OptionalDataPath = ""
    split: Literal["train", "validation"] = "validation"
    text_field: RequiredName = "text"
    window: RowLength = 126
    max_documents: DocumentLimit | None = None
    rate: ShareOfBoth = 0.15
    mask_share: Share = 0.8
    random_share: Share = 0.1
    seed: Seed = 0

    def __post_init__(self):
        # Both validate the settings: the source and the shares.
        self._reader()
        self._objective(None)

    def _reader(self) -> Perplexity:
        return Perplexity(
            path=self.path,
            prepared=self.prepared,
            split=self.split,
            text_field=self.text_field,
            max_documents=self.max_documents,
        )

    def _objective(self, arm: Arm | None) -> MaskedLM:
        """Return the masked LM objective of an arm, with the shares of the task."""
        # Without an arm, the training objectives are unknown.
        learned = MaskedLM() if arm is None else arm.objective
        if not isinstance(learned, MaskedLM):
            raise ConfigError(
                f"task {self.name}: found the objective {learned.name}; allowed: {MaskedLM.name}"
            )
        return replace(learned, rate=self.rate, mask_share=self.mask_share, random_share=self.random_share)

    def check_length(self, arm_in_place: Arm | None, max_length: int | None) -> None:
        """Check that windows are long enough for the arm and not too long for the model."""
        objective = self._objective(arm_in_place)
        if self.window < objective.minimum_tokens:
            raise ConfigError(
                f"task {self.name}: window: found {self.window}; allowed: at least "
                f"{objective.minimum_tokens}, the fewest tokens in which {objective.name} hides any"
            )
        longest = objective.example_length(self.window)
        if max_length is not None and longest > max_length:
            raise ConfigError(
                f"task {self.name}: window: found {self.window:,}; allowed: at most "
                f"{objective.text_limit(max_length):,}: the longest rows that the model has learned "
                f"have {max_length:,} positions"
            )

    def check_data(self, tokenizer: Tokenizer) -> None:
        """Read the documents."""
        self._reader().check_data(tokenizer)

    def measure(self, model: TaskModel, progress: Progress = no_progress) -> TaskResult:
        """Predict the hidden tokens of every window.

        Raises:
            ConfigError: the window is too long for the model or too short for the arm.
            DataError: a document cannot be read, or no window is long enough.
        """
        self.check_length(model.arm_in_place, model.max_length)
        objective = self._objective(model.arm_in_place).with_vocabulary(model.tokenizer.num_pieces)
        names, examples, refused = [], [], []
        for number, document in enumerate(self._reader().documents(model.tokenizer)):
            for part in windows_of(len(document.tokens), self.window):
                rng = np.random.default_rng((self.seed, number, part.start))
                name = f"{document.name}{_FROM}{part.start}"
                try:
                    example = objective.build(document.tokens[part.start : part.end], rng)
                except UnsuitableText as error:
                    refused.append(f"{name}: {error}")
                    continue
                names.append(name)
                examples.append(example)
        if not examples:
            raise DataError(
                f"{self.path or self.prepared}: holds no text of {objective.minimum_tokens} tokens; "
                "allowed: at least one"
            )
        found = model.fill_in(examples, progress)
        return TaskResult(tuple(map(_score, names, examples, found)), tuple(refused))

    def derived_metrics(self, means: Mapping[str, float]) -> Mapping[str, float]:
        """Return the exponential of the loss."""
        return {"perplexity": perplexity_of(means["loss"])}

    def unit_of(self, answer: ScoredAnswer) -> str:
        """Return the document: its windows have other text with another tokenizer."""
        return answer.question.name.rsplit(_FROM, 1)[0]


def _score(name: str, example: Example, found: FoundTokens) -> ScoredAnswer:
    assert example.labels is not None  # examples of masked_lm have labels
    labels = example.labels[example.labels != NO_LABEL]
    metrics = {
        "accuracy": float((found.tokens == labels).mean()),
        "loss": float(found.losses.astype(np.float64).mean()),
    }
    details = {"hidden": labels.tolist(), "found": found.tokens.tolist()}
    return ScoredAnswer(Question(name, "", ("",)), "", metrics, weight=float(len(labels)), details=details)
