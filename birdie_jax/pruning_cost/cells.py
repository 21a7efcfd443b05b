"""What was measured: a file for each model, policy, share and length of context; whole or absent."""

import json
from dataclasses import dataclass

import numpy as np
from etils import epath

from birdie_jax.config_errors import ConfigError
from birdie_jax.storage import exists, is_remote, parse_typed, read_bytes, to_plain, write_json

FORMAT_VERSION = 1
DENSE = "dense"


@dataclass(frozen=True)
class StudySettings:
    """What has to be the same for all cells of an output folder.

    Attributes:
        format_version: the version of this format.
        parameters_sha256: the hash of the parameters of the model that is pruned.
        objective: the name of the arm in whose form contexts are read.
        windows_sha256: the hash of the windows' tokens.
        windows: the number of windows.
        longest_context: the longest context of the windows.
        continuation: the number of tokens that are scored.
        pruning: the settings of pruning but share and policy, as they were given.
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
        policy: the name of the policy; "dense" where nothing is dropped.
        keep: the share that the schedule ends with.
        context: the number of tokens of a context.
        losses: the mean loss of each window's continuation, nats a token.
        paper_flops: the FLOPs of reading a context, in the unit of Simba.
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
        """Claim a folder for measurements of one kind; those that are there already are gone on with.

        Raises:
            ConfigError: it holds others; the message names the flag that differs.
        """
        self.root = root
        if not is_remote(root):
            (root / "cells").mkdir(parents=True, exist_ok=True)
        path = root / "settings.json"
        if not exists(path):
            write_json(path, to_plain(settings))
            return
        found = _read(path, StudySettings)
        for name, flag in _FLAGS.items():
            before, now = getattr(found, name), getattr(settings, name)
            if before != now:
                raise ConfigError(
                    f"--{flag}: {path} was begun with {name} {before}, found {now}; allowed: the same, or "
                    "another --output"
                )

    def path(self, parameters_sha256: str, policy: str, keep: float, context: int) -> epath.Path:
        """Return the file of a cell."""
        name = f"{parameters_sha256[:12]}-{policy}-{keep:g}-{context}.json"
        return self.root / "cells" / name

    def read(self, parameters_sha256: str, policy: str, keep: float, context: int) -> Cell | None:
        """Return a cell; None where it is not measured yet.

        Raises:
            ConfigError: its file is none that this command writes.
        """
        path = self.path(parameters_sha256, policy, keep, context)
        return _read(path, Cell) if exists(path) else None

    def write(self, cell: Cell) -> None:
        """Write a cell."""
        write_json(self.path(cell.parameters_sha256, cell.policy, cell.keep, cell.context), to_plain(cell))


# What is compared, in this order, and the flag that decides it.
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
        value = json.loads(read_bytes(path))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: found no JSON ({error}); {allowed}") from error
    return parse_typed(kind, value, str(path), ConfigError)
