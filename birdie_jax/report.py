"""Write the page of a run: python -m birdie_jax.report --workdir=runs/tiny.

The page, <workdir>/report.html, is one file with all its plots; its path is printed.
"""

from birdie_jax.command_line import define_path, start
from birdie_jax.reporting import write_report

_WORKDIR = define_path(
    "workdir", "Folder of the run, which may be finished or still going on.", required=True
)


def main(arguments: list[str]) -> None:
    """Write the page and print its path."""
    print(write_report(_WORKDIR.value))


if __name__ == "__main__":
    start("report", main, OSError)
