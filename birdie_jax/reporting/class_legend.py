"""The colour and dash of each class of arms, the same on the whole page."""

from birdie_jax.reporting.run_record import RunRecord
from birdie_jax.reporting.section import LegendEntry
from birdie_jax.reporting.theme import CSS_DASHES, class_colour, class_dash, css_colour


def class_legend(run: RunRecord) -> tuple[LegendEntry, ...]:
    """Return an entry for each class of the run."""
    return tuple(
        LegendEntry(group, css_colour(class_colour(index)), CSS_DASHES[class_dash(index)])
        for index, group in enumerate(run.groups)
    )
