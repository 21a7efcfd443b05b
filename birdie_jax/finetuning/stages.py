"""The stages of a fine-tuning run, from `config.finetune.stages`; every error names the field."""

import contextlib
import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from birdie_jax.config import Config, check_batches, check_config
from birdie_jax.config_types import RowLength, Rows, Steps
from birdie_jax.errors import ConfigError, nearest_first, shown
from birdie_jax.models.registry import architecture_of, mixer_config
from birdie_jax.objectives import Arm, make_objective
from birdie_jax.storage import Bounds, inner_path, parse_typed
from birdie_jax.tasks import PROMPT_OBJECTIVE, TASK_KEY, TASKS, Task, make_task

Epochs = Annotated[float, Bounds(more_than=0, at_most=10**6)]
_REQUIRED = {"length": RowLength, "rows": Rows}
_OPTIONAL = {"epochs": Epochs, "steps": Steps, "skip_long": bool, "pack": bool}
# Names, in an error about a stage's configuration, of the fields that the stage sets.
_STAGE_FIELDS = re.compile(r"(?:config\.)?batching\.(rows|length)\b")


@dataclass(frozen=True)
class Stage:
    """A part of a fine-tuning run: a task, in rows of one length.

    Attributes:
        name: the name of the stage; stages run in the sorted order of their names.
        number: the index of the stage in that order, from 0.
        task: the task with the examples.
        length: the positions of a row.
        rows: the rows of the global batch.
        epochs: the number of passes over the recorded examples, which may be a fraction; None: see `steps`.
        steps: the number of train steps; with epochs, the maximum number. None: see `epochs`.
        skip_long: whether to skip and report examples longer than a row; otherwise they raise an error.
        pack: whether rows hold as many examples as fit. Otherwise each example has its own row, and `rows`
            is the number of examples in a batch, as in published recipes of encoders.
    """

    name: str
    number: int
    task: Task
    length: int
    rows: int
    epochs: float | None = None
    steps: int | None = None
    skip_long: bool = False
    pack: bool = True

    @property
    def where(self) -> str:
        """The path of the stage in the configuration."""
        return inner_path("config.finetune.stages", self.name)


def read_stages(config: Config) -> tuple[Stage, ...]:
    """Return the stages of a run in the sorted order of their names; none for pre-training.

    Raises:
        ConfigError: a stage has an unknown field, lacks a field, or has a value that is not allowed, by
            itself or with the other sections.
    """
    stages = []
    for number, name in enumerate(sorted(config.finetune.stages)):
        stage = _parse_stage(name, number, config.finetune.stages[name])
        with stage_errors(stage):
            own = stage_config(config, stage)
            check_config(own)
            check_batches(own)
        stages.append(stage)
    _check_pruning(config, stages)
    _check_teacher(config, stages)
    return tuple(stages)


def _check_pruning(config: Config, stages: Sequence[Stage]) -> None:
    """Check that the model and the stages of a run support the loss of a pass that drops tokens.

    Raises:
        ConfigError: they do not; the message names the field.
    """
    max_pruned = config.finetune.pruning.max_pruned
    if max_pruned == 0 or not stages:
        return
    named = f"config.model.name = {config.model.name!r}"
    with_head = next((stage for stage in stages if stage.task.head is not None), None)
    problem, unscored = None, mixer_config(config.model).influence_problem
    if with_head is not None:
        problem = f"{with_head.where}, whose task {with_head.task.name} has a head and no next token"
    elif architecture_of(config.model).encoder:
        problem = f"{named}, a bidirectional encoder, which predicts no next token"
    elif unscored is not None:
        problem = f"{named}, {unscored[0]}"
    if problem is not None:
        raise ConfigError(
            f"config.finetune.pruning.max_pruned: found {max_pruned}; allowed: 0 with {problem}"
        )
    if config.mesh.sequence != 1:
        raise ConfigError(
            f"config.mesh.sequence: found {config.mesh.sequence}; allowed: 1 with "
            "config.finetune.pruning.max_pruned: the tokens of a row are ranked together"
        )


