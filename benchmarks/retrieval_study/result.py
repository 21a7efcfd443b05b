"""The result of a finished run: one JSON file, written whole or not at all."""

import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.retrieval_study.matrix import Run
from benchmarks.retrieval_study.verbs import REPOSITORY, StudyError, cores
from birdie_jax.storage import write_json

FORMAT_VERSION = 2
_PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "sentencepiece", "grain", "orbax-checkpoint")


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


def circumstances() -> dict[str, Any]:
    """Return date, commit, versions and machine."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": _git("rev-parse", "HEAD"),
        "changed_since_commit": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in _PACKAGES},
        "machine": {
            "processor": _processor(),
            "cores_used": len(cores()),
            "cores": os.cpu_count(),
            "system": platform.platform(),
        },
    }


def _git(*arguments: str) -> str | None:
    """Return what git says of the repository; None where it is none, as in an unpacked archive."""
    try:
        found = subprocess.run(
            ["git", "-C", str(REPOSITORY), *arguments], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
