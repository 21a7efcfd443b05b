"""A matplotlib figure as SVG that stands inside a page: no outside names, no ids that clash, small."""

import html
import io
import itertools
import re
from collections.abc import Iterator
from contextlib import contextmanager

import matplotlib
from matplotlib.figure import Figure

from birdie_jax.reporting.theme import resolve_colours

TIP = "tip-"  # an artist with the gid tip-3 gets the fourth text of `tips` as its tooltip

_numbers = itertools.count()
_PATH = re.compile(r' d="([^"]*)"')
_NUMBER = re.compile(r"-?\d+\.\d+")
_FONT_FAMILY = re.compile(r"font-family: [^;\"]*;? ?")
_KEPT_ID = re.compile(r'(<(?:path|clipPath|image)\b[^>]*?) id="([^"]*)"')
_GROUP = re.compile(r'<g id="([^"]*)"([^>]*)>')
_REFERENCE = re.compile(r'(xlink:href="|url\()#')
_ROTATE_0 = re.compile(r' transform="rotate\(-0 [^"]*"')


@contextmanager
def drawing() -> Iterator[None]:
    """Draw and save figures within this: matplotlib's own defaults, whatever a user's matplotlibrc says."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(
            {"svg.fonttype": "none", "svg.hashsalt": "birdie_jax", "font.size": 10.5}
        )
        yield


def inline_svg(figure: Figure, label: str, tips: list[str], widest: float | None = None) -> str:
    """Return `figure` as an `<svg>` element for a page.

    Args:
        figure: drawn in the code colours of `theme`.
        label: what a screen reader says of it.
        tips: tooltips of the artists whose gid is `TIP` and their index here.
        widest: pixels beyond which it does not grow with the page.
    """
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    svg = buffer.getvalue()
    view_box = re.search(r'viewBox="([^"]*)"', svg)
    assert view_box is not None  # matplotlib always writes one
    # The figure's own style element would apply to the whole page; the style sheet has its rule.
    body = svg[svg.index("</defs>") + len("</defs>") :]
    # One prefix a figure, because ids are shared by the whole page.
    prefix = f"s{next(_numbers)}"

    def group(match: re.Match[str]) -> str:
        if not match[1].startswith(TIP):
            return f"<g{match[2]}>"
        tip = html.escape(tips[int(match[1].removeprefix(TIP))])
        return f'<g class="tip"{match[2]}><title>{tip}</title>'

    body = _KEPT_ID.sub(rf'\1 id="{prefix}\2"', body)
    body = _REFERENCE.sub(rf"\1#{prefix}", body)
    body = body.replace("xlink:href", "href")
    body = _GROUP.sub(group, body)
    body = _FONT_FAMILY.sub("", body)
    body = _ROTATE_0.sub("", body)
    body = _PATH.sub(lambda match: f' d="{_short_path(match[1])}"', body)
    body = re.sub(r">\s+<", "><", resolve_colours(body))
    size = f' style="max-width:{widest:.0f}px"' if widest else ""
    return f'<svg viewBox="{view_box[1]}"{size} role="img" aria-label="{html.escape(label)}">{body.strip()}'


def _short_path(path: str) -> str:
    rounded = _NUMBER.sub(lambda match: f"{float(match[0]):.1f}".removesuffix(".0"), path)
    return " ".join(rounded.split()).replace(" L ", "L").replace(" M ", "M")
