"""The result of a finished run: one JSON file, written whole or not at all."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.retrieval_study.matrix import Run
from benchmarks.studies.circumstances import circumstances
from benchmarks.studies.verbs import StudyError
from birdie_jax.storage import write_json

FORMAT_VERSION = 2


def result_file(results: Path, run: Run) -> Path:
    """Return the file of a run's result."""
    return results / f"{run.scale}.{run.name}.json"


def write_result(results: Path, run: Run, found: dict[str, Any], seconds: dict[str, float]) -> Path:
    """Write what was found of a run, and under what circumstances; return the file.

    All but "circumstances" is a function of the code and the run alone: a run that was cut off and went on
    has the same as one that was not.
    """
    file = result_file(results, run)
    results.mkdir(parents=True, exist_ok=True)
    write_json(
        file,
        {
            "format_version": FORMAT_VERSION,
            "run": run._asdict(),
            **found,
            "circumstances": circumstances() | {"seconds": seconds},
        },
    )
    return file


def read_results(results: Path, scale: str) -> dict[Run, dict[str, Any]]:
    """Return the results of a scale that are there.

    Raises:
        StudyError: a file is of another format.
    """
    return dict(sorted(_read_results(results, scale)))


def _read_results(results: Path, scale: str) -> Iterator[tuple[Run, dict[str, Any]]]:
    for file in sorted(results.glob(f"{scale}.*.json")):
        result = json.loads(file.read_text())
        version = result.get("format_version")
        if version != FORMAT_VERSION:
            raise StudyError(f"{file}: found format_version {version}; allowed: {FORMAT_VERSION}")
        yield Run(**result["run"]), result
