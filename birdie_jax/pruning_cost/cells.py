"""Measurements: a file for each model, policy, share and length of context, written atomically.

Mean losses and paired differences of cells have bootstrap intervals over documents.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from etils import epath
from jaxtyping import Float, Int

from birdie_jax.errors import ConfigError
from birdie_jax.evaluation_record import Interval
from birdie_jax.storage import exists, is_remote, parse_typed, read_bytes, to_plain, write_json
from birdie_jax.storage.json_text import parse_json
from birdie_jax.storage.outputs import Output
from birdie_jax.tasks.bootstrap import bootstrap_differences, bootstrap_means

FORMAT_VERSION = 1
DENSE = "dense"
RESULTS, TABLE, PAGE = "results.json", "table.txt", "index.html"
_SETTINGS, _CELLS = "settings.json", "cells"


def outputs_below(root: epath.Path) -> list[Output]:
    """Return the outputs of `prune` below its output folder."""
    files = (_SETTINGS, RESULTS, TABLE, PAGE)
    return [Output("--output", root, "folder", files), Output("--output", root / _CELLS, "folder")]


@dataclass(frozen=True)
class StudySettings:
    """The settings that all cells of an output folder share.

    Attributes:
        format_version: the version of this format.
        parameters_sha256: the hash of the pruned model's parameters.
        objective: the name of the arm that defines the format of contexts.
        windows_sha256: the hash of the windows' tokens.
        windows: the number of windows.
        longest_context: the number of tokens in the longest context.
        continuation: the number of tokens to score.
        pruning: the settings of pruning except share and policy, as given.
    """

    format_version: int
    parameters_sha256: str
    objective: str
    windows_sha256: str
    windows: int
    longest_context: int
    continuation: int
    pruning: list[str]


@dataclass(frozen=True)
class Cell:
    """The loss of every window in one condition.

    Attributes:
        model: the folder and step of the model.
        parameters_sha256: the hash of its parameters.
        policy: the name of the policy; "dense": no pruning.
        keep: the share at the end of the schedule.
        context: the number of tokens in a context.
        losses: the mean loss of each window's continuation, in nats per token.
        paper_flops: the FLOPs of reading a context, by Simba's count.
        executed_flops: the FLOPs of the matrix products of the compiled program that reads it.
    """

    model: str
    parameters_sha256: str
    policy: str
    keep: float
    context: int
    losses: list[float]
    paper_flops: float
    executed_flops: float

    @property
    def mean(self) -> float:
        """The mean loss of all windows."""
        return float(np.mean(self.losses))


class CellFolder:
    """The files of an output folder.

    Attributes:
        root: the folder.
    """

    def __init__(self, root: epath.Path, settings: StudySettings):
        """Claim a folder for measurements of one kind, and reuse existing ones.

        Raises:
            ConfigError: the folder has measurements of another kind; the message names the differing flag.
        """
        self.root = root
        if not is_remote(root):
            (root / _CELLS).mkdir(parents=True, exist_ok=True)
        path = root / _SETTINGS
        if not exists(path):
            write_json(path, to_plain(settings))
            return
        found = _read(path, StudySettings)
        for name, flag in _FLAGS.items():
            before, now = getattr(found, name), getattr(settings, name)
            if before != now:
                raise ConfigError(
                    f"--{flag}: {path} was started with {name} {before}, found {now}; allowed: the same, "
                    "or another --output"
                )

    def path(self, parameters_sha256: str, policy: str, keep: float, context: int) -> epath.Path:
        """Return the file of a cell."""
        name = f"{parameters_sha256[:12]}-{policy}-{keep:g}-{context}.json"
        return self.root / _CELLS / name

    def read(self, parameters_sha256: str, policy: str, keep: float, context: int) -> Cell | None:
        """Return a cell, or None if it is not measured yet.

        Raises:
            ConfigError: this command did not write the file.
        """
        path = self.path(parameters_sha256, policy, keep, context)
        return _read(path, Cell) if exists(path) else None

    def write(self, cell: Cell) -> None:
        """Write a cell."""
        write_json(self.path(cell.parameters_sha256, cell.policy, cell.keep, cell.context), to_plain(cell))


# The compared settings, in this order, and their flags.
_FLAGS = {
    "format_version": "output",
    "parameters_sha256": "workdir",
    "objective": "objective",
    "windows": "windows",
    "longest_context": "context",
    "continuation": "continuation",
    "pruning": "pruning",
    "windows_sha256": "text",
}


def _read(path: epath.Path, kind: type):
    allowed = "allowed: a file that prune writes"
    try:
        value = parse_json(read_bytes(path))
    except ValueError as error:
        raise ConfigError(f"{path}: found no JSON ({error}); {allowed}") from error
    return parse_typed(kind, value, str(path), ConfigError)


# The policy to compare others with.
INFLUENCE = "influence"


@dataclass(frozen=True)
class CellSummary:
    """The summary of a cell.

    Attributes:
        model: the folder and step of the model.
        policy: the name of the policy; "dense": no pruning.
        keep: the share at the end of the schedule.
        context: the number of tokens in a context.
        loss: the mean loss, in nats per token.
        from_dense: the loss minus the first model's dense loss, paired by window.
        from_influence: the loss minus that of policy influence at the same share; None for influence
            itself, for dense cells, and if influence was not measured.
        paper_flops: the FLOPs of reading a context, by Simba's count.
        executed_flops: the FLOPs of the matrix products of the compiled program that reads it.
    """

    model: str
    policy: str
    keep: float
    context: int
    loss: Interval
    from_dense: Interval
    from_influence: Interval | None
    paper_flops: float
    executed_flops: float


def summarise_cells(
    cells: Sequence[Cell], documents: Int[np.ndarray, " windows"], seed: int = 0
) -> list[CellSummary]:
    """Return the summary of each cell, grouped by length of context.

    Args:
        cells: the cells, including the first model's dense cell at each length.
        documents: the document of each window; the bootstrap resamples whole documents.
        seed: the seed of the resamples.
    """
    weights = _windows_of_documents(documents)

    def difference(cell: Cell, other: Cell) -> Interval:
        return paired_difference(np.array(other.losses), np.array(cell.losses), documents, seed)

    first = cells[0].parameters_sha256
    own = {(one.policy, one.keep, one.context): one for one in cells if one.parameters_sha256 == first}
    found = []
    for cell in sorted(cells, key=lambda one: one.context):
        influence = own.get((INFLUENCE, cell.keep, cell.context))
        compared = influence is not None and cell.policy not in (INFLUENCE, DENSE)
        found.append(
            CellSummary(
                cell.model,
                cell.policy,
                cell.keep,
                cell.context,
                bootstrap_means(_by_document(np.array(cell.losses), documents), weights, seed)[0],
                difference(cell, own[DENSE, 1.0, cell.context]),
                difference(cell, influence) if influence is not None and compared else None,
                cell.paper_flops,
                cell.executed_flops,
            )
        )
    return found


def paired_difference(
    first: Float[np.ndarray, " windows"],
    second: Float[np.ndarray, " windows"],
    documents: Int[np.ndarray, " windows"],
    seed: int = 0,
) -> Interval:
    """Return the mean of second minus first losses, with the 95 % interval of resampled documents.

    Args:
        first: the loss of each window in one condition.
        second: the loss of the same windows in another.
        documents: the document of each window; the bootstrap resamples whole documents.
        seed: the seed of the resamples.
    """
    weights = _windows_of_documents(documents)
    one, other = (_by_document(losses, documents) for losses in (first, second))
    return bootstrap_differences(one, other, weights, weights, seed)[0]


def _windows_of_documents(documents: Int[np.ndarray, " windows"]) -> Float[np.ndarray, " documents"]:
    """Return the number of windows in each document."""
    return np.unique(documents, return_counts=True)[1].astype(np.float64)


def _by_document(
    losses: Float[np.ndarray, " windows"], documents: Int[np.ndarray, " windows"]
) -> Float[np.ndarray, "documents 1"]:
    """Return the mean loss of each document's windows."""
    _, owners = np.unique(documents, return_inverse=True)
    return (np.bincount(owners, losses) / np.bincount(owners))[:, None]


