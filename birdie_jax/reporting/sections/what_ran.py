"""Section: the starts of the run, with software, machine, duration and outcome."""

from collections.abc import Sequence
from datetime import datetime

from birdie_jax.reporting.run_record import RunRecord
from birdie_jax.reporting.section import HeadlineFigure, Section, SectionKind
from birdie_jax.start_record import Start


def make_what_ran(run: RunRecord, scalars: tuple[str, ...]) -> Section | None:
    """Return the section of the starts, or None if the run has no record of them."""
    del scalars
    if not run.starts:
        return None
    return Section(
        anchor="what_ran",
        link="What ran",
        title="What ran",
        template="what_ran.html",
        figures=(_cost(run.starts),),
        values={"rows": [_row(start) for start in run.starts], "last": run.starts[-1].program},
    )


def _cost(starts: Sequence[Start]) -> HeadlineFigure:
    known = [hours for start in starts if (hours := start.device_hours) is not None]
    remark = f"{starts[-1].devices} x {starts[-1].device}"
    if len(starts) > 1:
        remark += f", {len(starts)} starts"
    if len(known) < len(starts):
        remark += f", {len(starts) - len(known)} without an end"
    return HeadlineFigure("Device hours", f"{sum(known):.2f}", remark)


def _row(start: Start) -> dict[str, str]:
    began = datetime.fromisoformat(start.began)
    lasted = "unknown"
    if start.ended is not None:
        lasted = str(datetime.fromisoformat(start.ended) - began)
    return {
        "began": began.strftime("%Y-%m-%d %H:%M UTC"),
        "lasted": lasted,
        "step": "" if start.step is None else f"{start.step:,}",
        "outcome": start.outcome or "runs, or was killed",
        "machine": start.machine,
        "program": start.program.title,
    }


WHAT_RAN = SectionKind(make_what_ran)
