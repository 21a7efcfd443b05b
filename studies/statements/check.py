"""Compares the statements of all subjects with their pages.

A subject is a file of this package with a function `statements`, which SUBJECTS lists. `settings.SECTIONS`
lists the sections whose figures have to be in statements.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from studies.statements import bandit, direction, memory, procedures, pruning, steering, verdict, worth
from studies.statements.figures import Records
from studies.statements.settings import SECTIONS, SETTINGS
from studies.statements.statement import Statement, prose, section_of, uncovered, wrong

SUBJECTS: tuple[Callable[[Records], Iterator[Statement]], ...] = (
    worth.statements,
    memory.statements,
    direction.statements,
    verdict.statements,
    steering.statements,
    procedures.statements,
    bandit.statements,
    pruning.statements,
)


def differences_in_prose(statements: list[Statement]) -> Iterator[str]:
    """Yield statements that do not hold, figures without a statement, and settings without a figure."""
    pages = {page: Path(page).read_text() for page, _ in SECTIONS}
    if failed := [*wrong(statements, pages)]:
        # Their figures are in no statement that holds; naming each would hide the cause.
        yield from failed
        return
    unused = {one.pattern for one in SETTINGS}
    for page, heading in SECTIONS:
        section = section_of(pages[page], heading)
        if section is None:
            yield f"{page}: lacks the line {heading!r}"
            continue
        text = prose(section)
        unused -= {pattern for pattern in unused if re.search(pattern, text)}
        for one in uncovered(text, [one for one in statements if one.page == page], SETTINGS):
            yield f"{page}: {heading or 'the page'}: {one}"
    yield from (f"no covered section has the setting {pattern!r}" for pattern in sorted(unused))


def all_statements(records: Records) -> list[Statement]:
    """Return the statements of all subjects."""
    return [one for subject in SUBJECTS for one in subject(records)]