def _check_teacher(config: Config, stages: Sequence[Stage]) -> None:
    """Check that a run can have its teacher, without reading the teacher's files.

    Raises:
        ConfigError: it cannot; the message names the field.
    """
    source = config.finetune.teacher.from_
    if not source:
        return
    problem = None
    with_head = next((stage for stage in stages if stage.task.head is not None), None)
    if not stages:
        problem = "without config.finetune.stages: pre-training has no teacher"
    elif with_head is not None:
        problem = f"with {with_head.where}, whose task {with_head.task.name} has a head and no next token"
    elif architecture_of(config.model).encoder:
        problem = f"with config.model.name = {config.model.name!r}, a bidirectional encoder"
    elif config.finetune.pruning.max_pruned:
        problem = "with config.finetune.pruning.max_pruned"
    if problem is not None:
        raise ConfigError(f"config.finetune.teacher.from: found {shown(source)}; allowed: '' {problem}")
    if config.mesh.sequence != 1:
        raise ConfigError(
            f"config.mesh.sequence: found {config.mesh.sequence}; allowed: 1 with config.finetune.teacher"
        )


def stage_arms(stages: Sequence[Stage]) -> tuple[Arm, ...]:
    """Return an arm for each stage, to sum its losses separately."""
    return tuple(
        Arm(stage.name, make_objective(PROMPT_OBJECTIVE), group=PROMPT_OBJECTIVE) for stage in stages
    )


def stage_config(config: Config, stage: Stage, num_steps: int | None = None) -> Config:
    """Return the configuration of a run with the batches of a stage.

    Args:
        config: the configuration of the whole run.
        stage: one of its stages.
        num_steps: the number of train steps of the whole run, if known.
    """
    batching = dataclasses.replace(config.batching, rows=stage.rows, length=stage.length)
    # Fine-tuning reads no text; this only satisfies the checks.
    data = dataclasses.replace(config.data, record_tokens=max(config.data.record_tokens, stage.length))
    train = dataclasses.replace(
        config.train, num_steps=config.train.num_steps if num_steps is None else num_steps
    )
    return dataclasses.replace(config, batching=batching, data=data, train=train)


@contextlib.contextmanager
def stage_errors(stage: Stage) -> Iterator[None]:
    """Rewrite a `ConfigError` about a stage's configuration to name the fields of the stage."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(_STAGE_FIELDS.sub(rf"{stage.where}.\1", str(error))) from error


def _parse_stage(name: str, number: int, section: Any) -> Stage:
    where = inner_path("config.finetune.stages", name)
    try:
        Arm(name, make_objective(PROMPT_OBJECTIVE), group=PROMPT_OBJECTIVE)
    except ValueError as error:
        allowed = "a name of at most 100 letters, digits and underscores"
        raise ConfigError(f"config.finetune.stages: found {shown(name)}; allowed: {allowed}") from error
    if not isinstance(section, Mapping):
        allowed = f"a section with the fields {', '.join((TASK_KEY, *_REQUIRED))}"
        raise ConfigError(f"{where}: found {shown(section)}; allowed: {allowed}")
    settings = dict(section)
    if TASK_KEY not in settings:
        raise ConfigError(f"{where}.{TASK_KEY}: missing; allowed: {', '.join(TASKS)}")
    task_name = settings.pop(TASK_KEY)
    own = {key: settings.pop(key) for key in (*_REQUIRED, *_OPTIONAL) if key in settings}
    if isinstance(task_name, str) and task_name in TASKS:
        known = [field.name for field in dataclasses.fields(TASKS[task_name])]
        for key in settings:
            if key not in known:
                allowed = nearest_first(key, (TASK_KEY, *_REQUIRED, *_OPTIONAL, *known))
                raise ConfigError(
                    f"{inner_path(where, key)}: unknown field of a stage of {task_name}; allowed: {allowed}"
                )
    task = make_task(task_name, settings, where)
    for key in _REQUIRED:
        if key not in own:
            raise ConfigError(f"{where}.{key}: missing")
    # None means unset, so a file may list a field for the command line.
    parsed = {
        key: parse_typed({**_REQUIRED, **_OPTIONAL}[key], value, inner_path(where, key), ConfigError)
        for key, value in own.items()
        if value is not None or key in _REQUIRED
    }
    if "epochs" not in parsed and "steps" not in parsed:
        raise ConfigError(f"{where}: found neither epochs nor steps; allowed: one of them, or both")
    return Stage(name, number, task, **parsed)
