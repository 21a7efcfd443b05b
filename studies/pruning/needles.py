"""What is found among noise when prompts are pruned: accuracy by policy and share."""

import json
from pathlib import Path
from typing import Any

from birdie_jax.generation import choose_arm
from birdie_jax.pruning import PruningSettings, parse_pruning
from birdie_jax.pruning_cost.cells import DENSE
from birdie_jax.pruning_cost.study import Log
from birdie_jax.storage import write_json
from birdie_jax.tasks import TASK_KEY, TaskModel, TokenTask, make_task
from birdie_jax.trained_model import TrainedModel
from studies.pruning.config import needle_settings
from studies.pruning.plans import Scale

# Other questions than those by which fine-tuning is watched.
_TEST_SEED = 3003
_DIGITS = 5


def measure_needles(
    scale: Scale, query: str, trained: TrainedModel, folder: Path, log: Log
) -> list[dict[str, Any]]:
    """Return the accuracy of every answer, dense and under each condition, as plain JSON.

    What is in the folder already is not measured again.

    Args:
        scale: the scale.
        query: where the query of an item stands.
        trained: the model that was fine-tuned for it.
        folder: the folder of the conditions' files.
        log: called with a line about each condition that was measured.
    """
    settings = {**needle_settings(scale, query), "seed": _TEST_SEED}
    task = make_task(settings.pop(TASK_KEY), settings, f"needles, query {query}")
    assert isinstance(task, TokenTask)
    found = []
    asked: list[tuple[str, float, PruningSettings | None]] = [(DENSE, 1.0, None)]
    for name, (policy, *others) in scale.needles.policies.items():
        for keep in scale.needles.shares:
            asked.append((name, keep, parse_pruning(keep, (f"policy={policy}", *others))))
    for name, keep, pruning in asked:
        file = folder / f"{name.replace(', ', '_')}-{keep:g}.json"
        if not file.exists():
            folder.mkdir(parents=True, exist_ok=True)
            accuracy = _accuracy(task, trained, pruning)
            write_json(file, {"policy": name, "keep": keep, "accuracy": accuracy})
            log(f"query {query}, {name}, keep {keep:g}: {sum(accuracy) / len(accuracy):.3f}")
        found.append(json.loads(file.read_text()))
    return found


def _accuracy(task: TokenTask, trained: TrainedModel, pruning: PruningSettings | None) -> list[float]:
    """Return the share of each answer's tokens that are right."""
    arm = choose_arm(trained.arms, None)
    model = TaskModel(trained.model, trained.params, trained.tokenizer, arm, pruning=pruning)
    result = task.measure(model)
    assert not result.refused, result.refused[:1]
    return [round(answer.metrics[task.main_metric], _DIGITS) for answer in result.answers]
