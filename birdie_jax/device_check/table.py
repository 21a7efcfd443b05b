"""The results of a device check, as text and as JSON."""

from collections.abc import Mapping, Sequence
from typing import Any

from birdie_jax.device_check.rates import Measured
from birdie_jax.device_check.scans import CheckedScan

_COLUMNS = ("what", "found", "expected", "share", "")


def as_text(
    circumstances: Mapping[str, Any], scans: Sequence[CheckedScan], measured: Sequence[Measured]
) -> str:
    """Return the circumstances, one line per implementation of the scan, and the table of figures."""
    head = [f"{name}: {value}" for name, value in circumstances.items()]
    rows = [_COLUMNS, *map(_row, measured)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join([*head, "", *map(_scan_line, scans), "", *(line.rstrip() for line in lines)])


def _scan_line(scan: CheckedScan) -> str:
    if scan.problem:
        return f"{scan.implementation}: WRONG: {scan.problem}"
    time = "does not fit" if scan.seconds is None else f"{scan.seconds * 1e3:.3g} ms"
    return f"{scan.implementation}: right, {scan.error:.1e} from float32; layers and gradient: {time}"


def _row(one: Measured) -> tuple[str, ...]:
    found = "failed" if one.found is None else f"{_figure(one.found)} {one.unit}"
    expected = "" if one.expected is None else f"{_figure(one.expected)} {one.unit}"
    share = "" if one.share is None else f"{one.share:.0%}"
    return one.what, found, expected, share, f"LOW: {one.advice}" if one.is_low else ""


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def as_json(
    circumstances: Mapping[str, Any], scans: Sequence[CheckedScan], measured: Sequence[Measured]
) -> dict[str, Any]:
    """Return the results as plain values for JSON."""
    return {
        **circumstances,
        "scans": [one._asdict() for one in scans],
        "measured": [one._asdict() | {"share": one.share, "low": one.is_low} for one in measured],
    }
