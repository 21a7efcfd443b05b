"""The page of a run: one HTML file with its sections, written atomically."""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import jinja2
from etils import epath
from markupsafe import Markup

from birdie_jax.errors import shown
from birdie_jax.reporting import palette
from birdie_jax.reporting.metrics_table import NoMetricsError
from birdie_jax.reporting.page_text import count, mark_special_tokens, percent, render_text
from birdie_jax.reporting.run_record import RunRecord, may_log, read_run
from birdie_jax.reporting.section import HeadlineFigure, SectionKind, make_sections
from birdie_jax.reporting.sections import SECTIONS
from birdie_jax.reporting.svg import FIGURE_ID, default_style
from birdie_jax.reporting.verdict import class_accuracies, first_figures, verdict
from birdie_jax.storage import absolute, is_remote, write_whole
from birdie_jax.storage.workdir import Workdir


@dataclass(frozen=True)
class Completion:
    """The progress of a run.

    Attributes:
        complete: whether the run ended as planned, by its summary.
        text: the state of the run, as text.
        share: the finished share of the planned steps; None if their number is unknown.
    """

    complete: bool
    text: str
    share: float | None


def run_completion(run: RunRecord) -> Completion:
    """Return the progress of the run."""
    last = run.last_step
    if run.is_complete:
        return Completion(True, f"Complete: {last:,} steps", 1.0)
    planned = run.planned_steps
    if planned is None:
        return Completion(False, f"Not recorded as complete: step {last:,}", None)
    share = min(1.0, last / planned)
    return Completion(False, f"Not complete: step {last:,} of {planned:,} ({percent(share)})", share)


def describe_run(run: RunRecord) -> str:
    """Return a text about the run's model, arms, classes and bandit policy, if any."""
    if run.arms:
        arms, classes = len(run.arms), len(run.groups)
        model, policy = run.setting("model.name", str), run.setting("bandit.policy", str)
        return (
            f"{model.replace('_', ' ')}, {arms} {'arm' if arms == 1 else 'arms'} in {classes} "
            f"{'class' if classes == 1 else 'classes'}, bandit policy {policy}."
        )
    model, scalars = run.find_setting("model.name"), len(run.metrics.scalars)
    start = f"{model.replace('_', ' ')}, " if isinstance(model, str) else ""
    return f"{start}{scalars} {'scalar' if scalars == 1 else 'scalars'} logged."


def summary_figures(run: RunRecord) -> list[HeadlineFigure]:
    """Return the values of summary.json that the page does not show elsewhere."""
    figures = []
    shown = {"completed", "num_steps", "unigram_entropy"}
    for name in ("parameters", "vocab_size"):
        if name in run.summary:
            shown.add(name)
            figures.append(HeadlineFigure(_title(name), _summary_value(run.summary[name])))
    for name, value in run.summary.items():
        if name not in shown and isinstance(value, int | float | str):
            figures.append(HeadlineFigure(_title(name), _summary_value(value), "from summary.json"))
    return figures


def _title(name: str) -> str:
    return name.replace("_", " ").capitalize()


def _summary_value(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, float):
        return f"{value:.4g}"
    # A value this large is not a count, and may exceed a float.
    return count(value) if abs(value) < 1e300 else shown(value, 60)


def follow_report(
    workdir: epath.PathLike,
    seconds: int,
    kinds: Sequence[SectionKind] = SECTIONS,
    *,
    say: Callable[[str], None] = print,
) -> Iterator[epath.Path]:
    """Write the page of a run every few seconds until the run ends, and yield its path each time.

    A browser reloads the page at the same interval. Before the first line of metrics, there is no page. A
    run that was killed, or stopped by SIGTERM, has not ended, because launchers restart it.

    Args:
        workdir: the folder of the run.
        seconds: the seconds between two pages.
        kinds: the kinds of sections of the page.
        say: gets a line when the run has no metrics yet, and when SIGTERM has stopped it.

    Raises:
        RecordError: see `write_report`.
        OSError: see `write_report`.
    """
    said = ""
    while True:
        line = ""
        try:
            run = read_run(workdir)
        except NoMetricsError:
            if not may_log(workdir):
                raise
            line = f"{Workdir(workdir).metrics}: waits for its first line"
        else:
            last = run.starts[-1] if run.starts else None
            going = last is not None and (last.ended is None or last.was_preempted)
            ended = run.is_complete or not going
            yield _write(run, kinds, None if ended else seconds)
            if ended:
                return
            if last is not None and last.was_preempted:
                line = f"{run.workdir}: {last.outcome} at step {run.last_step}; waits for its next start"
        if line and line != said:
            say(line)
        said = line
        time.sleep(seconds)


def write_report(workdir: epath.PathLike, kinds: Sequence[SectionKind] = SECTIONS) -> epath.Path:
    """Write the page of the run in `workdir` and return its path.

    The run may still be in progress; the page shows the logged values.

    Args:
        workdir: the folder of the run.
        kinds: the kinds of sections of the page.

    Raises:
        RecordError: a file of the workdir is missing or damaged; the message names it.
        OSError: the page cannot be written; an existing page stays unchanged.
    """
    return _write(read_run(workdir), kinds, None)


def _write(run: RunRecord, kinds: Sequence[SectionKind], refresh_seconds: int | None) -> epath.Path:
    path = Workdir(run.workdir).report
    if not is_remote(path) and path.is_dir():
        raise OSError(f"{path}: found a folder; allowed: a file, which the page replaces, or nothing")
    # The text of an example may contain half a character (a lone surrogate), which UTF-8 cannot encode.
    page = render_page(run, kinds, refresh_seconds).encode(errors="backslashreplace")
    try:
        write_whole(path, page)
    except OSError as error:
        raise OSError(f"{path}: cannot be written: {error.strerror or error}") from error
    return path


def page_environment(*folders: Path) -> jinja2.Environment:
    """Return the environment that renders pages, with filters and templates.

    Args:
        folders: further folders of templates.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([*folders, Path(__file__).parent / "templates"]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    numbers = itertools.count()

    def number_figure(svg: str) -> Markup:
        # Our plots are already escaped. Ids must be unique on the page.
        return Markup(svg.replace(FIGURE_ID, f"s{next(numbers)}"))

    environment.globals["palette"] = palette
    environment.filters["svg"] = number_figure
    environment.filters["words"] = lambda name: name.replace("_", " ")
    environment.filters["breaks"] = lambda name: Markup("_<wbr>").join(name.split("_"))
    environment.filters["text"] = render_text
    environment.filters["marked"] = mark_special_tokens
    return environment


def render_page(
    run: RunRecord, kinds: Sequence[SectionKind] = SECTIONS, refresh_seconds: int | None = None
) -> str:
    """Return the HTML of the page about `run`, without external references.

    Args:
        run: the run.
        kinds: the kinds of sections of the page.
        refresh_seconds: the seconds after which a browser reloads the page; None: no reload.
    """
    with default_style():
        sections = make_sections(run, kinds)
    figures = [figure for section in sections for figure in section.figures]
    return (
        page_environment()
        .get_template("page.html")
        .render(
            name=absolute(run.workdir).name,
            run=run,
            description=describe_run(run),
            completion=run_completion(run),
            verdict=verdict(run),
            first=first_figures(run),
            classes=class_accuracies(run),
            headline=[*figures, *summary_figures(run)],
            sections=sections,
            refresh_seconds=refresh_seconds,
            written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        )
    )
