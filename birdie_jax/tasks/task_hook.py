"""The hook that measures the tasks of `config.eval.tasks` during training."""

import math
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import jax
from jax.sharding import Mesh
from jaxtyping import PyTree

from birdie_jax.array_types import Key
from birdie_jax.config_sections import EvalConfig
from birdie_jax.engine.coordination import Processes
from birdie_jax.engine.hook_registry import HookParts
from birdie_jax.engine.mesh import replicated
from birdie_jax.engine.protocols import Hook, HookCall, HookResult
from birdie_jax.engine.state import TrainState
from birdie_jax.errors import ConfigError, DataError, PromptError, ScoreError, TrainingDiverged, shown
from birdie_jax.objectives import Arm
from birdie_jax.tasks.evaluation import NamedTask, arms_of_tasks, check_tasks, taught_arms
from birdie_jax.tasks.summary import mean_scores
from birdie_jax.tasks.task_model import Share, TaskModel, max_length_of
from birdie_jax.text import Tokenizer

TASK_PREFIX = "task/"
_STOP_RULE = re.compile(r"\s*(?P<task>\w+)/(?P<metric>\w+)\s*(?P<sign>>=|<=)\s*(?P<limit>[-+.\w]+)\s*")


class StopRule(NamedTuple):
    """The rule that ends a run early: `config.eval.stop_when`.

    Attributes:
        metric: the logged name of the metric without `TASK_PREFIX`: `<task>/<metric>`.
        at_least: whether the run ends if the metric is at least `limit`; else, if it is at most `limit`.
        limit: the threshold.
    """

    metric: str
    at_least: bool
    limit: float

    def ends(self, scalars: Mapping[str, float]) -> bool:
        """Return whether the measured scores end the run.

        Raises:
            ConfigError: the metric was not measured.
        """
        found = scalars.get(TASK_PREFIX + self.metric)
        if found is None:
            task = f"{TASK_PREFIX}{self.metric.partition('/')[0]}/"
            names = [name.removeprefix(TASK_PREFIX) for name in scalars if name.startswith(task)]
            raise ConfigError(
                f"config.eval.stop_when: found the metric {self.metric}; allowed: {', '.join(names)}"
            )
        return found >= self.limit if self.at_least else found <= self.limit


def read_stop_rule(config: EvalConfig, tasks: Sequence[NamedTask]) -> StopRule | None:
    """Return the rule of `config.eval.stop_when`; None if it is empty.

    Raises:
        ConfigError: the rule is invalid, its task is not a task of the run, or the run measures tasks only
            at the end.
    """
    if not config.stop_when:
        return None
    match = _STOP_RULE.fullmatch(config.stop_when)
    names = [named.name for named in tasks]
    try:
        limit = float(match["limit"]) if match else None
    except ValueError:
        limit = None
    if match is None or limit is None or not math.isfinite(limit) or match["task"] not in names:
        known = f"where TASK is one of {', '.join(names)}" if names else "with tasks in config.eval.tasks"
        raise ConfigError(
            f"config.eval.stop_when: found {shown(config.stop_when)}; allowed: '', or TASK/METRIC >= NUMBER"
            f" or TASK/METRIC <= NUMBER, {known}"
        )
    if not config.tasks_every_steps:
        raise ConfigError(
            "config.eval.tasks_every_steps: found 0, which measures only at the end; allowed with "
            "config.eval.stop_when: 1 or more"
        )
    return StopRule(f"{match['task']}/{match['metric']}", match["sign"] == ">=", limit)


