"""The base class of tasks that a model answers with a fine-tuned head instead of tokens."""

import abc
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
from jaxtyping import Int32, Int64

from birdie_jax import vocabulary
from birdie_jax.config import Config
from birdie_jax.errors import ConfigError, DataError
from birdie_jax.models.task_head import Head
from birdie_jax.objectives import NO_LABEL, Arm, Example
from birdie_jax.storage import Bounds
from birdie_jax.tasks.registry import TASK_KEY, TASKS, make_task
from birdie_jax.tasks.task import Task
from birdie_jax.tasks.task_model import Progress, TaskModel, no_progress
from birdie_jax.text import Tokenizer

# The marker of masked LM and the separators are in the places of [CLS] and [SEP] of Devlin et al. 2019.

# Longer samples are truncated; 0 = no limit. Fewer than 8 positions would leave hardly a word.
MaxPositions = Annotated[int, Bounds(at_least=8, at_most=2**24, special=(0,))]


class Sample(NamedTuple):
    """The input of a head and its label.

    Attributes:
        name: the location of the record, such as `dev.tsv: line 3`.
        texts: one or two texts.
        label: the label in the encoding of heads (birdie_jax/models/task_head.py).
    """

    name: str
    texts: tuple[str, ...]
    label: int


def sample_tokens(
    texts: Sequence[Int32[np.ndarray, " _"]], max_positions: int = 0
) -> Int32[np.ndarray, " positions"]:
    """Return the context of a sample of one or two texts.

    Args:
        texts: the tokens of each text.
        max_positions: the largest length of the context; 0 = no limit. `cut_longest` truncates the texts.
    """
    if max_positions:
        texts = cut_longest(texts, max(max_positions - 1 - len(texts), 0))
    parts = [np.array([vocabulary.MASKED_LM], np.int32)]
    for tokens in texts:
        parts += [tokens, np.array([vocabulary.SEPARATOR], np.int32)]
    return np.concatenate(parts).astype(np.int32)


