"""Tests the progress line before each run and the table of runs."""

import datetime
import io
import json
import math
import time

from rich.console import Console

from studies import verbs
from studies.progress import ListedRun, Progress, expected_seconds, runs_table, seconds_of
from studies.verbs import Clock

NOON = datetime.datetime(2026, 1, 1, 12)


def test_the_estimated_end_uses_the_mean_duration():
    progress = Progress(5, [3600.0, 7200.0], lambda: NOON)
    assert progress.line("a.0", "causal LM") == (
        "a.0 runs (causal LM): 2 of 5 done, 3 left, 1 h 30 min each; all by 2026-01-01 16:30"
    )
    progress.finished(1800.0)
    assert progress.line("a.1", "").endswith(
        "3 of 5 done, 2 left, 1 h 10 min each; all by 2026-01-01 14:20"
    )


def test_the_line_has_no_estimate_without_durations():
    progress = Progress(2, [seconds_of({})], lambda: NOON)
    assert progress.line("a.1", "") == "a.1 runs: 1 of 2 done, 1 left"
    assert seconds_of({"circumstances": {"seconds": {"pretraining": 2.0, "measuring": 3.0}}}) == 5.0
    assert math.isnan(seconds_of({"circumstances": {}}))


def test_the_table_shows_finished_and_unfinished_runs():
    runs = [
        ListedRun("a.0", "causal LM", 90.0, 0),
        ListedRun("b.0", "mixture", 30.0, 0),
        ListedRun("a.1", "causal LM", None, 1),
        ListedRun("c.0", "", None, 2),
    ]
    text = io.StringIO()
    Console(file=text, width=100).print(runs_table(runs, expected_seconds(runs)))
    assert [line.split() for line in text.getvalue().splitlines()] == [
        ["run", "state", "time", "what"],
        ["a.0", "finished", "1", "min", "30", "s", "causal", "LM"],
        ["b.0", "finished", "30.0", "s", "mixture"],
        ["a.1", "1", "command", "left", "about", "1", "min", "30", "s", "causal", "LM"],
        ["c.0", "2", "commands", "left", "about", "1", "min", "0", "s"],
    ]


def test_a_clock_keeps_the_seconds_of_a_killed_process(tmp_path, monkeypatch):
    monkeypatch.setattr(verbs, "_CLOCK_SECONDS", 0.01)
    file = tmp_path / "seconds.json"
    with Clock(file).stage("training"):
        while not file.exists():
            time.sleep(0.01)
        first = json.loads(file.read_text())["training"]
    # The next process continues from the file.
    second = Clock(file)
    with second.stage("training"):
        pass
    assert second.seconds["training"] > first > 0
