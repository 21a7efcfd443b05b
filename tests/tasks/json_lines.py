"""Files of JSON lines, which the tests of tasks write."""

import json


def write_lines(path, *records):
    """Write records, or lines as they are, and return the path as a text."""
    path.write_text("".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in records))
    return str(path)