COLUMNS = (
    "model",
    "policy",
    "keep",
    "context",
    "loss",
    "minus dense",
    "minus influence",
    "paper's MFLOPs",
    "executed MFLOPs",
)


def table_rows(summaries: Sequence[CellSummary]) -> list[list[str]]:
    """Return the table as text, one row per cell, under `COLUMNS`."""
    return [
        [
            one.model,
            one.policy,
            f"{one.keep:g}",
            f"{one.context:,}",
            f"{one.loss.mean:.4f}",
            "" if one.policy == DENSE and one.model == summaries[0].model else _with_ends(one.from_dense),
            "" if one.from_influence is None else _with_ends(one.from_influence),
            f"{one.paper_flops / 1e6:,.2f}",
            f"{one.executed_flops / 1e6:,.2f}",
        ]
        for one in summaries
    ]


def cells_table(summaries: Sequence[CellSummary]) -> str:
    """Return the table for the terminal, with the model's name if there are several models."""
    several = len({one.model for one in summaries}) > 1
    lines = [[*row[1:], row[0]] if several else row[1:] for row in (list(COLUMNS), *table_rows(summaries))]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    # Names are left-aligned, numbers right-aligned.
    names = (0, len(COLUMNS) - 1)
    return "\n".join(
        "  ".join(
            cell.ljust(width) if number in names else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _with_ends(interval: Interval) -> str:
    return f"{interval.mean:+.4f} [{interval.low:+.4f}, {interval.high:+.4f}]"
