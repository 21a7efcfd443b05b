"""The corpus of a study: files that are made once of one text."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from studies.verbs import StudyError


def read_record(record: Path, text: str) -> dict[str, Any] | None:
    """Return the record of a corpus, which is written last; None where it is not made yet.

    Raises:
        StudyError: it is of another text.
    """
    if not record.exists():
        return None
    found = json.loads(record.read_text())
    if found["text"] != text:
        raise StudyError(
            f"{record}: the corpus is of {found['text']}; asked for is {text}; allowed: the same, or "
            "another --workdirs"
        )
    return found


def json_lines(records: Iterable[Mapping[str, Any]]) -> bytes:
    """Return JSON lines."""
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)
