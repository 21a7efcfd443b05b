"""The pilot of a cell: short trainings that choose its settings by the lowest held-out loss of masked LM.

The transfer tasks do not influence the choice.
"""

import math
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from studies.encoders.config import CONFIG_FILE, PILOT
from studies.encoders.plans import Run, Scale
from studies.encoders.text import corpus_of
from studies.results import SUFFIX, circumstances, read_result, write_result
from studies.runner import Study
from studies.verbs import Command
from studies.workdirs import is_trained, read_metric_lines

EncoderStudy = Study[Scale, Run]

_VALIDATION_LOSS = "arm/masked_lm/validation_loss"


class Settings(NamedTuple):
    """The settings that a pilot chooses.

    Attributes:
        learning_rate: the peak learning rate of pre-training.
        kernel_deviation: the initial standard deviation of the blocks' weights.
        table_deviation: the initial standard deviation of the tables of words, positions and token types.
    """

    learning_rate: float
    kernel_deviation: float
    table_deviation: float

    def flags(self) -> tuple[str, ...]:
        """Return the flags that apply the settings to a pre-training."""
        return (
            f"--config.optimizer.learning_rate={self.learning_rate:g}",
            f"--config.optimizer.final_learning_rate={self.learning_rate / 10:g}",
            *self.flags_of_model(),
        )

    def flags_of_model(self) -> tuple[str, ...]:
        """Return the flags of the model's settings, which fine-tuning requires too."""
        return (
            f"--config.model.encoder.kernel_deviation={self.kernel_deviation:g}",
            f"--config.model.encoder.table_deviation={self.table_deviation:g}",
        )

    def as_variant(self) -> str:
        """Return the comma-separated values for a variant of the configuration."""
        return ",".join(f"{value:g}" for value in self)


def pilot_file(study: EncoderStudy, model: str) -> Path:
    """Return the result file of a cell's pilot."""
    return study.results / PILOT / f"{study.scale.name}.{model}{SUFFIX}"


def pilot_commands_left(study: EncoderStudy, model: str) -> Iterator[Command]:
    """Yield the commands of a cell's pilot that are not done."""
    for settings in _not_tried(study, model):
        if not is_trained(_workdir(study, model, settings)):
            yield _command(study, model, settings)


def settings_of(study: EncoderStudy, model: str, log: Path) -> Settings:
    """Return the settings of a cell's runs; first run the missing trainings of its pilot.

    Each training of the pilot adds its loss to the pilot's file.

    Raises:
        StudyError: a training failed.
    """
    for settings in _not_tried(study, model):
        workdir = _workdir(study, model, settings)
        if not is_trained(workdir):
            study.run_verb(_command(study, model, settings), log)
        found = settings._asdict() | {"held_out_loss": _held_out_loss(workdir)}
        tried = [*read_pilot(study, model), found | {"circumstances": circumstances()}]
        description = {"study": f"{study.name}: pilot", "scale": study.scale.name, "model": model}
        write_result(pilot_file(study, model), description, {"tried": tried})
    return _chosen(read_pilot(study, model))


def is_pilot_done(study: EncoderStudy, model: str) -> bool:
    """Return whether the pilot of a cell is done."""
    return not _not_tried(study, model)


def read_pilot(study: EncoderStudy, model: str) -> list[dict[str, Any]]:
    """Return the settings that a cell's pilot tried, each with its held-out loss; empty without a file.

    Raises:
        StudyError: the file is damaged or of another format.
    """
    file = pilot_file(study, model)
    return read_result(file)["tried"] if file.exists() else []


def _chosen(tried: list[dict[str, Any]]) -> Settings:
    best = min(tried, key=lambda found: found["held_out_loss"])
    return _settings(best)


def _settings(found: Mapping[str, Any]) -> Settings:
    return Settings(*(found[name] for name in Settings._fields))


def _not_tried(study: EncoderStudy, model: str) -> list[Settings]:
    """Return the settings of the scale's pilot that are missing in its file."""
    pilot = study.scale.pilot
    tried = {_settings(found) for found in read_pilot(study, model)}
    planned = [Settings(rate, *both) for rate, both in product(pilot.learning_rates, pilot.deviations)]
    return [settings for settings in planned if settings not in tried]


def _command(study: EncoderStudy, model: str, settings: Settings) -> Command:
    variant = f"{study.scale.name},{model},{PILOT},{settings.as_variant()}"
    return Command(
        "train",
        (
            f"--config={CONFIG_FILE}:{variant}",
            f"--config.data.prepared={corpus_of(study.workdirs, study.scale).prepared}",
            f"--workdir={_workdir(study, model, settings)}",
        ),
    )


def _workdir(study: EncoderStudy, model: str, settings: Settings) -> Path:
    return study.workdirs / study.scale.name / PILOT / f"{model}_{settings.as_variant()}"


def _held_out_loss(workdir: Path) -> float:
    """Return the last held-out loss in nats per hidden token; infinity if the training diverged."""
    found = [line[_VALIDATION_LOSS] for line in read_metric_lines(workdir) if _VALIDATION_LOSS in line][-1]
    return math.inf if math.isnan(found) else found
