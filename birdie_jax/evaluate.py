"""Measure a model on tasks: `python -m birdie_jax.evaluate --workdir=runs/tiny --task=phonebook`.

One table goes to standard output, progress to standard error. Scores and every prompt with its answer are
written to `evaluations/` in the workdir, where the report reads them, and to --json and --answers. With
--compare other models answer the same questions, and the differences are paired by question. On several
hosts, start every process with the same command, as for training.
"""

from birdie_jax.host_memory import keep_freed_memory

if __name__ == "__main__":
    # Call this before the imports below start threads.
    keep_freed_memory()

# isort: split
import dataclasses
import hashlib
import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
from absl import flags, logging

from birdie_jax.command_line import define_path, start, with_example
from birdie_jax.compiled_programs import cache_compiled_programs
from birdie_jax.config import to_dict
from birdie_jax.engine.coordination import Processes
from birdie_jax.engine.processes import initialize_processes
from birdie_jax.errors import ConfigError
from birdie_jax.evaluation_record import EvaluatedModel, EvaluationRecord, Interval, ModelDifference
from birdie_jax.storage import make_path, write_json, write_whole
from birdie_jax.storage.metric_lines import trained_speed
from birdie_jax.storage.outputs import Output, check_outputs, check_writable
from birdie_jax.storage.workdir import Workdir
from birdie_jax.tasks import TASKS, Share, TaskModel
from birdie_jax.tasks.evaluation import (
    AskedArms,
    Evaluation,
    NamedTask,
    answers_to_jsonl,
    arms_of_tasks,
    check_kept_evaluations,
    check_predictions,
    check_tasks,
    evaluate,
    files_of_tasks,
    tasks_of_flags,
    write_predictions,
)
from birdie_jax.tasks.evaluation_table import (
    answer_lines,
    breakdown_tables,
    comparison_table,
    evaluation_table,
    refused_lines,
)
from birdie_jax.tasks.registry import task_flag
from birdie_jax.tasks.summary import paired_differences, shown_answer
from birdie_jax.tasks.task_model import Workload, max_length_of, no_announcement
from birdie_jax.trained_model import TrainedModel, model_of_folder, model_of_workdir

_PROGRESS_SECONDS = 10.0
# The time after which a process that does not answer counts as lost.
_LOST_SECONDS = 60

_WORKDIR = define_path("workdir", "Folder of a run.")
_MODEL = define_path("model", "Folder that birdie_jax.export wrote, instead of --workdir.")
_STEP = flags.DEFINE_integer("step", None, "Step of the checkpoint; default: the newest.", lower_bound=0)
_AVERAGE = flags.DEFINE_bool(
    "average", False, "Use the average of the parameters that the hook parameter_average keeps."
)
_TASK = flags.DEFINE_multi_string(
    "task",
    [],
    "Task, with optional settings after a colon and an optional name in front: phonebook, "
    "phonebook:max_entries=16,max_numbers=2, short=phonebook:max_entries=16. Repeatable. "
    f"Tasks: {', '.join(TASKS)}.",
)
_JSON = define_path("json", "File for the scores of all tasks.")
_ANSWERS = define_path("answers", "File for all prompts, answers and scores, JSONL.")
_PREDICTIONS = define_path(
    "predictions", "Folder for the predictions of tasks without known answers, as leaderboards take them."
)
_COMPARE = flags.DEFINE_multi_string(
    "compare", [], "Workdir or exported folder of another model to compare with the first. Repeatable."
)
_OBJECTIVE = flags.DEFINE_string(
    "objective",
    None,
    "Use the prompt format of this objective, or arm, of the run's mixture. Default: prefix_lm, or else "
    "causal_lm; for tasks that hide tokens in place, the first arm of masked_lm.",
)
_SHOWN = flags.DEFINE_integer(
    "shown",
    0,
    "Number of answers of each task to print after the table, with prompt and reference: the first ones.",
    lower_bound=0,
    upper_bound=1 << 20,
)
_ROWS = flags.DEFINE_integer(
    "rows", 32, "Largest number of questions answered at a time.", lower_bound=1, upper_bound=1 << 16
)
_BATCH_TOKENS = flags.DEFINE_integer(
    "batch_tokens",
    65_536,
    "Largest number of positions of the prompts of a batch; fewer positions take less memory.",
    lower_bound=1,
    upper_bound=1 << 30,
)
_SEED = flags.DEFINE_integer(
    "seed", 0, "Seed of the bootstrap's resamples.", lower_bound=0, upper_bound=1 << 30
)
_COORDINATOR_ADDRESS = flags.DEFINE_string(
    "coordinator_address",
    None,
    "Address where the processes of this command meet: host:port, on process 0's host.",
)
_NUM_PROCESSES = flags.DEFINE_integer("num_processes", None, "Number of processes of this command.")
_PROCESS_ID = flags.DEFINE_integer("process_id", None, "Number of this process: 0 to num_processes - 1.")

