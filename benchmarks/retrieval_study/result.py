"""The result of a finished run of the study."""

from pathlib import Path
from typing import Any

from benchmarks.retrieval_study.matrix import Run
from benchmarks.studies import results as studies

FORMAT_VERSION = 2


def write_result(results: Path, run: Run, found: dict[str, Any], seconds: dict[str, float]) -> Path:
    """Write what was found of a run, and under what circumstances; return the file."""
    return studies.write_result(results, run, FORMAT_VERSION, found, seconds)


def read_results(results: Path, scale: str) -> dict[Run, dict[str, Any]]:
    """Return the results of a scale that are there.

    Raises:
        StudyError: a file is of another format.
    """
    return studies.read_results(results, scale, FORMAT_VERSION, Run)
