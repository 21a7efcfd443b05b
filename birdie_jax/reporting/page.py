"""The page: what was read, drawn and counted, poured into page.html and written whole or not at all."""

import os
from datetime import UTC, datetime
from pathlib import Path

import jinja2
from markupsafe import Markup

from birdie_jax.reporting import arm_panels, class_panels, panels, tables
from birdie_jax.reporting.examples import KEPT, VISIBLE, render_text
from birdie_jax.reporting.inline_svg import drawing
from birdie_jax.reporting.run_record import RunRecord, read_run

PAGE_NAME = "report.html"
EXAMPLES_OF_ARM = 2  # 104 arms show about as much as a page can carry


def write_report(workdir: Path) -> Path:
    """Write the page of the run in `workdir` and return its path.

    The run may still be going on: the page tells what has been logged so far.

    Raises:
        RecordError: a file of the workdir is missing or damaged; the message names it.
    """
    page = render_page(read_run(workdir))
    path = workdir / PAGE_NAME
    unfinished = workdir / f".{PAGE_NAME}.{os.getpid()}"
    unfinished.write_text(page, encoding="utf-8")
    unfinished.replace(path)
    return path


def render_page(run: RunRecord) -> str:
    """Return the HTML of the page about `run`; it refers to nothing outside itself."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["svg"] = Markup  # plots are markup of our own making, escaped where they were made
    environment.filters["words"] = lambda name: name.replace("_", " ")
    environment.filters["breaks"] = lambda name: Markup("_<wbr>").join(name.split("_"))
    environment.filters["text"] = render_text
    with drawing():
        return environment.get_template("page.html").render(
            name=run.workdir.resolve().name,
            run=run,
            state=tables.run_state(run),
            model=run.setting("model.name"),
            policy=run.setting("bandit.policy"),
            every_steps=run.setting("bandit.every_steps"),
            headline=tables.headline(run),
            legend=arm_panels.class_legend(run),
            training=panels.training_panels(run),
            groups=class_panels.class_panels(run),
            details=arm_panels.class_details(run),
            bandit=arm_panels.bandit_panels(run),
            decisions=arm_panels.decision_steps(run),
            decision_map=arm_panels.decision_map(run),
            machine=panels.machine_panels(run),
            arm_classes=tables.arm_classes(run),
            config=tables.config_sections(run.config),
            examples_of_arm=EXAMPLES_OF_ARM,
            visible=VISIBLE,
            kept=KEPT,
            written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        )
