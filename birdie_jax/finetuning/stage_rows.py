"""The rows of a stage: which examples stand in row r of its step s, from records or from a generator."""

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
# Sets what is generated apart from everything else that is drawn with the run's seed.
_GENERATE = 0x67656E65


@runtime_checkable
class NamedExamples(Protocol):
    """Recorded examples that say where each is from."""

    def name_of(self, index: int) -> str:
        """Return what people call an example, such as `train.jsonl line 7`."""
        ...


@runtime_checkable
class GroupedExamples(Protocol):
    """Recorded examples each of which is several that follow one another in a row, such as choices.

    Attributes:
        group_size: how many; a length is that of all of them, without the spacing between them.
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
        description: how many examples there are, how they are packed and what was passed over, for people.
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
        examples: what its task gives.
        seed: the seed of the run.
        first_step: the number of steps of the run before the stage.
        spacing: the padding positions between two examples of a row.

    Raises:
        ConfigError: the stage needs epochs or steps that it has not, or the other way round; or examples
            are longer than its rows.
        DataError: there is no example.
    """
    if isinstance(examples, RecordedExamples):
        return RecordedRows(stage, examples, seed=seed, spacing=spacing)
    return GeneratedRows(stage, examples, seed=seed, first_step=first_step, spacing=spacing)


class RecordedRows:
    """Rows of recorded examples, each of which occurs once an epoch.

    Where an epoch does not end with a batch, the batch goes on with rows of the next one; the last batch of
    the last epoch is filled with rows of padding, which bear no loss. So nothing is dropped. Of a fraction
    of an epoch, as large a share of its rows is taken, rounded up.

    Attributes:
        num_steps: the number of train steps of the stage.
        description: how many examples there are, how they are packed and what was passed over.
    """

    def __init__(self, stage: Stage, examples: RecordedExamples, *, seed: int, spacing: int):
        """Pack the examples; see `make_stage_rows`."""
        lengths = np.asarray(examples.lengths, np.int64)
        if isinstance(examples, GroupedExamples):
            lengths = lengths + (examples.group_size - 1) * spacing
        fitting, skipped = _fitting(stage, examples, lengths)
        self._examples, self._fitting = examples, fitting
        self._rows, self._arm = stage.rows, stage.number
        # An example that is as long as a row has it to itself.
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
        epochs = self.num_steps * stage.rows / per_epoch if stage.epochs is None else stage.epochs
        self.description = (
            f"{len(fitting):,} examples in {per_epoch:,} rows of {stage.length:,}, "
            f"{padding:.1%} of them padding; {epochs:g} epochs in "
            f"{self.num_steps:,} steps{skipped}{_passed_over(examples)}"
        )

    def examples(self, step: int, row: int) -> list[Example]:
        """Return the examples of a row; none behind the last epoch."""
        number = step * self._rows + row
        if self._num_rows is not None and number >= self._num_rows:
            return []
        numbers = self._fitting[self._packed.row(number)].tolist()
        found = (example for index in numbers for example in examples_of(self._examples, index))
        return [dataclasses.replace(example, arm=self._arm) for example in found]


class GeneratedRows:
    """Rows of generated examples: row r of step s of the run is a function of (seed, s, r) alone.

    Attributes:
        num_steps: the number of train steps of the stage.
        description: how many steps there are.
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
                f"{stage.where}.epochs: found {stage.epochs}; allowed: none, and steps: the task "
                f"{stage.task.name} generates examples without end"
            )
        self._examples, self._stage, self._spacing = examples, stage, spacing
        self._seed, self._first_step = seed, first_step
        self.num_steps = stage.steps
        self.description = f"generated examples in rows of {stage.length:,}; {self.num_steps:,} steps"
        if not self.examples(0, 0):
            raise ConfigError(
                f"{stage.where}.length: found {stage.length}; allowed: rows that hold an example of "
                f"{stage.task.name}: none is as short"
            )

    def examples(self, step: int, row: int) -> list[Example]:
        """Return the examples of a row, drawn until no example is as short as the room that is left."""
        random = np.random.default_rng((self._seed, _GENERATE, self._first_step + step, row))
        room, drawn = self._stage.length, []
        while room > 0:
            example = self._examples.draw(random, room)
            if example is None:
                break
            if packed_length(example) > room:
                raise ValueError(
                    f"task {self._stage.task.name}: draw gave an example of {packed_length(example)} "
                    f"positions; allowed: at most the {room} that it was asked for"
                )
            drawn.append(dataclasses.replace(example, arm=self._stage.number))
            room -= packed_length(example) + self._spacing
        return drawn


def examples_of(examples: RecordedExamples, index: int) -> Sequence[Example]:
    """Return the examples that recorded example `index` is: itself, or those of its group."""
    return examples.group(index) if isinstance(examples, GroupedExamples) else (examples[index],)


def _fitting(stage: Stage, examples: RecordedExamples, lengths: np.ndarray) -> tuple[np.ndarray, str]:
    """Return the numbers of the examples that fit a row, and what is said of the others."""
    fits = lengths <= stage.length
    fitting, long = np.flatnonzero(fits), np.flatnonzero(~fits)
    skipped = ""
    if len(long):
        named = _names(examples, lengths, long[:_MAX_NAMED].tolist(), len(long))
        count = f"{len(long):,} of {len(lengths):,} examples are longer than a row: {named}"
        if not stage.skip_long:
            raise ConfigError(
                f"{stage.where}.length: found {stage.length}; {count}; allowed: at least "
                f"{int(lengths.max())}, or skip_long=True to leave them out"
            )
        skipped = f"; left out, as skip_long asks: {count}"
    if not len(fitting):
        raise DataError(f"{stage.where}: the task {stage.task.name} gives no example{skipped}")
    return fitting, skipped


def _passed_over(examples: RecordedExamples) -> str:
    """Return what is said of the records that could not be made examples."""
    refused = examples.refused if isinstance(examples, PartialExamples) else ()
    if not refused:
        return ""
    return f"; passed over: {len(refused):,} records, the first: {refused[0]}"


def _names(examples: RecordedExamples, lengths: np.ndarray, numbers: Sequence[int], of_all: int) -> str:
    def name(number: int) -> str:
        return examples.name_of(number) if isinstance(examples, NamedExamples) else f"example {number + 1}"

    shown = [f"{name(number)} ({lengths[number]} positions)" for number in numbers]
    return ", ".join(shown) + (", ..." if of_all > len(shown) else "")
