"""The rows of a stage: the examples in row r of step s, from records or from a generator."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from birdie_jax.batching import packed_length
from birdie_jax.errors import ConfigError, DataError
from birdie_jax.finetuning.packed_epochs import PackedEpochs
from birdie_jax.finetuning.stages import Stage
from birdie_jax.objectives import Example
from birdie_jax.tasks import GeneratedExamples, PartialExamples, RecordedExamples

_MAX_NAMED = 3
# Separates generated examples from other uses of the run's seed.
_GENERATE = 0x67656E65


@runtime_checkable
class NamedExamples(Protocol):
    """Recorded examples that name their origins."""

    def name_of(self, index: int) -> str:
        """Return a readable name of an example, such as `train.jsonl line 7`."""
        ...


@runtime_checkable
class GroupedExamples(Protocol):
    """Recorded examples that are groups of samples, such as choices, next to each other in a row.

    Attributes:
        group_size: the number of samples in a group; the group's length excludes the spacing between them.
    """

    @property
    def group_size(self) -> int: ...  # noqa: D102

    def group(self, index: int) -> Sequence[Example]:
        """Return the examples of a group."""
        ...


@runtime_checkable
class StageRows(Protocol):
    """The rows of a stage.

    Attributes:
        num_steps: the number of train steps of the stage.
        description: the number of examples, their packing and the skipped records, as text.
    """

    @property
    def num_steps(self) -> int: ...  # noqa: D102

    @property
    def description(self) -> str: ...  # noqa: D102

    def examples(self, step: int, row: int) -> list[Example]:
        """Return the examples of a row of the global batch of a step, both counted from 0."""
        ...


def make_stage_rows(
    stage: Stage,
    examples: GeneratedExamples | RecordedExamples,
    *,
    seed: int,
    first_step: int,
    spacing: int,
) -> StageRows:
    """Return the rows of a stage.

    Args:
        stage: the stage.
        examples: the examples of its task.
        seed: the seed of the run.
        first_step: the number of steps of the run before the stage.
        spacing: the padding positions between two examples of a row.

    Raises:
        ConfigError: the stage lacks epochs or steps, or sets one that does not apply; or examples are
            longer than its rows.
        DataError: the task has no examples.
    """
    if isinstance(examples, RecordedExamples):
        return RecordedRows(stage, examples, seed=seed, spacing=spacing)
    return GeneratedRows(stage, examples, seed=seed, first_step=first_step, spacing=spacing)


class RecordedRows:
    """Rows of recorded examples; each example occurs once per epoch.

    Rows of the next epoch complete the last batch of an epoch. Rows of padding, without loss, complete the
    last batch of the last epoch, so no example is dropped. A fraction of an epoch takes that share of its
    rows, rounded up.

    Attributes:
        num_steps: the number of train steps of the stage.
        description: the number of examples, their packing and the skipped records.
    """

    def __init__(self, stage: Stage, examples: RecordedExamples, *, seed: int, spacing: int):
        """Pack the examples; see `make_stage_rows`."""
        lengths = np.asarray(examples.lengths, np.int64)
        if isinstance(examples, GroupedExamples):
            lengths = lengths + (examples.group_size - 1) * spacing
        fitting, skipped = _fitting(stage, examples, lengths)
        self._examples, self._fitting = examples, fitting
        self._rows, self._arm = stage.rows, stage.number
        # Without packing, each example takes a whole row.
        taken = lengths[fitting] if stage.pack else np.full(len(fitting), stage.length, np.int64)
        self._packed = PackedEpochs(taken, stage.length, spacing, seed=seed, key=stage.number)
        per_epoch = self._packed.rows_per_epoch
        padding = 1 - float(lengths[fitting].sum()) / (per_epoch * stage.length)
        self._num_rows: int | None = None
        self.num_steps = stage.steps or 0
        if stage.epochs is not None:
            whole = math.floor(stage.epochs)
            self._num_rows = whole * per_epoch + math.ceil(round((stage.epochs - whole) * per_epoch, 6))
            steps = -(-self._num_rows // stage.rows)
            self.num_steps = min(steps, stage.steps or steps)
        drawn = self.num_steps * stage.rows / per_epoch
        epochs = drawn if stage.epochs is None else min(drawn, stage.epochs)
        self.description = (
            f"{len(fitting):,} examples in {per_epoch:,} rows of {stage.length:,}, "
            f"{padding:.1%} of them padding; {epochs:g} epochs in "
            f"{self.num_steps:,} steps{skipped}{_passed_over(examples)}"
        )

    def examples(self, step: int, row: int) -> list[Example]:
        """Return the examples of a row; none after the last epoch."""
        number = step * self._rows + row
        if self._num_rows is not None and number >= self._num_rows:
            return []
        numbers = self._fitting[self._packed.row(number)].tolist()
        found = (example for index in numbers for example in examples_of(self._examples, index))
        return [dataclasses.replace(example, arm=self._arm) for example in found]


class GeneratedRows:
    """Rows of generated examples: row r of step s of the run is a function of (seed, s, r) only.

    Attributes:
        num_steps: the number of train steps of the stage.
        description: the number of steps, as text.
    """

    def __init__(
        self, stage: Stage, examples: GeneratedExamples, *, seed: int, first_step: int, spacing: int
    ):
        """Prepare to draw examples; see `make_stage_rows`."""
        if not stage.pack:
            raise ConfigError(
                f"{stage.where}.pack: found False; allowed: True: the task {stage.task.name} generates "
                "examples that fill a row"
            )
        if stage.epochs is not None or stage.steps is None:
            raise ConfigError(
                f"{stage.where}.epochs: found {stage.epochs}; allowed: no epochs, but steps: the task "
                f"{stage.task.name} generates examples without end"
            )
        self._examples, self._stage, self._spacing = examples, stage, spacing
        self._seed, self._first_step = seed, first_step
        self.num_steps = stage.steps
        self.description = f"generated examples in rows of {stage.length:,}; {self.num_steps:,} steps"
        if not self.examples(0, 0):
            raise ConfigError(
                f"{stage.where}.length: found {stage.length}; allowed: rows long enough for an example of "
                f"{stage.task.name}"
            )

    def examples(self, step: int, row: int) -> list[Example]:
        """Return the examples of a row, drawn until no example fits the remaining room."""
        random = np.random.default_rng((self._seed, _GENERATE, self._first_step + step, row))
        room, drawn = self._stage.length, []
        while room > 0:
            example = self._examples.draw(random, room)
            if example is None:
                break
            if packed_length(example) > room:
                raise ValueError(
                    f"task {self._stage.task.name}: draw returned an example of {packed_length(example)} "
                    f"positions; allowed: at most {room}, its max_positions"
                )
            drawn.append(dataclasses.replace(example, arm=self._stage.number))
            room -= packed_length(example) + self._spacing
        return drawn


def examples_of(examples: RecordedExamples, index: int) -> Sequence[Example]:
    """Return the examples of recorded example `index`: itself, or its group."""
    return examples.group(index) if isinstance(examples, GroupedExamples) else (examples[index],)


def _fitting(stage: Stage, examples: RecordedExamples, lengths: np.ndarray) -> tuple[np.ndarray, str]:
    """Return the numbers of the examples that fit a row, and a text about the others."""
    fits = lengths <= stage.length
    fitting, long = np.flatnonzero(fits), np.flatnonzero(~fits)
    skipped = ""
    if len(long):
        named = _names(examples, lengths, long[:_MAX_NAMED].tolist(), len(long))
        count = f"{len(long):,} of {len(lengths):,} examples are longer than a row: {named}"
        if not stage.skip_long:
            raise ConfigError(
                f"{stage.where}.length: found {stage.length}; {count}; allowed: at least "
                f"{int(lengths.max())}, or skip_long=True to skip them"
            )
        skipped = f"; skipped because of skip_long: {count}"
    if not len(fitting):
        raise DataError(f"{stage.where}: the task {stage.task.name} has no example{skipped}")
    return fitting, skipped


def _passed_over(examples: RecordedExamples) -> str:
    """Return a text about the records that could not become examples."""
    refused = examples.refused if isinstance(examples, PartialExamples) else ()
    if not refused:
        return ""
    return f"; skipped: {len(refused):,} records, the first: {refused[0]}"


def _names(examples: RecordedExamples, lengths: np.ndarray, numbers: Sequence[int], of_all: int) -> str:
    def name(number: int) -> str:
        return examples.name_of(number) if isinstance(examples, NamedExamples) else f"example {number + 1}"

    shown = [f"{name(number)} ({lengths[number]} positions)" for number in numbers]
    return ", ".join(shown) + (", ..." if of_all > len(shown) else "")
