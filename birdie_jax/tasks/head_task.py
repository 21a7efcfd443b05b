"""The base class of the tasks that a model answers with a head of fine-tuning, and not with tokens."""

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from birdie_jax.config import Config
from birdie_jax.config_errors import ConfigError
from birdie_jax.models.task_head import Head
from birdie_jax.objectives import Arm
from birdie_jax.tasks.registry import TASK_KEY, TASKS, make_task
from birdie_jax.tasks.samples import MaxPositions, Sample, SampleExamples, labelled_example, sample_tokens
from birdie_jax.tasks.task import Task
from birdie_jax.tasks.task_model import Progress, TaskModel, no_progress
from birdie_jax.text import DataError, Tokenizer


@dataclass(frozen=True, kw_only=True)
class HeadTask(Task):
    """A task whose records are samples with labels.

    Attributes:
        max_positions: the largest length of a sample, special tokens counted; the longer text of a pair is
            cut first. 0 = nothing is cut: what is longer than a row is refused in training, or left out
            where `skip_long` of its stage asks for it, and is not asked in evaluation.
    """

    in_place: ClassVar[bool] = True

    max_positions: MaxPositions = 0

    @property
    @abc.abstractmethod
    def head(self) -> Head:
        """The head that the task needs."""

    def check_length(self, arm_in_place: Arm | None, max_length: int | None) -> None:
        """Check that texts are cut to what a model has learned."""
        del arm_in_place
        if max_length is not None and self.max_positions > max_length:
            raise ConfigError(
                f"task {self.name}: max_positions: found {self.max_positions:,}; allowed: at most "
                f"{max_length:,}, the longest rows that the model has learned"
            )

    def examples(
        self, samples: Sequence[Sample], refused: Sequence[str], tokenizer: Tokenizer
    ) -> SampleExamples:
        """Return the training examples of samples, cut to `max_positions`.

        Args:
            samples: what is learned from.
            refused: a line for each record that was passed over.
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
        """Return what the head says of each sample that the model can read.

        Args:
            samples: the samples.
            model: the model.
            progress: called with the number of samples done and of all.
            all_needed: whether no sample may be left out.

        Returns:
            For each sample its number, its positions and its scores; and a line for each that is too long.

        Raises:
            DataError: a sample is too long, and all are needed; names the first.
            ScoreError: a score is not finite; names the sample.
        """
        asked, refused = [], []
        for number, context in enumerate(self._contexts(samples, model.tokenizer)):
            if model.max_length is not None and len(context) > model.max_length:
                refused.append(
                    f"{samples[number].name}: has {len(context):,} positions; allowed: at most "
                    f"{model.max_length:,}, or max_positions to cut it"
                )
            else:
                asked.append((number, labelled_example(context, samples[number].label)))
        if refused and all_needed:
            raise DataError(f"{len(refused):,} of {len(samples):,} are too long, the first: {refused[0]}")
        found = model.sample_scores(
            [(samples[number].name, example) for number, example in asked], progress
        )
        return [
            (number, len(example.context), scores[0].tolist())
            for (number, example), scores in zip(asked, found, strict=True)
        ], refused

    def _contexts(self, samples: Sequence[Sample], tokenizer: Tokenizer) -> list:
        texts = iter(tokenizer.encode_batch([text for sample in samples for text in sample.texts]))
        return [
            sample_tokens([next(texts) for _ in sample.texts], self.max_positions) for sample in samples
        ]


def trained_head(config: Config) -> Head | None:
    """Return the head of a run's model, with its classes as the stages of the run name them.

    Args:
        config: the configuration of the run, as it is saved.
    """
    model = config.model
    if not model.head:
        return None
    sections = config.finetune.stages.values()
    classes = next((found for section in sections if (found := _classes_of_stage(section))), ())
    return Head(model.head, model.head_name, model.head_outputs, classes)


def _classes_of_stage(section: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the classes of the task of a stage; none where the task is not known here."""
    name = section.get(TASK_KEY)
    if name not in TASKS:
        return ()
    settings = {field.name: section[field.name] for field in fields(TASKS[name]) if field.name in section}
    try:
        head = make_task(name, settings, "config.finetune.stages").head
    except ConfigError:
        # Of another version of the program, or of other data.
        return ()
    return head.classes if head is not None else ()
