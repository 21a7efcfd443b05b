"""The style of study figures: the colours of the report, with a new marker where colours repeat."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import matplotlib
import numpy as np
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba

from birdie_jax.reporting.palette import LIGHT
from birdie_jax.reporting.plots import spread

MARKERS = "osD^vPX"
_LABEL_POINTS = 9.0


@contextmanager
def figure_style() -> Iterator[None]:
    """Draw and save figures in one style within this context; ignore the user's matplotlibrc."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(
            {
                "axes.prop_cycle": cycler(color=LIGHT),
                "axes.spines.top": False,
                "axes.spines.right": False,
                "axes.edgecolor": "#b9bcc2",
                "text.color": "#1d2430",
                "axes.labelcolor": "#1d2430",
                "xtick.color": "#5c6573",
                "ytick.color": "#5c6573",
                "legend.frameon": False,
            }
        )
        yield


def series_colour(number: int) -> str:
    """Return the colour of a series. Colours repeat; `series_marker` distinguishes the repetitions."""
    return LIGHT[number % len(LIGHT)]


def series_area(number: int) -> tuple[float, float, float, float]:
    """Return the colour of an area as RGBA; each repetition of the colours is paler."""
    return to_rgba(series_colour(number), 0.5 ** (number // len(LIGHT)))


def series_marker(number: int) -> str:
    """Return the marker of a series."""
    return MARKERS[number // len(LIGHT) % len(MARKERS)]


def label_ends(axes: Axes, labels: Sequence[tuple[str, float, str]]) -> None:
    """Write names to the right of the axes, beside the ends of their lines.

    Call it after all drawing and before the layout.

    Args:
        axes: the axes; their y limits stay.
        labels: the name, the y of the end and the colour of each line.
    """
    figure = axes.figure
    height = axes.get_position().height * figure.get_figheight() * 72
    to_axes = axes.transData + axes.transAxes.inverted()
    known = [label for label in labels if np.isfinite(label[1])]
    wanted = [float(to_axes.transform((0.0, end))[1]) * height for _, end, _ in known]
    order = np.argsort(wanted)
    places = spread([wanted[index] for index in order], _LABEL_POINTS, height)
    for index, place in zip(order, places, strict=True):
        name, _, colour = known[index]
        axes.annotate(
            name,
            (1.0, place / height),
            xycoords="axes fraction",
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize="x-small",
            color=colour,
        )
