"""A writer of JSONL files for tests."""

import json


def write_lines(path, *records):
    """Write records and raw lines to a file, and return its path as a text."""
    path.write_text("".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in records))
    return str(path)