def cut_longest(texts: Sequence[Int32[np.ndarray, " _"]], max_tokens: int) -> list[Int32[np.ndarray, " _"]]:
    """Truncate texts to at most `max_tokens` tokens in total; the longest text is truncated first."""
    lengths, order = [len(text) for text in texts], sorted(range(len(texts)), key=lambda n: len(texts[n]))
    left = max_tokens
    for place, number in enumerate(order):
        # The shortest text takes what it needs of an equal share; the longer texts share the rest.
        lengths[number] = min(lengths[number], left // (len(order) - place))
        left -= lengths[number]
    return [text[:length] for text, length in zip(texts, lengths, strict=True)]


def labelled_example(context: Int32[np.ndarray, " positions"], label: int) -> Example:
    """Return the example of a context with the label at its first position."""
    labels = np.full(len(context), NO_LABEL, np.int32)
    labels[0] = label
    return Example(context, np.empty(0, np.int32), labels=labels)


class SampleExamples:
    """The training examples of samples, in order; a `RecordedExamples` with names.

    Attributes:
        lengths: the number of positions of each example, int64 [examples].
        sha256: the hash of all examples.
        refused: a message for each skipped record.
    """

    def __init__(
        self,
        names: Sequence[str],
        contexts: Sequence[Int32[np.ndarray, " _"]],
        labels: Sequence[int],
        refused: Sequence[str] = (),
    ):
        """Store contexts and labels.

        Args:
            names: the location of each example's record.
            contexts: the context of each example.
            labels: the label of each example.
            refused: a message for each skipped record.
        """
        self.refused = tuple(refused)
        self._names, self._labels = list(names), np.array(labels, np.int32)
        self.lengths: Int64[np.ndarray, " examples"] = np.array(list(map(len, contexts)), np.int64)
        self._ends = self.lengths.cumsum()
        self._tokens = np.concatenate([np.zeros(0, np.int32), *contexts])
        hashed = hashlib.sha256(self.lengths.tobytes())
        hashed.update(self._tokens.tobytes())
        hashed.update(self._labels.tobytes())
        self.sha256 = hashed.hexdigest()

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> Example:
        end = self._ends[index]
        context = self._tokens[end - self.lengths[index] : end]
        return labelled_example(context, int(self._labels[index]))

    def name_of(self, index: int) -> str:
        """Return the location of an example's record."""
        return self._names[index]


@dataclass(frozen=True, kw_only=True)
class HeadTask(Task):
    """A task whose records are samples with labels.

    Attributes:
        max_positions: the largest length of a sample, with special tokens. Longer samples are truncated,
            the longer text of a pair first. 0 = no limit: training refuses samples that are longer than a
            row, or skips them with `skip_long` of the stage; evaluation skips samples that are too long for
            the model.
    """

    in_place: ClassVar[bool] = True

    max_positions: MaxPositions = 0

    @property
    @abc.abstractmethod
    def head(self) -> Head:
        """The head that the task needs."""

    def check_length(self, arm_in_place: Arm | None, max_length: int | None) -> None:
        """Check that `max_positions` is not longer than the rows that the model was trained on."""
        del arm_in_place
        if max_length is not None and self.max_positions > max_length:
            raise ConfigError(
                f"task {self.name}: max_positions: found {self.max_positions:,}; allowed: at most "
                f"{max_length:,}, the longest rows that the model has learned"
            )

    def examples(
        self, samples: Sequence[Sample], refused: Sequence[str], tokenizer: Tokenizer
    ) -> SampleExamples:
        """Return the training examples of samples, truncated to `max_positions`.

        Args:
            samples: the training samples.
            refused: a message for each skipped record.
            tokenizer: the tokenizer of the model.
        """
        names, labels = [sample.name for sample in samples], [sample.label for sample in samples]
        return SampleExamples(names, self._contexts(samples, tokenizer), labels, refused)

    def scores(
        self,
        samples: Sequence[Sample],
        model: TaskModel,
        progress: Progress = no_progress,
        *,
        all_needed: bool = False,
    ) -> tuple[list[tuple[int, int, list[float]]], list[str]]:
        """Return the head's scores of each sample that is not too long for the model.

        Args:
            samples: the samples.
            model: the model.
            progress: called with the number of finished samples and the total.
            all_needed: whether to refuse samples that are too long instead of skipping them.

        Returns:
            For each sample its index, number of positions and scores; and a message for each sample that is
            too long.

        Raises:
            DataError: a sample is too long, and `all_needed` is true. The message names the first.
            ScoreError: a score is not finite. The message names the sample.
        """
        fitting, refused = [], []
        for number, context in enumerate(self._contexts(samples, model.tokenizer)):
            if model.max_length is not None and len(context) > model.max_length:
                refused.append(
                    f"{samples[number].name}: has {len(context):,} positions; allowed: at most "
                    f"{model.max_length:,}, or max_positions to cut it"
                )
            else:
                fitting.append((number, labelled_example(context, samples[number].label)))
        if refused and all_needed:
            raise DataError(f"{len(refused):,} of {len(samples):,} are too long, the first: {refused[0]}")
        scores_of_samples = model.sample_scores(
            [(samples[number].name, example) for number, example in fitting], progress
        )
        return [
            (number, len(example.context), scores[0].tolist())
            for (number, example), scores in zip(fitting, scores_of_samples, strict=True)
        ], refused

    def _contexts(self, samples: Sequence[Sample], tokenizer: Tokenizer) -> list:
        texts = iter(tokenizer.encode_batch([text for sample in samples for text in sample.texts]))
        return [
            sample_tokens([next(texts) for _ in sample.texts], self.max_positions) for sample in samples
        ]


def trained_head(config: Config) -> Head | None:
    """Return the head of a run's model, with the classes that the stages of the run name.

    Args:
        config: the saved configuration of the run.
    """
    model = config.model
    if not model.head:
        return None
    sections = config.finetune.stages.values()
    classes = next((found for section in sections if (found := _classes_of_stage(section))), ())
    return Head(model.head, model.head_name, model.head_outputs, classes)


def _classes_of_stage(section: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the classes of a stage's task; empty if the task is unknown."""
    name = section.get(TASK_KEY)
    if not isinstance(name, str) or name not in TASKS:
        return ()
    settings = {field.name: section[field.name] for field in fields(TASKS[name]) if field.name in section}
    try:
        head = make_task(name, settings, "config.finetune.stages").head
    except ConfigError:
        # Another version of the program may have saved these settings.
        return ()
    return head.classes if head is not None else ()
