"""The results of finished runs: one JSON file each, written whole or not at all."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from birdie_jax.storage import write_json
from studies.circumstances import circumstances
from studies.verbs import StudyError


class StudyRun(Protocol):
    """A run of a study: a NamedTuple whose fields and `name` tell it from all others of its scale."""

    @property
    def scale(self) -> str: ...  # noqa: D102

    @property
    def name(self) -> str: ...  # noqa: D102

    def _asdict(self) -> dict[str, Any]: ...


AnyRun = TypeVar("AnyRun", bound=StudyRun)


def result_file(results: Path, run: StudyRun) -> Path:
    """Return the file of a run's result."""
    return results / f"{run.scale}.{run.name}.json"


def write_result(
    results: Path,
    run: StudyRun,
    format_version: int,
    found: Mapping[str, Any],
    seconds: Mapping[str, float],
) -> Path:
    """Write what was found of a run, and under what circumstances; return the file.

    All but "circumstances" is a function of the code and the run alone: a run that was cut off and went on
    has the same as one that was not.
    """
    file = result_file(results, run)
    results.mkdir(parents=True, exist_ok=True)
    write_json(
        file,
        {
            "format_version": format_version,
            "run": run._asdict(),
            **found,
            "circumstances": circumstances() | {"seconds": dict(seconds)},
        },
    )
    return file


def read_results(
    results: Path, scale: str, format_version: int, make_run: Callable[..., AnyRun]
) -> dict[AnyRun, dict[str, Any]]:
    """Return the results of a scale that are there, in the order of their runs.

    Raises:
        StudyError: a file is of another format.
    """
    found: dict[AnyRun, dict[str, Any]] = {}
    for file in sorted(results.glob(f"{scale}.*.json")):
        result = json.loads(file.read_text())
        version = result.get("format_version")
        if version != format_version:
            raise StudyError(f"{file}: found format_version {version}; allowed: {format_version}")
        found[make_run(**result["run"])] = result
    return dict(sorted(found.items()))  # pyright: ignore[reportArgumentType] - tuples have an order