# The scores of a model: an evaluation for each task, at least one.
_Scores = Sequence[Evaluation]
# For a model and a task: the differences from the first model, by metric, and the number of answer pairs.
_Difference = tuple[dict[str, Interval], int]


def run(processes: Processes) -> None:
    """Load the models, measure them and write their scores."""
    if not _TASK.value:
        raise ConfigError(with_example(f"--task: missing; allowed: one or more of {', '.join(TASKS)}"))
    tasks = tasks_of_flags(_TASK.value)
    if (_WORKDIR.value is None) == (_MODEL.value is None):
        raise ConfigError(with_example("give either --workdir, a run, or --model, an exported folder"))
    if _STEP.value is not None and _MODEL.value is not None:
        raise ConfigError(f"--step={_STEP.value}: chooses a checkpoint of --workdir; --model has only one")
    if _AVERAGE.value and _MODEL.value is not None:
        raise ConfigError("--average: requires --workdir; --model has only the exported parameters")
    for other in _COMPARE.value:
        if not other:
            raise ConfigError("--compare: found ''; allowed: a workdir or an exported folder")
    if _AVERAGE.value:
        # Keep the evaluations of the parameters themselves.
        tasks = [named._replace(name=f"{named.name}_average") for named in tasks]
    check_predictions(tasks, _PREDICTIONS.value, _COMPARE.value)
    if processes.first:
        check_outputs(_outputs(tasks), files_of_tasks(tasks))
    first = _load(_WORKDIR.value, _MODEL.value, _STEP.value, average=_AVERAGE.value)
    kept = Workdir(_WORKDIR.value) if processes.first and _WORKDIR.value is not None else None
    if _WORKDIR.value is not None:
        check_kept_evaluations(Workdir(_WORKDIR.value), first.step, tasks)
    if kept is not None:
        files = [f"{named.name}.{suffix}" for named in tasks for suffix in ("json", "jsonl")]
        check_writable(Output("--workdir", kept.evaluation(first.step, "").parent, "folder", files))
    models = [_prepare(first, tasks, processes)]
    for other in _COMPARE.value:
        # Load before the first question, and keep the parameters in the host's memory.
        loaded = _load_any(other)
        models.append(_prepare(loaded._replace(params=jax.device_get(loaded.params)), tasks, processes))
    measured = [_measure(model, tasks, None if number else kept) for number, model in enumerate(models)]
    if not processes.first:
        return
    differences = [_differences(tasks, measured[0], others) for others in measured[1:]]
    if kept is not None:
        _keep_differences(kept, measured, differences)
    if _JSON.value is not None:
        records = [evaluation.record.to_json() for one in measured for evaluation in one]
        write_json(
            make_path(_JSON.value),
            {"evaluations": records, "differences": _differences_json(measured, differences)},
        )
    if _PREDICTIONS.value is not None:
        write_predictions(_PREDICTIONS.value, tasks, measured[0])
    if _ANSWERS.value is not None:
        write_whole(make_path(_ANSWERS.value), b"".join(map(_answer_lines, measured)))
    _print(measured, differences)


def _outputs(tasks: Sequence[NamedTask]) -> list[Output]:
    outputs = [Output("--json", _JSON.value)] if _JSON.value is not None else []
    if _ANSWERS.value is not None:
        outputs.append(Output("--answers", _ANSWERS.value))
    if _PREDICTIONS.value is not None:
        files = [named.task.predictions_file for named in tasks if named.task.predictions_file]
        outputs.append(Output("--predictions", _PREDICTIONS.value, "folder", files))
    return outputs


def _load(workdir: str | None, model: str | None, step: int | None, *, average: bool) -> TrainedModel:
    if workdir is not None:
        return model_of_workdir(workdir, step, average=average)
    assert model is not None  # the caller checks this
    return model_of_folder(model)


