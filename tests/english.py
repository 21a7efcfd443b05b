"""Refuses the words of docs/glossary.md's first table in lines that are new or changed since BASE.

`python -m tests.english` prints each such line and exits with 1. A line that only moved is not new. Git
must know a file (`git add`) and this clone must hold BASE: where it does not, the check fails.
"""

import re
import subprocess
import sys
from collections import Counter

# The last commit whose lines are not checked.
BASE = "8a0f9749faa894578394fb734537312a3606bb4e"
REFUSED = re.compile(
    r"\b(told|tells?(?!\()|asked of|go(es)? on( with)?|hangs on|(is|are) had|of which|by which|whose fault"
    r"|no more(?! than)|likewise|besides(?!=))\b",
    re.IGNORECASE,
)
# These name the words that they refuse.
EXEMPT = {"docs/glossary.md", "tests/english.py", "tests/test_english.py"}
CHECKED = ["*.py", "*.md", "*.sh", "*.toml", "*.cfg", "*.yaml"]
HUNK = re.compile(r"@@ -\d+(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


def refused_lines(diff: str) -> list[str]:
    """Return `file:line: word: text` for each refused line that `diff` adds (`git diff -U0` made it)."""
    added: list[tuple[str, int, str]] = []
    removed: Counter[str] = Counter()
    file, number, minus, plus = "", 0, 0, 0
    for line in diff.split("\n"):
        # Inside a hunk only its counts separate a header from text that starts with the same signs.
        if minus and line.startswith("-"):
            minus -= 1
            removed[line[1:].strip()] += 1
        elif plus and line.startswith("+"):
            plus -= 1
            added.append((file, number, line[1:].strip()))
            number += 1
        elif line.startswith("+++ "):
            file = line[4:].rstrip("\t").removeprefix("b/")
        elif hunk := HUNK.match(line):
            minus, plus = int(hunk[1] or 1), int(hunk[3] or 1)
            number = int(hunk[2])
    found: list[str] = []
    for file, number, text in added:
        if removed[text]:
            removed[text] -= 1
        elif file not in EXEMPT and (word := REFUSED.search(text)):
            found.append(f"{file}:{number}: {word[0]}: {text}")
    return found


def main() -> None:
    """Check the lines of this clone that differ from BASE."""
    known = subprocess.run(
        ["git", "cat-file", "-e", f"{BASE}^{{commit}}"], capture_output=True, check=False
    )
    if known.returncode:
        sys.exit(f"cannot check the English: no commit {BASE} here; run `git fetch`, or --unshallow")
    command = ["git", "-c", "core.quotePath=false", "diff", "-U0", "--no-color", "--no-ext-diff"]
    command += ["--src-prefix=a/", "--dst-prefix=b/", BASE, "--", *CHECKED]
    diff = subprocess.run(command, capture_output=True, check=True).stdout.decode(errors="replace")
    if found := refused_lines(diff):
        sys.exit("\n".join([*found, "docs/glossary.md says what to write instead"]))


if __name__ == "__main__":
    main()
