"""The page of a comparison: one self-contained HTML file with its plots."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from etils import epath

from birdie_jax.comparison.panels import legend, panels
from birdie_jax.comparison.scores import end_rows, evaluation_rows
from birdie_jax.comparison.sides import different_settings, read_sides
from birdie_jax.reporting.page import describe_run, page_environment, run_completion
from birdie_jax.reporting.svg import default_style
from birdie_jax.storage import make_path, write_whole


def write_comparison(folders: Sequence[epath.PathLike], output: epath.PathLike) -> epath.Path:
    """Write the page that compares runs, and return its path.

    Args:
        folders: workdirs, and folders of workdirs of runs with different seeds.
        output: the page.

    Raises:
        ConfigError: a folder has no run, or there is only one run.
        RecordError: a file of a run is missing or damaged; the message names it.
        OSError: the page cannot be written.
    """
    sides = read_sides(folders)
    with default_style():
        drawn = panels(sides)
    environment = page_environment(Path(__file__).parent / "templates")
    page = environment.get_template("comparison.html").render(
        sides=sides,
        runs=[
            (side.name, run, describe_run(run), run_completion(run)) for side in sides for run in side.runs
        ],
        legend=legend(sides),
        panels=drawn,
        ends=end_rows(sides),
        evaluations=evaluation_rows(sides),
        settings=different_settings(sides),
        written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )
    path = make_path(output)
    write_whole(path, page.encode(errors="backslashreplace"))
    return path
