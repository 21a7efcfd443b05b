"""All stages of a run with their rows and examples, and the stage of each step."""

import bisect
import hashlib
import json
from collections.abc import Sequence
from typing import NamedTuple

from birdie_jax.config import Config
from birdie_jax.errors import ConfigError
from birdie_jax.finetuning.stage_rows import StageRows, make_stage_rows
from birdie_jax.finetuning.stages import Stage
from birdie_jax.tasks import GeneratedExamples, RecordedExamples
from birdie_jax.tasks.training_examples import ExamplesOfText
from birdie_jax.text import Tokenizer


class StageSequence(NamedTuple):
    """The stages of a run, one after another.

    Attributes:
        stages: the stages, in order.
        rows: the rows of each stage.
        ends: for each stage, the run's steps up to its end.
        num_steps: the number of train steps of the run, which may end before its stages.
        identity: a hash of the examples and of the tokenizer.
    """

    stages: tuple[Stage, ...]
    rows: tuple[StageRows, ...]
    ends: tuple[int, ...]
    num_steps: int
    identity: str

    def find(self, step: int) -> tuple[int, int]:
        """Return the stage number of a step of the run, counted from 0, and the step within the stage."""
        number = bisect.bisect_right(self.ends, step)
        return number, step - (self.ends[number - 1] if number else 0)

    def positions(self, begin: int, end: int) -> int:
        """Return the positions, padding included, of the batches of steps `begin` to `end` - 1."""
        total, first = 0, 0
        for stage, last in zip(self.stages, self.ends, strict=True):
            total += max(0, min(end, last) - max(begin, first)) * stage.rows * stage.length
            first = last
        return total

    def describe(self) -> str:
        """Return a line for each stage."""
        return "\n".join(
            f"stage {stage.name}: {rows.description}"
            for stage, rows in zip(self.stages, self.rows, strict=True)
        )


def make_stage_sequence(config: Config, stages: Sequence[Stage], tokenizer: Tokenizer) -> StageSequence:
    """Read and pack the examples of all stages.

    Args:
        config: the configuration of the run.
        stages: its stages, `read_stages(config)`.
        tokenizer: the tokenizer of the run.

    Raises:
        ConfigError: a stage does not fit its examples, or the stages have fewer steps than `num_steps`.
        DataError: examples are missing or cannot be read; the message names file and record.
    """
    rows: list[StageRows] = []
    ends: list[int] = []
    hashes = []
    for stage in stages:
        first_step = ends[-1] if ends else 0
        try:
            examples = stage.task.training_examples(tokenizer)
        except ConfigError as error:
            raise ConfigError(f"{stage.where}: {error}") from error
        rows.append(
            make_stage_rows(
                stage,
                examples,
                seed=config.seed,
                first_step=first_step,
                spacing=config.batching.spacing,
            )
        )
        ends.append(first_step + rows[-1].num_steps)
        hashes.append(_identity(stage, examples))
    total, limit = ends[-1], config.train.num_steps
    if limit > total:
        raise ConfigError(
            f"config.train.num_steps: found {limit}; allowed: at most {total}, the steps of "
            "config.finetune.stages, or 0: all of them"
        )
    identity = hashlib.sha256(json.dumps([tokenizer.sha256, *hashes]).encode()).hexdigest()
    return StageSequence(tuple(stages), tuple(rows), tuple(ends), limit or total, identity)


def _identity(stage: Stage, examples: GeneratedExamples | RecordedExamples) -> str:
    """Return the hash of recorded examples, or the task of generated ones and the hash of their text."""
    if isinstance(examples, RecordedExamples):
        return examples.sha256
    return repr(stage.task) + (examples.text_sha256 if isinstance(examples, ExamplesOfText) else "")