def _load_any(folder: str) -> TrainedModel:
    """Return the model of a workdir or of an exported folder."""
    if Workdir(folder).saved_steps():
        return model_of_workdir(folder)
    return model_of_folder(folder)


class _ReadyModel(NamedTuple):
    """A model that supports all tasks.

    Attributes:
        trained: the model.
        arms: the arms that define the formats of prompts.
        processes: the processes that share the questions.
    """

    trained: TrainedModel
    arms: AskedArms
    processes: Processes


def _prepare(trained: TrainedModel, tasks: Sequence[NamedTask], processes: Processes) -> _ReadyModel:
    """Check that a model supports all tasks, and read their data."""
    arms = arms_of_tasks(trained.arms, _OBJECTIVE.value, tasks)
    check_tasks(tasks, arms, trained.config, max_length_of(trained.model, trained.config))
    for named in tasks:
        named.task.check_data(trained.tokenizer)
    return _ReadyModel(trained, arms, processes)


def _measure(
    ready: _ReadyModel, tasks: Sequence[NamedTask], kept: Workdir | None = None
) -> list[Evaluation]:
    """Measure all tasks; save each one in the workdir, if any, before the next."""
    trained, arms, processes = ready
    names = " and ".join(dict.fromkeys(arms.of(named.task).name for named in tasks))
    print(f"{trained.origin}: {trained.model.config.name}, prompt form: {names}", file=sys.stderr)
    costs = _Costs(trained)
    model = TaskModel(
        trained.model,
        trained.params,
        trained.tokenizer,
        arms.prompts,
        arm_in_place=arms.in_place,
        max_length=max_length_of(trained.model, trained.config),
        rows=_ROWS.value,
        batch_tokens=_BATCH_TOKENS.value,
        share=Share(processes.index, processes.count, processes.gather),
        announce=costs if processes.first else no_announcement,
    )
    config = json.dumps(to_dict(trained.config), sort_keys=True).encode()
    identity = EvaluatedModel(
        origin=trained.name,
        step=trained.step,
        config_sha256=hashlib.sha256(config).hexdigest(),
        parameters_sha256=trained.identify().parameters_sha256,
        prompt_format=arms.prompts.name,
    )
    evaluations = []
    for named in tasks:
        shown = _Progress(named.name)
        costs.task = named
        in_form = dataclasses.replace(identity, prompt_format=arms.of(named.task).name)
        evaluations.append(evaluate(named, model, in_form, shown, _SEED.value))
        shown.end(evaluations[-1].record)
        if kept is not None:
            _keep(kept, evaluations[-1])
    return evaluations


class _Costs:
    """Prints, before a task, its cost and whether its lengths fit the model.

    Attributes:
        task: the task.
    """

    def __init__(self, trained: TrainedModel):
        self._trained = trained
        self.task: NamedTask | None = None

    def __call__(self, work: Workload) -> None:
        assert self.task is not None
        name, task = self.task
        line = f"{name}: {work.questions:,} questions, {work.tokens:,} prompt tokens"
        if work.answer_tokens:
            line += f", at most {work.answer_tokens:,} answer tokens"
        # Training reads a token more slowly than evaluation, and writing a token is slower than reading it.
        speed = trained_speed(Workdir(self._trained.folder))
        if speed:
            minutes = (work.tokens + work.answer_tokens) / speed / 60
            line += f"; about {minutes:,.1f} min at the training speed of {speed:,.0f} tokens/s"
        print(line, file=sys.stderr)
        length = self._trained.config.row_length
        if work.longest > length:
            fitting = task.settings_within(self._trained.tokenizer, length)
            hint = f"; that fits --task='{task_flag(name, task, fitting)}'" if fitting else ""
            print(
                f"{name}: the longest takes {work.longest:,} tokens, and the model has learned rows of "
                f"{length:,}{hint}",
                file=sys.stderr,
                flush=True,
            )


