"""Colours of the page: plots name a role, and the style sheet gives it a value for light, dark and paper.

Matplotlib knows fixed colours only. So a plot draws in code colours that stand for a role, and
`resolve_colours` puts the role's CSS variable in their place.
"""

import re

CLASS_COLOURS = 10  # --class-0 .. --class-9 of page_style.html
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
    """Return the code colour of class `index`: shade 0 is near the ink, 50 pure, 100 near the paper."""
    return f"#a1{index % CLASS_COLOURS:02x}{shade:02x}"


def class_dash(index: int) -> int:
    """Return which of `DASHES` class `index` is drawn with: colours repeat after ten classes."""
    return index // CLASS_COLOURS % len(DASHES)


def css_colour(code: str) -> str:
    """Return the CSS value of a code colour."""
    if code in _ROLES:
        return _ROLES[code]
    colour, shade = f"var(--class-{int(code[3:5], 16)})", int(code[5:7], 16)
    if shade == 50:
        return colour
    other, strength = ("--ink", 50 - shade) if shade < 50 else ("--panel", shade - 50)
    return f"color-mix(in oklab, {colour} {100 - strength}%, var({other}))"


def resolve_colours(svg: str) -> str:
    """Replace the code colours in `svg` by their CSS values."""
    return _CODE.sub(lambda match: css_colour(match[0]), svg)
