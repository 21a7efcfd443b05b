"""Readers of a workdir's JSON files and of the arms in arms.json; errors name the file."""

import os
from dataclasses import dataclass
from typing import Any

from etils import epath

from birdie_jax.config_types import Share
from birdie_jax.errors import RecordError
from birdie_jax.storage import exists, is_remote, read_bytes
from birdie_jax.storage.json_text import parse_json
from birdie_jax.storage.typed import parse_typed

_ALLOWED = "the file that train writes"


def is_there(path: epath.Path) -> bool:
    """Return whether a file of a workdir exists.

    Raises:
        RecordError: the store of the workdir does not answer.
    """
    try:
        return exists(path)
    except OSError as error:
        raise RecordError(f"{path}: cannot be looked for: {error}") from error


def read_file(path: epath.Path) -> bytes:
    """Return the contents of a file that training wrote.

    Raises:
        RecordError: the file is missing or cannot be read.
    """
    if not is_there(path):
        raise RecordError(f"{path}: missing; allowed: {_ALLOWED}")
    # epath counts a pipe as a file, and a reader would wait for it.
    if not (is_remote(path) or os.path.isfile(path)):
        raise RecordError(
            f"{path}: found {'a folder' if path.is_dir() else 'no file'}; allowed: {_ALLOWED}"
        )
    try:
        return read_bytes(path)
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror or error}") from error


def read_json(path: epath.Path) -> Any:
    """Return the value in a JSON file.

    Raises:
        RecordError: the file is missing, cannot be read, or is not JSON.
    """
    contents = read_file(path)
    try:
        return parse_json(contents)
    except ValueError as error:
        raise RecordError(f"{path}: found no JSON ({error}); allowed: {_ALLOWED}") from error


def read_json_object(path: epath.Path) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        RecordError: the file is missing or is not a JSON object.
    """
    value = read_json(path)
    if not isinstance(value, dict):
        raise RecordError(f"{path}: found {type(value).__name__}; allowed: a JSON object")
    return value


@dataclass(frozen=True)
class ArmExample:
    """An example of an arm as text, with special tokens by name.

    Attributes:
        context: the text that the model sees bidirectionally.
        target: the text that the model must generate.
    """

    context: str
    target: str


@dataclass(frozen=True)
class ExpectedShares:
    """The expected shares of an arm at the start of the run.

    Attributes:
        examples: the share of the examples.
        positions: the share of the positions, context and target.
        target_tokens: the share of the target tokens, over which the loss is a mean.
        counted_examples: the number of the arm's examples in the estimate.
    """

    examples: Share
    positions: Share
    target_tokens: Share
    counted_examples: int


@dataclass(frozen=True)
class ArmRecord:
    """An objective with its parameters.

    Attributes:
        name: the arm's name, unique in the run.
        group: the name of its class; the papers average over classes.
        objective: the name of the objective.
        parameters: the objective's keyword arguments.
        weight: the initial weight in the mixture, at least 0, in any unit.
        corpora: the names of the corpora that it reads; empty if the run reads one text.
        expected_shares: the expected shares at the start of the run; None for runs that began before shares
            were estimated.
        examples: a few examples of the arm.
    """

    name: str
    group: str
    objective: str
    parameters: dict[str, Any]
    weight: float
    corpora: tuple[str, ...]
    expected_shares: ExpectedShares | None
    examples: tuple[ArmExample, ...]


def read_arms(path: epath.Path) -> tuple[ArmRecord, ...]:
    """Return the arms in the file `path`, or none if there is no such file.

    Raises:
        RecordError: the file is damaged; the message names the record and its field.
    """
    if not is_there(path):
        return ()
    records = read_json(path)
    if not isinstance(records, list) or not records:
        raise RecordError(f"{path}: found {type(records).__name__}; allowed: a list of at least one arm")
    arms: list[ArmRecord] = []
    for number, record in enumerate(records, start=1):
        where = f"{path}: record {number}"
        if isinstance(record, dict):
            # Older records have no shares or corpora.
            record = {"expected_shares": None, "corpora": []} | record  # noqa: PLW2901
        arm = parse_typed(ArmRecord, record, where, RecordError)
        if any(other.name == arm.name for other in arms):
            raise RecordError(f"{where}.name: found {arm.name!r} a second time; allowed: each name once")
        if arm.weight < 0:
            raise RecordError(
                f"{where}.weight: found {arm.weight!r}; allowed: a finite number of at least 0"
            )
        arms.append(arm)
    if not any(arm.weight for arm in arms):
        raise RecordError(f"{path}: weight: found 0 for every arm; allowed: at least one weight above 0")
    return tuple(arms)
