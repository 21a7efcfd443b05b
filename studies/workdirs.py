"""What a run has left in its workdir."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any


def is_trained(workdir: Path) -> bool:
    """Tell whether a workdir's training has ended."""
    summary = workdir / "summary.json"
    return summary.exists() and json.loads(summary.read_text())["completed"]


def last_step(workdir: Path) -> int:
    """Return the step that a run ends with."""
    return json.loads((workdir / "config.json").read_text())["train"]["num_steps"]


def read_metric_lines(workdir: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's metrics in the order of their steps.

    A run that was cut off repeats steps: what it said later holds.
    """
    by_step: dict[int, dict[str, Any]] = defaultdict(dict)
    for line in (workdir / "metrics.jsonl").read_text().splitlines():
        try:
            scalars = json.loads(line)
        except ValueError:
            # The last line of a process that was killed.
            continue
        by_step[scalars["step"]].update(scalars)
    return [by_step[step] for step in sorted(by_step)]
