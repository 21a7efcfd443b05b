"""Write the page of a run: python -m birdie_jax.report --workdir=runs/tiny.

The page, <workdir>/report.html, is one file with all its plots; its path is printed.
"""

import sys
from pathlib import Path

from absl import app, flags

from birdie_jax.reporting import RecordError, write_report

_WORKDIR = flags.DEFINE_string("workdir", None, "The run's directory, finished or still running.")


def main(argv: list[str]) -> None:
    """Write the page and print its path; a workdir that cannot be read ends the program with its error."""
    if len(argv) > 1:
        raise app.UsageError(f"found the argument {argv[1]!r}; allowed: flags only")
    try:
        path = write_report(Path(_WORKDIR.value))
    except RecordError as error:
        sys.exit(f"birdie_jax.report: {error}")
    print(path)


def run() -> None:
    """Parse the flags and call `main`."""
    flags.mark_flag_as_required("workdir")
    app.run(main)


if __name__ == "__main__":
    run()
