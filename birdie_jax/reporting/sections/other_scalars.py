"""Section: every scalar that no other section draws, grouped by the first part of its name."""

from birdie_jax.reporting.run_record import RunRecord
from birdie_jax.reporting.scalar_panels import ScalarPlot, scalar_panel
from birdie_jax.reporting.section import PanelGroup, Section, SectionKind
from birdie_jax.reporting.theme import ACCENT, css_colour


def make_section(run: RunRecord, scalars: tuple[str, ...]) -> Section | None:
    """Return the section of `scalars`; None where there are none."""
    groups: dict[str, list[str]] = {}
    for name in scalars:
        groups.setdefault(name.partition("/")[0] if "/" in name else "", []).append(name)
    if not groups:
        return None
    return Section(
        anchor="other-scalars",
        link="Other scalars",
        title="Other scalars",
        introduction="Everything else in metrics.jsonl, each scalar as it was logged.",
        groups=tuple(
            PanelGroup(
                tuple(scalar_panel(run, ScalarPlot(name, name.replace("_", " "))) for name in names),
                heading=heading,
                remark=f"{len(names)} {'scalar' if len(names) == 1 else 'scalars'}" if heading else "",
                colour=css_colour(ACCENT),
            )
            for heading, names in sorted(groups.items())
        ),
    )


OTHER_SCALARS = SectionKind(make_section, scalars=("*",))