class TaskEvaluation:
    """Measures tasks at regular steps, and logs `task/<name>/<metric>`.

    Attributes:
        name: the name of the hook.
    """

    name = "task_evaluation"

    def __init__(
        self,
        parts: HookParts,
        tasks: Sequence[NamedTask],
        tokenizer: Tokenizer,
        arms: Sequence[Arm],
        processes: Processes,
    ):
        """Measure `tasks` every `config.eval.tasks_every_steps` steps.

        Args:
            parts: the configuration, the model and the mesh of the run.
            tasks: the tasks with their names.
            tokenizer: the tokenizer of the run.
            arms: the arms of the run; one of them formats prompts.
            processes: the processes of the run, which divide the questions.

        Raises:
            ConfigError: the run's model cannot do a task, or a task has no scores.
            DataError: the data of a task cannot be read. The message names file and record.
        """
        for named in tasks:
            if named.task.predictions_file:
                raise ConfigError(
                    f"config.eval.tasks.{named.name}: found {named.task.name} of a split without labels; "
                    "allowed: a split with labels; use evaluate --predictions for one without"
                )
        self._parts, self._tasks, self._tokenizer = parts, tasks, tokenizer
        self._stop_rule = read_stop_rule(parts.config.eval, tasks)
        self._max_length = max_length_of(parts.model, parts.config)
        try:
            self._arms = arms_of_tasks(arms, None, tasks)
            check_tasks(tasks, self._arms, parts.config, self._max_length)
            # Check now: later, bad data would cost the steps since the last checkpoint.
            for named in tasks:
                named.task.check_data(tokenizer)
        except (ConfigError, PromptError) as error:
            raise ConfigError(f"config.eval.tasks: {error}") from error
        except DataError as error:
            raise DataError(f"config.eval.tasks: {error}") from error
        self._share = Share(processes.index, processes.count, processes.gather)
        self._model: TaskModel | None = None
        self._reported: set[str] = set()

    def create_section(self, key: Key) -> PyTree:
        """Return an empty section: the hook has no state."""
        del key
        return {}

    def resume(self, state: TrainState) -> None:
        """Do nothing: the hook has no state."""

    def is_due(self, step: int, num_steps: int) -> bool:
        """Return whether to measure: every `tasks_every_steps` steps, and at the end."""
        every = self._parts.config.eval.tasks_every_steps
        return step == num_steps or (every > 0 and step > 0 and step % every == 0)

    def run(self, state: TrainState, call: HookCall) -> HookResult | None:
        """Measure every task, and end the run if `config.eval.stop_when` is met.

        Raises:
            ConfigError: the task of `config.eval.stop_when` does not have the rule's metric.
            TrainingDiverged: the model's scores of a sample or a question have no order. The message names
                step, task, and sample or question.
        """
        model = self._model_with(state.params)
        scalars: dict[str, float] = {}
        for named in self._tasks:
            call.heartbeat(f"{named.name}, its first questions")
            try:
                result = named.task.measure(model, partial(_send_heartbeat, call, named.name))
            except ScoreError as error:
                raise TrainingDiverged(f"step {call.step}: task {named.name}: {error}") from error
            for metric, interval in mean_scores(named.task, result.answers).items():
                scalars[f"{TASK_PREFIX}{named.name}/{metric}"] = interval.mean
            scalars[f"{TASK_PREFIX}{named.name}/answers"] = float(len(result.answers))
            if result.refused:
                scalars[f"{TASK_PREFIX}{named.name}/not_asked"] = float(len(result.refused))
                self._print_skipped(named.name, result.refused)
            if call.should_stop():
                return None
        ends = self._stop_rule is not None and self._stop_rule.ends(scalars)
        return HookResult(state, scalars, ends_run=ends)

    def close(self) -> None:
        """Release the copy of the parameters."""
        self._model = None

    def _print_skipped(self, name: str, refused: Sequence[str]) -> None:
        """Print the number of skipped questions and the first, once per run and only in one process."""
        if self._share.index == 0 and name not in self._reported:
            print(f"task {name}: {len(refused):,} skipped, the first: {refused[0]}", flush=True)
            self._reported.add(name)

    def _model_with(self, params: PyTree) -> TaskModel:
        """Return this process's model with the current parameters; reuse its compiled programs."""
        here = own_copy(params, self._parts.mesh)
        if self._model is None:
            self._model = TaskModel(
                self._parts.model,
                here,
                self._tokenizer,
                self._arms.prompts,
                arm_in_place=self._arms.in_place,
                max_length=self._max_length,
                rows=self._parts.config.eval.task_rows,
                share=self._share,
            )
        else:
            self._model.replace_params(here)
        return self._model


def task_hooks(
    parts: HookParts, tasks: Sequence[NamedTask], tokenizer: Tokenizer, processes: Processes
) -> list[Hook]:
    """Return a list with the `TaskEvaluation` of a run; empty if the run has no tasks."""
    if not tasks:
        return []
    return [TaskEvaluation(parts, tasks, tokenizer, taught_arms(parts.config), processes)]


def own_copy(params: PyTree[jax.Array], mesh: Mesh) -> PyTree[jax.Array]:
    """Return a whole copy of sharded parameters on the first device of this process.

    All processes of the mesh must call this function together.
    """
    whole = jax.jit(lambda tree: tree, out_shardings=replicated(mesh))(params)
    return jax.tree.map(lambda leaf: leaf.addressable_data(0), whole)


def _send_heartbeat(call: HookCall, name: str, done: int, of_all: int) -> None:
    call.heartbeat(f"{name}, {done} of {of_all} questions")
