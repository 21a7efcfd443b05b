"""The parts of the page: panels, groups of panels, and sections. A file in `sections/` can add one."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from birdie_jax.reporting.run_record import RunRecord


@dataclass(frozen=True)
class Panel:
    """A plot with its texts.

    Attributes:
        title: the name of the plotted quantity.
        unit: the unit of the y axis.
        svg: the plot; empty if there is nothing to draw.
        note: a sentence below the plot, about its smoothing, its reference, or why it is empty.
    """

    title: str
    unit: str
    svg: str
    note: str = ""


@dataclass(frozen=True)
class LegendEntry:
    """A name and its stroke.

    Attributes:
        name: the name of the line.
        colour: the CSS colour.
        dash: the CSS dash pattern.
    """

    name: str
    colour: str
    dash: str


@dataclass(frozen=True)
class PanelGroup:
    """A grid of panels, with a heading if its section has several grids.

    Attributes:
        panels: the panels, in order.
        heading: the heading; empty for none.
        remark: a remark next to the heading.
        colour: the CSS colour of the mark before the heading.
        legend: the strokes of the lines in all panels of the group.
        shown: the number of visible panels; the others are folded; None: all.
    """

    panels: tuple[Panel, ...]
    heading: str = ""
    remark: str = ""
    colour: str = ""
    legend: tuple[LegendEntry, ...] = ()
    shown: int | None = None


@dataclass(frozen=True)
class HeadlineFigure:
    """A figure at the top of the page.

    Attributes:
        name: the name of the figure.
        value: the value as text.
        remark: a remark below the value.
    """

    name: str
    value: str
    remark: str = ""


@dataclass(frozen=True)
class Section:
    """A section of the page: introduction, legend, groups of panels, or its own template.

    Attributes:
        anchor: the HTML id, unique on the page.
        link: the text of the link at the top of the page.
        title: the heading.
        introduction: the paragraph below the heading.
        legend: the strokes of the lines in all panels.
        groups: the groups of panels.
        wide_panel: a panel of full width, below the groups.
        figures: the figures that the section adds at the top of the page.
        template: the file in `templates/` that renders the section.
        values: further values that the template reads.
    """

    anchor: str
    link: str
    title: str
    introduction: str = ""
    legend: tuple[LegendEntry, ...] = ()
    groups: tuple[PanelGroup, ...] = ()
    wide_panel: Panel | None = None
    figures: tuple[HeadlineFigure, ...] = ()
    template: str = "panel_section.html"
    values: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class SectionKind:
    """A kind of section, from a file in `sections/`.

    Attributes:
        make: a function (run, names of scalars) -> the section; None if the run has no data for it.
        scalars: the scalars that it draws, as `fnmatch` patterns. A scalar of the run belongs to the first
            kind with a matching pattern.
    """

    make: Callable[[RunRecord, tuple[str, ...]], Section | None]
    scalars: tuple[str, ...] = ()


def make_sections(run: RunRecord, kinds: Sequence[SectionKind]) -> list[Section]:
    """Return the sections that the run has, in the order of `kinds`."""
    unclaimed = sorted(run.metrics.scalars)
    sections = []
    for kind in kinds:
        claimed = tuple(name for name in unclaimed if any(fnmatchcase(name, each) for each in kind.scalars))
        unclaimed = [name for name in unclaimed if name not in claimed]
        section = kind.make(run, claimed)
        if section is not None:
            sections.append(section)
    return sections
