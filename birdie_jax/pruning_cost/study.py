"""The study of a model: all cells measured, those that are there already read."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from birdie_jax.objectives import Objective
from birdie_jax.pruning import PruningSettings
from birdie_jax.pruning_cost.cells import DENSE, Cell, CellFolder
from birdie_jax.pruning_cost.held_out_windows import HeldOutWindows
from birdie_jax.pruning_cost.pruned_prompts import PrunedScorer
from birdie_jax.trained_model import TrainedModel

Told = Callable[[str], None]


class Condition(NamedTuple):
    """What a cell is measured under.

    Attributes:
        policy: the name of the policy; "dense" where nothing is dropped.
        keep: the share that the schedule ends with.
        context: the number of tokens of a context.
        settings: the settings of pruning; None where nothing is dropped.
    """

    policy: str
    keep: float
    context: int
    settings: PruningSettings | None


def conditions(
    settings: PruningSettings, policies: Sequence[str], shares: Sequence[float], contexts: Sequence[int]
) -> Iterator[Condition]:
    """Give all conditions of a model that is pruned: for each length the dense one, then the others."""
    for context in contexts:
        yield Condition(DENSE, 1.0, context, None)
        for policy in policies:
            for keep in shares:
                yield Condition(policy, keep, context, replace(settings, policy=policy, keep=keep))


def measure_cells(
    trained: TrainedModel,
    objective: Objective,
    windows: HeldOutWindows,
    asked: Sequence[Condition],
    folder: CellFolder,
    *,
    rows: int,
    told: Told,
) -> list[Cell]:
    """Return the cells of a model, and write each as soon as it is measured.

    Args:
        trained: the model.
        objective: the form in which contexts are read.
        windows: the windows.
        asked: the conditions.
        folder: the folder of the cells.
        rows: the number of windows that are read at a time.
        told: called with a line about each cell that was measured.

    Raises:
        PruningError: the model gives no scores, and a policy asks for them.
        PromptError: the objective does not go on with a text.
    """
    sha256 = trained.identify().parameters_sha256
    scorer: PrunedScorer | None = None
    cells = []
    for number, one in enumerate(asked, start=1):
        cell = folder.read(sha256, one.policy, one.keep, one.context)
        if cell is None:
            # Of a study that has ended no parameters are put on the device.
            scorer = scorer or PrunedScorer(trained.model, trained.params, objective, rows)
            found = scorer.losses(one.settings, windows.contexts(one.context), windows.continuations)
            cell = Cell(
                trained.origin,
                sha256,
                one.policy,
                one.keep,
                one.context,
                found.losses.tolist(),
                scorer.paper_flops(one.settings, one.context),
                found.executed_flops,
            )
            folder.write(cell)
            told(
                f"{number} of {len(asked)}: {one.policy} keep {one.keep:g}, {one.context:,} tokens: "
                f"loss {cell.mean:.4f}"
            )
        # Where its folder is now, wherever it was when the cell was measured.
        cells.append(replace(cell, model=trained.origin))
    return cells