class _Progress:
    """Prints the progress of a task every few seconds."""

    def __init__(self, name: str):
        self._name = name
        self._begin = self._told = time.monotonic()

    def __call__(self, done: int, of_all: int) -> None:
        now = time.monotonic()
        if now - self._told >= _PROGRESS_SECONDS and done < of_all:
            self._told = now
            seconds = now - self._begin
            left = seconds / max(done, 1) * (of_all - done)
            print(
                f"{self._name}: {done:,} of {of_all:,}, {seconds:.0f} s, about {left:.0f} s left",
                file=sys.stderr,
                flush=True,
            )

    def end(self, record: EvaluationRecord) -> None:
        print(f"{self._name}: {record.answers:,} answers in {record.seconds:.1f} s", file=sys.stderr)


def _keep(workdir: Workdir, evaluation: Evaluation) -> None:
    """Write scores and answers to the workdir."""
    record, result = evaluation
    path = workdir.evaluation(record.model.step, record.name)
    workdir.make_folder(path.parent)
    answers = workdir.evaluation_answers(record.model.step, record.name)
    write_whole(answers, answers_to_jsonl(result.answers))
    workdir.write(path, record.to_json())


def _keep_differences(
    workdir: Workdir, measured: Sequence[_Scores], differences: Sequence[Sequence[_Difference]]
) -> None:
    """Write the differences from other models, if any, to the workdir's records."""
    for number, (record, _) in enumerate(measured[0]) if differences else ():
        found = [
            ModelDifference(others[number].record.model, pairs, metrics)
            for others, (metrics, pairs) in zip(
                measured[1:], [each[number] for each in differences], strict=True
            )
        ]
        path = workdir.evaluation(record.model.step, record.name)
        workdir.write(path, dataclasses.replace(record, differences=found).to_json())


def _answer_lines(scores: _Scores) -> bytes:
    """Return the answers of all tasks; each line names the model and the evaluation."""
    lines = []
    for record, result in scores:
        head = {"model": record.model.origin, "step": record.model.step, "evaluation": record.name}
        for line in answers_to_jsonl(result.answers).splitlines():
            lines.append(json.dumps(head | json.loads(line)).encode() + b"\n")
    return b"".join(lines)


def _differences(tasks: Sequence[NamedTask], first: _Scores, other: _Scores) -> list[_Difference]:
    """Return the differences of another model from the first, for each evaluation."""
    return [
        paired_differences(named.task, one.result.answers, another.result.answers, _SEED.value)
        for named, one, another in zip(tasks, first, other, strict=True)
    ]


def _differences_json(
    measured: Sequence[_Scores], differences: Sequence[Sequence[_Difference]]
) -> list[dict[str, Any]]:
    return [
        {
            "model": evaluation.record.model.origin,
            "step": evaluation.record.model.step,
            "evaluation": evaluation.record.name,
            "pairs": pairs,
            "metrics": {metric: interval.__dict__ for metric, interval in metrics.items()},
        }
        for others, found in zip(measured[1:], differences, strict=True)
        for evaluation, (metrics, pairs) in zip(others, found, strict=True)
    ]


def _print(measured: Sequence[_Scores], differences: Sequence[Sequence[_Difference]]) -> None:
    records = [[evaluation.record for evaluation in scores] for scores in measured]
    if len(records) == 1:
        print(evaluation_table(records[0]))
        for record in records[0]:
            if text := breakdown_tables(record):
                print(f"\n{text}")
        _print_answers(measured[0])
        return
    origins = [f"{own[0].model.origin} step {own[0].model.step}" for own in records]
    print(comparison_table(origins, records, differences))
    for origin, own in zip(origins, records, strict=True):
        for line in refused_lines(own):
            print(f"{origin}: {line}")
    for origin, scores in zip(origins, measured, strict=True):
        if _SHOWN.value:
            print(f"\n{origin}")
        _print_answers(scores)


def _print_answers(scores: _Scores) -> None:
    """Print the first answers to each task, as many as --shown."""
    for record, result in scores:
        first = [shown_answer(answer) for answer in result.answers[: _SHOWN.value] if answer.metrics]
        if first:
            print(f"\n{answer_lines(record, first)}")


def main(arguments: list[str]) -> None:
    """Parse flags and evaluate."""
    logging.set_verbosity(logging.WARNING)
    cache_compiled_programs()
    initialize_processes(
        _COORDINATOR_ADDRESS.value,
        _NUM_PROCESSES.value,
        _PROCESS_ID.value,
        os.environ,
        _LOST_SECONDS,
    )
    run(Processes())


if __name__ == "__main__":
    start("evaluate", main, OSError)
