"""What the commands of studies have in common: flags, the choice of runs, the page."""

import argparse
import fnmatch
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from birdie_jax.storage.cache_folder import cache_folder
from studies.markdown import write_tables
from studies.results import AnyRun


def study_parser(description: str | None, scales: Iterable[str], page: Path) -> argparse.ArgumentParser:
    """Return a parser of the flags that every study has but --text.

    Args:
        description: the docstring of the command.
        scales: the names of the scales.
        page: the page on which tables are written unless --page names another.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scale", required=True, choices=list(scales))
    parser.add_argument("--results", required=True, type=Path, help="folder of the results, one JSON a run")
    parser.add_argument("--workdirs", type=Path, help="folder of text and checkpoints; default: a cache")
    parser.add_argument("--only", default="*", help="runs whose name, as --list tells it, matches")
    parser.add_argument("--list", action="store_true", help="print what is done and the commands left")
    parser.add_argument("--tables", action="store_true", help="write tables and figures, and run nothing")
    parser.add_argument(
        "--page", type=Path, default=page, help="page for --tables; figures stand beside it"
    )
    return parser


def choose_runs(runs: Iterable[AnyRun], pattern: str) -> list[AnyRun]:
    """Return the runs whose names match; where none does, end the command and say so."""
    every = list(runs)
    chosen = [run for run in every if fnmatch.fnmatchcase(run.name, pattern)]
    if not chosen:
        names = ", ".join(run.name for run in every)
        sys.exit(f"--only={pattern}: matches no run; allowed: a pattern of {names}")
    return chosen


def workdirs_of(given: Path | None, study: str) -> Path:
    """Return the folder of --workdirs, absolute; without the flag one in the cache."""
    return (given or cache_folder() / "benchmarks" / study).absolute()


def publish_tables(page: Path, scale: str, text: str, results: int, figures: Sequence[Path]) -> None:
    """Put the tables of a scale on its page, and say so."""
    write_tables(page, scale, text)
    print(f"{page}: {results} results, {len(figures)} figures")
