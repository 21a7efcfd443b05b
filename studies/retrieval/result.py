"""The result of a finished run of the study."""

import json
from pathlib import Path
from typing import Any

from studies import results as studies
from studies.retrieval.matrix import Run

FORMAT_VERSION = 2

SQUAD = "squad"
"""The folder of the scores on SQuAD's questions, and their name in its files."""


def write_result(results: Path, run: Run, found: dict[str, Any], seconds: dict[str, float]) -> Path:
    """Write what was found of a run, and under what circumstances; return the file."""
    return studies.write_result(results, run, FORMAT_VERSION, found, seconds)


def read_results(results: Path, scale: str) -> dict[Run, dict[str, Any]]:
    """Return the results of a scale that are there.

    Raises:
        StudyError: a file is of another format.
    """
    return studies.read_results(results, scale, FORMAT_VERSION, Run)


def squad_file(results: Path, run: Run) -> Path:
    """Return the file of a run's scores on SQuAD's questions."""
    return studies.result_file(results / SQUAD, run)


def read_squad_scores(results: Path, scale: str) -> dict[Run, dict[str, Any]]:
    """Return the scores on SQuAD's questions of the runs of a scale that were asked them."""
    found = {}
    for file in (results / SQUAD).glob(f"{scale}.*.json"):
        scores = json.loads(file.read_text())
        found[Run(**scores["run"])] = scores[SQUAD]
    return dict(sorted(found.items()))
