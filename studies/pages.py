"""Makes the tables and figures of the pages of docs/measurements from the recorded results, or checks them.

    python -m studies.pages            # writes all tables and figures
    python -m studies.pages --check    # compares; names the pages that differ, with status 1

--check compares every table, and the figures in the prose of the sections that
`studies/statements/settings.py` lists. It runs no training, and takes a few minutes of one core.
"""

import argparse
import contextlib
import itertools
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from studies.bandit_regret import BanditRegret
from studies.bandit_steering import BanditSteering
from studies.encoders.study import Encoders
from studies.mixture_grid import MixtureGrid
from studies.mixture_search import MixtureSearch
from studies.pruning.study import Pruning
from studies.recall import Recall
from studies.retrieval.study import Retrieval
from studies.runner import Study
from studies.small_mixtures import SmallMixtures
from studies.statements.check import all_statements, differences_in_prose
from studies.steering import Steering
from studies.verbs import REPOSITORY

MEASUREMENTS = Path("docs/measurements")
# A study, a scale with recorded results, and their folder.
RECORDED: tuple[tuple[type[Study[Any, Any]], str, str], ...] = (
    (BanditRegret, "full", "bandit_regret"),
    (BanditRegret, "long", "bandit_regret"),
    (SmallMixtures, "small", "small_mixtures"),
    (BanditSteering, "small", "bandit_steering"),
    (MixtureGrid, "small", "mixture_grid"),
    (MixtureSearch, "small", "mixture_search"),
    (Steering, "small", "steering"),
    (Encoders, "small_tuned", "encoder_study"),
    *(
        (Retrieval, scale, "retrieval")
        for scale in ("small", "worth", "worth_wide", "memory", "verdict", "direction")
    ),
    (Recall, "small", "recall"),
    (Pruning, "small", "pruning_study"),
    (Pruning, "stake", "pruning_study"),
)


def recorded(study: type[Study[Any, Any]], scale: str, folder: str) -> Study[Any, Any]:
    """Return a study whose results are those of the repository."""
    return study(study.scales[scale], MEASUREMENTS / folder, Path("unused"), "")


def difference(chosen: Study[Any, Any], results: Mapping[Any, Mapping[str, Any]]) -> str:
    """Return how the tables of a page differ from those of the recorded results; "" if they do not."""
    scale = chosen.scale.name
    page = MEASUREMENTS / chosen.page_of(chosen.scale)
    if not results:
        return f"{page}: {scale}: no recorded results in {chosen.results}"
    _, begin, rest = page.read_text().partition(f"<!-- begin {chosen.name}.{scale} -->\n\n")
    part, end, _ = rest.partition(f"<!-- end {chosen.name}.{scale} -->")
    if not begin or not end:
        return f"{page}: {scale}: lacks its marks"
    tables, lines = "\n\n".join(chosen.tables(results)).splitlines(), part.splitlines()
    for number, (wanted, found) in enumerate(itertools.zip_longest(tables, lines[: len(tables)])):
        if wanted != found:
            return f"{page}: {scale}, line {number + 1}: found {found!r}; recorded: {wanted!r}"
    after = next(filter(None, lines[len(tables) :]), "![")
    if not after.startswith(("![", "### Not run: ")):
        return (
            f"{page}: {scale}: found {after!r} after the last table; allowed: a figure, or the missing runs"
        )
    planned = list(chosen.runs())
    missing = len(set(planned) - set(results))
    if (f"Not run: {missing} of {len(planned)}" in part) != (missing > 0):
        return f"{page}: {scale}: another number of runs is left: {missing} of {len(planned)}"
    return ""


@contextlib.contextmanager
def in_repository() -> Iterator[None]:
    """Change to the repository's folder: pages name the folders of results as seen from there."""
    before = Path.cwd()
    os.chdir(REPOSITORY)
    try:
        yield
    finally:
        os.chdir(before)


def main() -> None:
    """Parse the flags, and write or check every page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare tables and prose, and write nothing")
    check = parser.parse_args().check
    differences: list[str] = []
    records: dict[tuple[str, str], Mapping[Any, Mapping[str, Any]]] = {}
    with in_repository():
        for study, scale, folder in RECORDED:
            chosen = recorded(study, scale, folder)
            if not check:
                chosen.write_page(MEASUREMENTS / study.page_of(chosen.scale))
                continue
            records[study.name, scale] = chosen.read_results()
            differences.append(difference(chosen, records[study.name, scale]))
            print(differences[-1] or f"{study.page_of(chosen.scale)}: {scale}: as recorded", flush=True)
        if check:
            statements = all_statements(records)
            differences += (found := list(differences_in_prose(statements)))
            print("\n".join(found) or f"{len(statements)} statements in prose: as recorded")
    sys.exit(1 if any(differences) else 0)


if __name__ == "__main__":
    main()
