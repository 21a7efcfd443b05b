"""Measurements of a pruned model: losses on held-out text, and items among noise."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from etils import epath

from birdie_jax.generation import choose_arm
from birdie_jax.objectives import Arm
from birdie_jax.pruning import PruningSettings, parse_pruning
from birdie_jax.pruning_cost.cells import DENSE, FORMAT_VERSION, Cell, CellFolder, StudySettings
from birdie_jax.pruning_cost.study import (
    Condition,
    HeldOutWindows,
    Log,
    choose_windows,
    conditions,
    documents_of_run,
    measure_cells,
)
from birdie_jax.storage import write_json
from birdie_jax.tasks import TASK_KEY, TaskModel, TokenTask, make_task
from birdie_jax.trained_model import TrainedModel
from studies.pruning.config import needle_settings
from studies.pruning.identifiers import draw_windows, identifier_windows
from studies.pruning.plans import Scale, Variant

_WINDOW_SEED = 0
# The validation questions during fine-tuning have another seed.
_TEST_SEED = 3003
_ROWS = 10
_DIGITS = 5


def held_out_windows(scale: Scale, pretrained: Path, trained: TrainedModel) -> HeldOutWindows:
    """Return the windows of a scale. They are the same for all its models with the same text.

    Args:
        scale: the scale.
        pretrained: the workdir of a pre-training, which names the text.
        trained: a model with the same tokenizer.

    Raises:
        ConfigError: the text has too few windows.
    """
    documents = documents_of_run(pretrained, trained.tokenizer)
    longest = max(scale.contexts)
    if scale.identifiers is not None:
        found = identifier_windows(
            *(documents, trained.tokenizer, scale.identifiers),
            context=longest,
            continuation=scale.continuation,
        )
        return draw_windows(found, scale.windows, _WINDOW_SEED)
    return choose_windows(
        documents, scale.windows, context=longest, continuation=scale.continuation, seed=_WINDOW_SEED
    )


def measure_text(  # noqa: PLR0917
    scale: Scale,
    trained: TrainedModel,
    windows: HeldOutWindows,
    variants: Sequence[Variant],
    folder: Path,
    log: Log,
) -> dict[str, Any]:
    """Return the losses of all windows, dense and under each variant, as plain JSON.

    Cells in the folder are not measured again.

    Args:
        scale: the scale.
        trained: the model.
        windows: the windows.
        variants: the variants; empty = only the model without pruning.
        folder: the folder of the cells.
        log: a function that logs a line for each newly measured cell.
    """
    arm = choose_arm(trained.arms, None)
    dense = [Condition(DENSE, 1.0, context, None) for context in scale.contexts]
    planned = {DENSE: (Variant(DENSE, ()), dense)}
    planned |= {variant.name: (variant, list(_conditions(scale, variant))) for variant in variants}
    cells = []
    for name, (variant, wanted) in planned.items():
        kept = _settings_of_folder(trained, arm, windows, max(scale.contexts), variant)
        own = CellFolder(epath.Path(folder / name), kept)
        found = measure_cells(trained, arm.objective, windows, wanted, own, rows=_ROWS, log=log)
        cells += [_plain(name, cell) for cell in found]
    return {
        "objective": arm.objective.name,
        "windows_sha256": windows.sha256,
        "documents": windows.documents.tolist(),
        "cells": cells,
    }


def variant_settings(scale: Scale, variant: Variant) -> PruningSettings:
    """Return the pruning settings of a variant at its smallest share."""
    return parse_pruning(min(variant.shares or scale.shares), variant.settings)


def _conditions(scale: Scale, variant: Variant) -> Iterator[Condition]:
    given = conditions(
        variant_settings(scale, variant),
        variant.policies,
        variant.shares or scale.shares,
        variant.contexts or (scale.main_context,),
    )
    return (one for one in given if one.policy != DENSE)


def _settings_of_folder(
    trained: TrainedModel, arm: Arm, windows: HeldOutWindows, context: int, variant: Variant
) -> StudySettings:
    return StudySettings(
        FORMAT_VERSION,
        trained.identify().parameters_sha256,
        arm.name,
        windows.sha256,
        len(windows.tokens),
        context,
        windows.continuation,
        sorted(variant.settings),
    )


def _plain(variant: str, cell: Cell) -> dict[str, Any]:
    return {
        "variant": variant,
        "policy": cell.policy,
        "keep": cell.keep,
        "context": cell.context,
        "losses": [round(loss, _DIGITS) for loss in cell.losses],
        "paper_flops": cell.paper_flops,
        "executed_flops": cell.executed_flops,
    }


def measure_needles(
    scale: Scale, query: str, trained: TrainedModel, folder: Path, log: Log
) -> list[dict[str, Any]]:
    """Return the accuracy of every answer, dense and under each condition, as plain JSON.

    Conditions in the folder are not measured again.

    Args:
        scale: the scale.
        query: the position of an item's query.
        trained: the model fine-tuned for this position.
        folder: the folder of the conditions' files.
        log: a function that logs a line for each newly measured condition.
    """
    settings = {**needle_settings(scale, query), "seed": _TEST_SEED}
    task = make_task(settings.pop(TASK_KEY), settings, f"needles, query {query}")
    assert isinstance(task, TokenTask)
    found = []
    planned: list[tuple[str, float, PruningSettings | None]] = [(DENSE, 1.0, None)]
    for name, (policy, *others) in scale.needles.policies.items():
        for keep in scale.needles.shares:
            planned.append((name, keep, parse_pruning(keep, (f"policy={policy}", *others))))
    for name, keep, pruning in planned:
        file = folder / f"{name.replace(', ', '_')}-{keep:g}.json"
        if not file.exists():
            folder.mkdir(parents=True, exist_ok=True)
            accuracy = _accuracy(task, trained, pruning)
            write_json(file, {"policy": name, "keep": keep, "accuracy": accuracy})
            log(f"query {query}, {name}, keep {keep:g}: {sum(accuracy) / len(accuracy):.3f}")
        found.append(json.loads(file.read_text()))
    return found


def _accuracy(task: TokenTask, trained: TrainedModel, pruning: PruningSettings | None) -> list[float]:
    """Return the share of correct tokens in each answer."""
    arm = choose_arm(trained.arms, None)
    model = TaskModel(trained.model, trained.params, trained.tokenizer, arm, pruning=pruning)
    result = task.measure(model)
    assert not result.refused, result.refused[:1]
    return [round(answer.metrics[task.main_metric], _DIGITS) for answer in result.answers]
