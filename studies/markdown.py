"""Tables in Markdown, and the generated part of a page."""

from collections.abc import Sequence
from pathlib import Path

from birdie_jax.storage import write_whole
from studies.verbs import StudyError


def write_tables(page: Path, scale: str, text: str) -> None:
    """Put `text` between the marks of a scale in a page, which keeps the rest as it is.

    Raises:
        StudyError: the page is not there or lacks the marks.
    """
    begin, end = f"<!-- begin {scale} -->", f"<!-- end {scale} -->"
    contents = page.read_text() if page.exists() else ""
    before, found_begin, rest = contents.partition(begin)
    _, found_end, after = rest.partition(end)
    if not found_begin or not found_end:
        raise StudyError(f"{page}: lacks the lines {begin} and {end}; allowed: a page with both")
    write_whole(page, f"{before}{begin}\n\n{text.strip()}\n\n{end}{after}".encode())


def section(title: str, text: str) -> str:
    """Return a section of a page."""
    return f"### {title}\n\n{text}"


def rows_of_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
