"""A mean with its interval, on an axis that the rows of a table share."""

import math

from markupsafe import Markup

from birdie_jax.evaluation_record import Interval

_WIDTH, _HEIGHT, _MARGIN = 240, 16, 4.0


def interval_mark(interval: Interval, low: float, high: float) -> Markup:
    """Return the SVG of an interval with a dot at its mean; empty where one of the three is not finite.

    Args:
        interval: the mean and its interval.
        low: the value at the left end of the axis.
        high: the value at the right end of the axis.
    """
    values = (interval.low, interval.mean, interval.high)
    if not all(map(math.isfinite, values)):
        return Markup("")
    span = high - low or 1.0
    left, middle, right = (_MARGIN + (value - low) / span * (_WIDTH - 2 * _MARGIN) for value in values)
    return Markup(
        '<svg class="interval" viewBox="0 0 {} {}" aria-hidden="true"><path d="M{:.1f} {}H{:.1f}"/>'
        '<circle cx="{:.1f}" cy="{}" r="3"/></svg>'
    ).format(_WIDTH, _HEIGHT, left, _HEIGHT // 2, right, middle, _HEIGHT // 2)
