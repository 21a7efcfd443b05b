"""Write the page of a run: python -m birdie_jax.report --workdir=runs/tiny.

The page, <workdir>/report.html, is one file with all its plots; its path is printed.
"""

import sys

from absl import app, flags

from birdie_jax.reporting import RecordError, write_report

_WORKDIR = flags.DEFINE_string(
    "workdir", None, "Folder of the run, which may be finished or still going on.", required=True
)


def main(arguments: list[str]) -> None:
    """Write the page and print its path; a workdir that cannot be read ends the program with its error."""
    if len(arguments) > 1:
        raise app.UsageError(f"found the argument {arguments[1]!r}; allowed: flags only")
    try:
        path = write_report(_WORKDIR.value)
    except RecordError as error:
        sys.exit(f"birdie_jax.report: {error}")
    print(path)


if __name__ == "__main__":
    app.run(main)
