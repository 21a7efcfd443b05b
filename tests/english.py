"""Refuses words that docs/glossary.md lists for authors, and long lines of prose in Markdown.

`python -m tests.english` prints each such line of the files that Git knows (`git add`), and exits with 1.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

REFUSED = re.compile(
    r"\b(told|tells?(?!\()|asked of|go(es)? on( with)?|hangs on|(is|are) had|of which|by which|whose fault"
    r"|no more(?! than)|likewise|besides)\b",
    re.IGNORECASE,
)
# These files contain the refused words.
EXEMPT = {"docs/glossary.md", "tests/english.py", "tests/test_english.py"}
CHECKED = ["*.py", "*.md", "*.sh", "*.toml", "*.cfg", "*.yaml", "*.ipynb"]
PROSE_COLUMNS = 100
# Tables, headings, pictures, quotations, single words and links may be long lines.
ONE_LINE = re.compile(r"\s*(\||#|!\[|>|<!--|(([-*]|\d+\.) )?(\S+|\[[^]]*\]\(\S*)$)")


def refused_words(file: str, text: str) -> list[str]:
    """Return `file:line: word: text` for each line with a refused word."""
    lines = enumerate(text.split("\n"), 1)
    return [f"{file}:{n}: {word[0]}: {line.strip()}" for n, line in lines if (word := REFUSED.search(line))]


def long_lines(file: str, text: str) -> list[str]:
    """Return `file:line: columns: text` for each line of prose of a page that is too long."""
    return [
        f"{file}:{number}: {len(line)} columns; allowed: {PROSE_COLUMNS}: {line[:60]}"
        for number, line in _prose(text)
        if len(line) > PROSE_COLUMNS and not ONE_LINE.match(line)
    ]


def _prose(text: str) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines of a page, except code and generated text."""
    code = generated = False
    for number, line in enumerate(text.split("\n"), 1):
        if line.lstrip().startswith("```"):
            code = not code
        generated = (generated or "<!-- begin " in line) and "<!-- end " not in line
        if not code and not generated and not line.startswith("    "):
            yield number, line


def main() -> None:
    """Check the files of this clone."""
    listed = subprocess.run(["git", "ls-files", "-z", *CHECKED], capture_output=True, check=True).stdout
    found = []
    for file in sorted({*listed.decode().split("\0")} - {""} - EXEMPT):
        text = Path(file).read_text(encoding="utf-8", errors="replace")
        found += refused_words(file, text) + (long_lines(file, text) if file.endswith(".md") else [])
    if found:
        sys.exit("\n".join([*found, "docs/glossary.md says what to write instead"]))


if __name__ == "__main__":
    main()
