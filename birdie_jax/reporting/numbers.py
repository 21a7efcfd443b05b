"""Numbers as text for the page; a dash where there is none."""

import math

from birdie_jax.objectives.shares import TARGET_TOKENS
from birdie_jax.reporting.run_record import RunRecord


def has_token_shares(run: RunRecord) -> bool:
    """Tell whether mixtures have shares of target tokens; older runs have shares of examples."""
    return run.find_setting("objectives.shares_of") == TARGET_TOKENS


def probability_title(run: RunRecord) -> str:
    """Return the name of a mixture's probabilities."""
    return "Share of target tokens asked for" if has_token_shares(run) else "Sampling probability"


NONE = "–"


def fixed(value: float, digits: int = 3) -> str:
    """Return `value` with `digits` decimals."""
    return f"{value:.{digits}f}".replace("-", "−") if math.isfinite(value) else NONE


def percent(value: float, digits: int = 1) -> str:
    """Return a share in percent; a positive one that would round to 0 is shown as below the last digit."""
    if not math.isfinite(value):
        return NONE
    if 0 < value < 0.5 * 10 ** -(digits + 2):
        return f"<{10**-digits:.{digits}f} %"
    return f"{100 * value:.{digits}f} %"


def count(value: float | int) -> str:
    """Return a number with a unit of magnitude: 1.23 M."""
    if not math.isfinite(value):
        return NONE
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            scaled = value / (1e3 if unit == "k" else size)
            return f"{scaled:.3g} {unit}" if scaled < 1000 else f"{scaled:,.0f} {unit}"
    return f"{value:,.0f}"


def duration(seconds: float) -> str:
    """Return a span of time in its two largest units."""
    if not math.isfinite(seconds):
        return NONE
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h"
