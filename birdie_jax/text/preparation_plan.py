"""`plan.json`: a source divided into units, which any processes can prepare in any order.

A unit is a range of consecutive files. The division depends only on the names and sizes of the files. The
result of a unit depends only on the plan and the tokenizer, not on the machine or on other units.
"""

import hashlib
import itertools
import json
import os
from dataclasses import dataclass

from etils import epath

from birdie_jax.errors import DataError
from birdie_jax.storage import make_path, parse_typed, read_bytes, to_plain
from birdie_jax.storage.json_text import parse_json
from birdie_jax.text.hub import is_hub
from birdie_jax.text.locations import Location, reason
from birdie_jax.text.manifest import PreparationSettings
from birdie_jax.text.record_rules import make_rules
from birdie_jax.text.remote_files import ObjectState
from birdie_jax.text.sources import Source

PLAN_NAME = "plan.json"


@dataclass(frozen=True)
class PlannedFile:
    """A file of the source.

    Attributes:
        path: its absolute path, or its URL.
        bytes: the number of its bytes, as stored.
        generation: see `ObjectState`; empty on a disk.
        checksum: see `ObjectState`; empty on a disk.
    """

    path: str
    bytes: int
    generation: str
    checksum: str


@dataclass(frozen=True)
class Plan:
    """The contents of `plan.json`.

    Attributes:
        settings: the settings of the preparation.
        source_commit: the commit of the hub's data set; empty for other sources.
        files: the files of the source, in order.
        ends: for each unit, the number of the file after its last one.
    """

    settings: PreparationSettings
    source_commit: str
    files: tuple[PlannedFile, ...]
    ends: tuple[int, ...]

    @property
    def sha256(self) -> str:
        """The hash of the plan; every file that a unit writes must name it."""
        return hashlib.sha256(self.to_json()).hexdigest()

    def to_json(self) -> bytes:
        """Return the contents of `plan.json`."""
        return (json.dumps(to_plain(self), indent=1) + "\n").encode()

    def open_unit(self, number: int) -> Source:
        """Return the files of a unit as a source.

        Raises:
            DataError: a file is missing, or its size has changed since the plan was made.
        """
        check_unit(number, len(self.ends))
        files = self.files[self.ends[number - 1] if number else 0 : self.ends[number]]
        settings = self.settings
        rules = make_rules(
            settings.text_field, settings.document_separator, settings.document_filter, settings.deduplicate
        )
        states = tuple(ObjectState(each.bytes, each.generation, each.checksum) for each in files)
        is_stored = any(each.checksum for each in files)
        source = Source(
            settings.source,
            rules,
            tuple(locate_file(each.path) for each in files),
            states if is_stored else None,
            self.source_commit,
        )
        for file, size in zip(files, source.sizes, strict=True):
            if size != file.bytes:
                raise DataError(
                    f"{file.path}: has {size} bytes, and had {file.bytes} when the plan was made; restore "
                    "it, or use another output folder"
                )
        return source


def check_unit(number: int, count: int) -> None:
    """Check that a plan of `count` units has a unit of this number.

    Raises:
        DataError: it has none.
    """
    if not 0 <= number < count:
        raise DataError(f"unit is {number}; allowed: 0 to {count - 1}")


def locate_file(name: str) -> Location:
    """Return the path of a file of a plan."""
    return epath.Path(name) if is_hub(name) else make_path(name)


def make_plan(source: Source, settings: PreparationSettings) -> Plan:
    """Divide a source into `settings.units` units of consecutive files, of similar size.

    Raises:
        DataError: the source has fewer files than units.
    """
    units, count = settings.units, len(source.files)
    if units > count:
        raise DataError(
            f"units is {units}; allowed: 1 to {count}, the number of files of {settings.source}: a file is "
            "never divided"
        )
    files = []
    for file, state in zip(source.files, source.states, strict=True):
        stored = (state.generation, state.checksum) if isinstance(state, ObjectState) else ("", "")
        files.append(
            PlannedFile(os.path.abspath(file) if stored == ("", "") else str(file), state.size, *stored)
        )
    before = [0, *itertools.accumulate(source.sizes)]
    ends, end = [], 0
    for unit in range(1, units):
        end += 1
        while end < count - (units - unit) and before[end + 1] * units <= before[-1] * unit:
            end += 1
        ends.append(end)
    return Plan(settings, source.commit, tuple(files), (*ends, count))


def check_plan(directory: Location, plan: Plan) -> None:
    """Check that the plan of a folder equals `plan`.

    Raises:
        DataError: the folder has another plan, or it cannot be read.
    """
    if load_plan(directory) != plan:
        raise DataError(
            f"{directory / PLAN_NAME}: holds a plan with other settings, or of a source that has changed "
            "since; use another output folder"
        )


def load_plan(directory: Location) -> Plan:
    """Return the plan of a folder.

    Raises:
        DataError: there is no plan, or it cannot be read.
    """
    path = directory / PLAN_NAME
    try:
        contents = parse_json(read_bytes(path))
    except FileNotFoundError as error:
        raise DataError(f"{path}: not found; prepare_data --units=N --runner=none makes it") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {reason(error)}") from error
    except ValueError as error:
        raise DataError(f"{path}: is not readable JSON: {error}") from error
    return parse_typed(Plan, contents, f"{path}: plan", DataError)
