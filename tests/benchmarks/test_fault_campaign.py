"""A sample of the fault campaign finds no fault, and the campaign finds three injected bugs."""

import json
import subprocess
import sys

from benchmarks.fault_kinds.bugs import BUGS
from benchmarks.faults import table
from tests.whole_runs import REPOSITORY

SAMPLE = ("kill-saving", "kill-preparing", "file-preparing", "flip", "flip-text")


def run_campaign(*arguments):
    command = [sys.executable, "-m", "benchmarks.faults", *arguments]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)


def test_a_sample_finds_no_fault_and_resumes(tmp_path):
    results = tmp_path / "faults.jsonl"
    arguments = f"--results={results}", f"--kind={','.join(SAMPLE)}"
    done = run_campaign(*arguments, "--cases=1")
    assert done.returncode == 0, done.stdout + done.stderr
    cases = [json.loads(line) for line in results.read_text().splitlines()]
    assert [case["kind"] for case in cases] == list(SAMPLE)
    again = run_campaign(*arguments, "--cases=1")
    assert (again.returncode, again.stdout) == (0, ""), again.stderr
    shown = table(cases)
    assert len(shown.splitlines()) == 2 + len(SAMPLE)
    assert "| SIGKILL while saving | 1 |" in shown


def test_the_campaign_finds_three_bugs():
    done = run_campaign("--bugs")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split("'")[1] for line in done.stdout.splitlines()] == list(BUGS)
    assert done.stdout.count("is found by") == len(BUGS) == 3
