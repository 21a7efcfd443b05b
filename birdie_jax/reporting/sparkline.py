"""A curve the size of a word, for a table."""

import numpy as np
from jaxtyping import Float, Int
from markupsafe import Markup

_WIDTH, _HEIGHT, _MARGIN = 84, 18, 2.0


def sparkline(
    steps: Int[np.ndarray, " points"],
    values: Float[np.ndarray, " points"],
    last_step: int,
    colour: str,
    stairs: bool = False,
) -> Markup:
    """Return the SVG of `values` between their own smallest and largest; empty without a finite value.

    Args:
        steps: the x values, from 0 to `last_step`.
        values: the y values; a probability (`stairs`) is drawn from 0.
        last_step: the right end of x.
        colour: the CSS colour.
        stairs: whether a value holds until the next point.
    """
    finite = np.isfinite(values)
    steps, values = steps[finite], values[finite]
    if not len(values):
        return Markup("")
    low = 0.0 if stairs else float(values.min())
    span = float(values.max()) - low
    height = (values - low) / span if span > 0 else np.full(len(values), 0.5)
    x = _MARGIN + steps / max(1, last_step) * (_WIDTH - 2 * _MARGIN)
    y = _HEIGHT - _MARGIN - height * (_HEIGHT - 2 * _MARGIN)
    path = [f"M{x[0]:.1f} {y[0]:.1f}"]
    for i in range(1, len(x)):
        path.append(f"H{x[i]:.1f}V{y[i]:.1f}" if stairs else f"L{x[i]:.1f} {y[i]:.1f}")
    return Markup(
        '<svg class="spark" viewBox="0 0 {} {}" aria-hidden="true"><path d="{}" style="stroke:{}"/>'
        '<circle cx="{:.1f}" cy="{:.1f}" r="1.8" style="fill:{}"/></svg>'
    ).format(_WIDTH, _HEIGHT, "".join(path), colour, x[-1], y[-1], colour)
