"""Where predictions of tasks without known answers go: a file each, never in the place of scores."""

import sys
from collections.abc import Sequence

from birdie_jax.config_errors import ConfigError
from birdie_jax.evaluation_record import parse_evaluation
from birdie_jax.storage import exists, is_remote, make_path, read_bytes, write_whole
from birdie_jax.storage.workdir import Workdir
from birdie_jax.tasks.evaluation import Evaluation, NamedTask


def check_predictions(tasks: Sequence[NamedTask], folder: str | None, others: Sequence[str]) -> None:
    """Check, before a model is loaded, that all predictions have a place of their own.

    Args:
        tasks: the tasks that are asked.
        folder: the folder of predictions, `--predictions`; None = none is given.
        others: the models to compare with, `--compare`.

    Raises:
        ConfigError: predictions have no folder, or a folder has no predictions; two tasks write one file,
            or models are to be compared, for which there are no scores.
    """
    predicted: dict[str, str] = {}
    for name, task in tasks:
        file = task.predictions_file
        if file and file in predicted:
            raise ConfigError(
                f"--task: {predicted[file]} and {name} both write {file}; allowed: one of them"
            )
        if file:
            predicted[file] = name
    names = ", ".join(predicted.values())
    if predicted and folder is None:
        raise ConfigError(
            f"--predictions is not given; allowed with --task {names}, whose answers are not known: a "
            "folder for what the model predicts"
        )
    if predicted and others:
        raise ConfigError(
            f"--compare: found {', '.join(others)}; allowed with --task {names}: none, as its answers are "
            "not known"
        )
    if folder is not None and not predicted:
        raise ConfigError(
            f"--predictions: found {folder}; allowed: with a --task whose answers are not known, such as "
            "glue with split=test"
        )


def check_kept_evaluations(workdir: Workdir, step: int, tasks: Sequence[NamedTask]) -> None:
    """Check, before a model is asked, that scores and predictions do not take each other's place.

    Args:
        workdir: the workdir of the model, where evaluations are kept by their names.
        step: the step of the model's checkpoint.
        tasks: the tasks that are asked.

    Raises:
        ConfigError: predictions have the name of scores that are kept, or the reverse; or a file that is
            kept is damaged.
    """
    for name, task in tasks:
        path = workdir.evaluation(step, name)
        if not exists(path):
            continue
        kept = parse_evaluation(read_bytes(path), str(path))
        # One that has asked nothing has no scores either.
        found = "scores" if kept.metrics else "predictions" if kept.answers else ""
        asked = "predictions" if task.predictions_file else "scores"
        if found not in ("", asked):
            raise ConfigError(
                f"--task: found {name}, under which {path} keeps {found}; allowed for {asked}: another "
                f"name, as in --task=NAME={task.name}:setting=value"
            )


def write_predictions(folder: str, tasks: Sequence[NamedTask], evaluations: Sequence[Evaluation]) -> None:
    """Write the predictions of each task that has some, and say where.

    Args:
        folder: the folder, or its URL; made if it is not there.
        tasks: the tasks that were asked.
        evaluations: what was found, of each.
    """
    for named, (_, result) in zip(tasks, evaluations, strict=True):
        if not named.task.predictions_file:
            continue
        file = make_path(folder) / named.task.predictions_file
        if not is_remote(folder):
            file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, named.task.predictions(result.answers))
        print(f"{named.name}: {len(result.answers):,} predictions in {file}", file=sys.stderr)
