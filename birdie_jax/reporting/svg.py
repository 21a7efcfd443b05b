"""Colours of the page, and matplotlib figures as small inline SVG with unique ids.

Plots use roles of colours; the style sheet defines each role for light, dark and paper. Matplotlib only
knows fixed colours, so a plot draws with colour codes, and `resolve_colours` replaces each code with the
CSS variable of its role.
"""

import html
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from birdie_jax.reporting.palette import LIGHT

DASHES = ("-", (0, (4, 2)), (0, (1.2, 1.6)))
CSS_DASHES = ("none", "4 2", "1.2 1.6")

INK = "#a00001"
QUIET = "#a00002"
GRID = "#a00003"
AXIS = "#a00004"
ACCENT = "#a00005"
REFERENCE = "#a00006"
PANEL = "#a00007"

_ROLES = {
    INK: "var(--ink)",
    QUIET: "var(--quiet)",
    GRID: "var(--grid)",
    AXIS: "var(--axis)",
    ACCENT: "var(--accent)",
    REFERENCE: "var(--reference)",
    PANEL: "var(--panel)",
}
_CODE = re.compile(r"#a0000[1-7]|#a1[0-9a-f]{4}")


def class_colour(index: int, shade: int = 50) -> str:
    """Return the colour code of class `index`: shade 0 is near the ink, 50 pure, 100 near the paper."""
    return f"#a1{index % len(LIGHT):02x}{shade:02x}"


def class_dash(index: int) -> int:
    """Return the index in `DASHES` of class `index`; classes with the same colour have different dashes."""
    return index // len(LIGHT) % len(DASHES)


def css_colour(code: str) -> str:
    """Return the CSS value of a colour code."""
    if code in _ROLES:
        return _ROLES[code]
    colour, shade = f"var(--class-{int(code[3:5], 16)})", int(code[5:7], 16)
    if shade == 50:
        return colour
    other, strength = ("--ink", 50 - shade) if shade < 50 else ("--panel", shade - 50)
    return f"color-mix(in oklab, {colour} {100 - strength}%, var({other}))"


def resolve_colours(svg: str) -> str:
    """Replace the colour codes in `svg` with their CSS values."""
    return _CODE.sub(lambda match: css_colour(match[0]), svg)


TOOLTIP = "tip-"  # an artist with the gid tip-3 has the fourth text of `tooltips` as its tooltip
FIGURE_ID = "@figure@"  # the prefix of all ids of a figure; the page replaces it with a unique one

_PATH = re.compile(r' d="([^"]*)"')
_NUMBER = re.compile(r"-?\d+\.\d+")
_FONT_FAMILY = re.compile(r"font-family: [^;\"]*;? ?")
_KEPT_ID = re.compile(r'(<(?:path|clipPath|image)\b[^>]*?) id="([^"]*)"')
_GROUP = re.compile(r'<g id="([^"]*)"([^>]*)>')
_REFERENCE = re.compile(r'(xlink:href="|url\()#')
_ROTATE_0 = re.compile(r' transform="rotate\(-0 [^"]*"')


@contextmanager
def default_style() -> Iterator[None]:
    """Draw and save figures with matplotlib's defaults, not a user's matplotlibrc, in this context."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(
            {"svg.fonttype": "none", "svg.hashsalt": "birdie_jax", "font.size": 10.5}
        )
        yield


def inline_svg(figure: Figure, label: str, tooltips: list[str], max_width: float | None = None) -> str:
    """Return `figure` as an `<svg>` element for a page.

    Args:
        figure: a figure with colour codes; its ids begin with `FIGURE_ID`.
        label: the description for screen readers.
        tooltips: the tooltips; the gid of an artist is `TOOLTIP` and the index of its tooltip.
        max_width: the maximum width in pixels; None: no limit.
    """
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    svg = buffer.getvalue()
    view_box = re.search(r'viewBox="([^"]*)"', svg)
    assert view_box is not None  # matplotlib always writes one
    # Drop the figure's style element, which would apply to the whole page; the style sheet has its rule.
    body = svg[svg.index("</defs>") + len("</defs>") :]

    def group(match: re.Match[str]) -> str:
        if not match[1].startswith(TOOLTIP):
            return f"<g{match[2]}>"
        tooltip = html.escape(tooltips[int(match[1].removeprefix(TOOLTIP))])
        return f'<g class="tip"{match[2]}><title>{tooltip}</title>'

    body = _KEPT_ID.sub(rf'\1 id="{FIGURE_ID}\2"', body)
    body = _REFERENCE.sub(rf"\1#{FIGURE_ID}", body)
    body = body.replace("xlink:href", "href")
    body = _GROUP.sub(group, body)
    body = _FONT_FAMILY.sub("", body)
    body = _ROTATE_0.sub("", body)
    body = _PATH.sub(lambda match: f' d="{_short_path(match[1])}"', body)
    body = re.sub(r">\s+<", "><", resolve_colours(body))
    size = f' style="max-width:{max_width:.0f}px"' if max_width else ""
    return f'<svg viewBox="{view_box[1]}"{size} role="img" aria-label="{html.escape(label)}">{body.strip()}'


def _short_path(path: str) -> str:
    rounded = _NUMBER.sub(lambda match: f"{float(match[0]):.1f}".removesuffix(".0"), path)
    return " ".join(rounded.split()).replace(" L ", "L").replace(" M ", "M")


def labelled_axes(size: tuple[float, float], x_label: str, y_label: str) -> tuple[Figure, Axes]:
    """Return the axes of a plot, with quiet labels and ticks, horizontal grid lines and a bottom line.

    Args:
        size: width and height, in inches.
        x_label: the label of x.
        y_label: the label of y.
    """
    figure = Figure(size, layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel(x_label, color=QUIET)
    axes.set_ylabel(y_label, color=QUIET)
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_locator(MaxNLocator(6))
    axes.tick_params(labelcolor=QUIET, color=AXIS)
    axes.grid(True, axis="y", color=GRID)
    axes.set_axisbelow(True)
    for name, spine in axes.spines.items():
        spine.set_visible(name == "bottom")
        spine.set_color(AXIS)
    return figure, axes
