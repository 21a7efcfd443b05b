"""Section: time use over all starts."""

import numpy as np

from birdie_jax.reporting import curves
from birdie_jax.reporting.page_text import duration, percent
from birdie_jax.reporting.run_record import RunRecord
from birdie_jax.reporting.section import HeadlineFigure, Section, SectionKind
from birdie_jax.storage.metric_lines import TIME_PREFIX, WALL_CLOCK

_WORDS = {
    "stepping": ("steps", "train steps that count"),
    "compiling": ("compilation", "XLA compiles, or loads programs from its cache"),
    "waiting_for_data": ("data", "the loop waits for its next batch"),
    "hooks": ("hooks", "validation with the bandit, tasks, samples"),
    "checkpoints": ("checkpoints", "the part of saving that blocks the loop"),
    "starting": ("starting", "from the start of a process to its first step"),
    "lost_steps": ("lost steps", "steps that a killed process lost and the run repeated"),
    "between_starts": ("between starts", "from the last line of a killed process to the next start"),
}


def make_time_use(run: RunRecord, scalars: tuple[str, ...]) -> Section | None:
    """Return the section of times, or None if the run logged none."""
    found = {
        name.removeprefix(TIME_PREFIX): curves.last_finite(run.metrics.scalar(name))
        for name in scalars
        if name.startswith(TIME_PREFIX)
    }
    total = sum(found.values())
    if not total:
        return None
    rows = [
        {
            "name": (words := _WORDS.get(name, (name.replace("_", " "), "")))[0],
            "time": duration(seconds),
            "share": percent(seconds / total),
            "width": f"{100 * seconds / total:.1f}",
            "meaning": words[1],
        }
        for name, seconds in sorted(found.items(), key=lambda item: -item[1])
    ]
    figures = (HeadlineFigure("Goodput", percent(found.get("stepping", np.nan) / total), "share of steps"),)
    return Section(
        anchor="time",
        link="Time",
        title="Where the time went",
        introduction=f"{duration(total)} over all starts, up to the last line of metrics.",
        figures=figures,
        template="time_use.html",
        values={"rows": rows},
    )


TIME_USE = SectionKind(make_time_use, scalars=("goodput", WALL_CLOCK, f"{TIME_PREFIX}*"))
