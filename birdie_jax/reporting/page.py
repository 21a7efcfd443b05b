"""The page of a run: its sections rendered into one HTML file, which is written whole or not at all."""

import itertools
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import jinja2
from etils import epath
from markupsafe import Markup

from birdie_jax.reporting.example_text import mark_special_tokens, render_text
from birdie_jax.reporting.headline import describe_run, run_completion, summary_figures
from birdie_jax.reporting.inline_svg import FIGURE_ID, default_style
from birdie_jax.reporting.run_record import RunRecord, read_run
from birdie_jax.reporting.section import SectionKind, make_sections
from birdie_jax.reporting.sections import SECTIONS
from birdie_jax.storage import absolute, is_remote, write_whole
from birdie_jax.storage.workdir import Workdir


def write_report(workdir: epath.PathLike, kinds: Sequence[SectionKind] = SECTIONS) -> epath.Path:
    """Write the page of the run in `workdir` and return its path.

    The run may still be going on: the page shows what has been logged so far.

    Args:
        workdir: the folder of the run.
        kinds: the kinds of sections of the page.

    Raises:
        RecordError: a file of the workdir is missing or damaged; the message names it.
        OSError: the page cannot be written; what was there is as it was.
    """
    run = read_run(workdir)
    path = Workdir(workdir).report
    if not is_remote(path) and path.is_dir():
        raise OSError(f"{path}: found a folder; allowed: a file, which the page replaces, or nothing")
    # Text of an example may hold half of a character, which JSON can say and UTF-8 cannot.
    page = render_page(run, kinds).encode(errors="backslashreplace")
    try:
        write_whole(path, page)
    except OSError as error:
        raise OSError(f"{path}: cannot be written: {error.strerror or error}") from error
    return path


def render_page(run: RunRecord, kinds: Sequence[SectionKind] = SECTIONS) -> str:
    """Return the HTML of the page about `run`; it refers to nothing outside itself."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    numbers = itertools.count()

    def number_figure(svg: str) -> Markup:
        # Plots are markup of our own, escaped where it was made; ids are shared by the whole page.
        return Markup(svg.replace(FIGURE_ID, f"s{next(numbers)}"))

    environment.filters["svg"] = number_figure
    environment.filters["words"] = lambda name: name.replace("_", " ")
    environment.filters["breaks"] = lambda name: Markup("_<wbr>").join(name.split("_"))
    environment.filters["text"] = render_text
    environment.filters["marked"] = mark_special_tokens
    with default_style():
        sections = make_sections(run, kinds)
    figures = [figure for section in sections for figure in section.figures]
    return environment.get_template("page.html").render(
        name=absolute(run.workdir).name,
        run=run,
        description=describe_run(run),
        completion=run_completion(run),
        headline=[*figures, *summary_figures(run)],
        sections=sections,
        written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )
