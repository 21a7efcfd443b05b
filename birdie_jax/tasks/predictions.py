"""Where the predictions of tasks without known answers go: a folder, a file for each."""

import sys
from collections.abc import Sequence

from birdie_jax.config_errors import ConfigError
from birdie_jax.storage import is_remote, make_path, write_whole
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
