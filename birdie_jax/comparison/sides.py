"""The sides of a comparison: runs, and folders of runs that differ in their seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from etils import epath

from birdie_jax.errors import ConfigError, RecordError
from birdie_jax.imports import import_extensions
from birdie_jax.reporting.json_records import is_there
from birdie_jax.reporting.run_record import RunRecord, read_run
from birdie_jax.storage import absolute, is_remote, list_names, make_path, parse_typed
from birdie_jax.storage.workdir import Workdir

_SEED = "seed"


@dataclass(frozen=True)
class Side:
    """A run, or several to average.

    Attributes:
        name: the shortest end of the folder's path that no other side has.
        runs: the runs, at least one, by the names of their folders.
    """

    name: str
    runs: tuple[RunRecord, ...]

    @property
    def seeds(self) -> tuple[object, ...]:
        """The seed of each run; None if its configuration has no seed."""
        return tuple(run.find_setting(_SEED) for run in self.runs)


def read_sides(folders: Sequence[epath.PathLike]) -> tuple[Side, ...]:
    """Read the runs to compare.

    Args:
        folders: workdirs, and folders of workdirs.

    Raises:
        ConfigError: a folder has no run or is given twice; there is only one run; or a run's code of a task
            or an objective is missing or does not run.
        RecordError: a file of a run is missing or damaged; the message names it.
    """
    paths = [absolute(make_path(folder)) for folder in folders]
    for number, path in enumerate(paths):
        if path in paths[:number]:
            raise ConfigError(f"--compare: found {path} twice; allowed: each run once")
    runs = [_runs_of(path) for path in paths]
    for run in (run for of_side in runs for run in of_side if not is_remote(run.workdir)):
        where = f"{Workdir(run.workdir).config}: imports"
        import_extensions(
            parse_typed(tuple[str, ...], run.config.get("imports", ()), where, ConfigError), where
        )
    if sum(map(len, runs)) < 2:
        raise ConfigError(f"--compare={','.join(map(str, folders))}: found one run; allowed: two or more")
    return tuple(Side(name, each) for name, each in zip(_names(paths), runs, strict=True))


def _runs_of(path: epath.Path) -> tuple[RunRecord, ...]:
    if _is_run(path):
        return (read_run(path),)
    try:
        names = list_names(path)
    except OSError as error:
        raise RecordError(f"--compare={path}: cannot be listed: {error}") from error
    runs = tuple(read_run(path / name) for name in sorted(names) if _is_run(path / name))
    if not runs:
        raise ConfigError(
            f"--compare={path}: found no run; allowed: the --workdir of a training run that has logged, "
            "or a folder of such"
        )
    return runs


def _is_run(path: epath.Path) -> bool:
    files = Workdir(path)
    return is_there(files.metrics) or is_there(files.metrics_parts)


def _names(paths: Sequence[epath.Path]) -> list[str]:
    """Return the shortest distinct ends of the paths."""
    for length in range(1, max(len(path.parts) for path in paths) + 1):
        names = ["/".join(path.parts[-length:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return list(map(str, paths))


@dataclass(frozen=True)
class Setting:
    """A configuration field with different values in the runs.

    Attributes:
        name: the dotted name.
        values: for each side, the distinct values of its runs.
    """

    name: str
    values: tuple[str, ...]


def different_settings(sides: Sequence[Side]) -> list[Setting]:
    """Return the configuration fields that differ between runs, by name."""
    flat = [[_flat(run.config) for run in side.runs] for side in sides]
    names = sorted({name for runs in flat for run in runs for name in run})
    settings = []
    for name in names:
        values = [[run.get(name, "not set") for run in runs] for runs in flat]
        if len({value for of_side in values for value in of_side}) > 1:
            settings.append(Setting(name, tuple(", ".join(dict.fromkeys(each)) for each in values)))
    return settings


def _flat(section: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in section.items():
        if isinstance(value, Mapping) and value:
            found |= _flat(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = value if isinstance(value, str) else str(value)
    return found
