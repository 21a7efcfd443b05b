"""A sample of fuzz cases has no finding, and the fuzzer detects each kind of finding."""

import json
import random
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from benchmarks.fuzz import KINDS, kind_of, read_results, table
from benchmarks.fuzzing import cases
from benchmarks.fuzzing.cases import Case, Refused, Wrong, run_case
from benchmarks.fuzzing.mutations import mutate_bytes, mutate_json
from birdie_jax.errors import DataError
from tests.forked_runs import REPOSITORY
from tests.whole_runs import run_environment


def test_a_sample_of_cases_has_no_finding(tmp_path):
    command = [sys.executable, "-m", "benchmarks.fuzz", f"--results={tmp_path}", "--seconds=6"]
    done = subprocess.run(
        command, cwd=REPOSITORY, env=run_environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    results = read_results(tmp_path / "results.jsonl")
    assert {outcome.outcome for outcome in results.values()} == {"refused", "correct"}
    *_, last = table(results)
    assert last.startswith(f"| all | {len(results):,} |")


def refuse(message: str) -> str:
    raise DataError(message)


def run_out_of(what: str) -> str:
    held = []
    while True:
        if what == "memory":
            held.append(bytearray(b"x") * (64 << 20))
        elif what == "sleep":
            cases.select.select([], [], [], 3600)


def raise_error(error: Exception) -> str:
    raise error


ENDS = {
    "correct": lambda: "as it should be",
    "refused": partial(refuse, "a.jsonl: line 3: is not JSON"),
    "unnamed": partial(refuse, "is not JSON"),
    "lines": partial(raise_error, Refused("birdie_jax.train: a.jsonl: a\nb")),
    "traceback": partial(raise_error, KeyError("a")),
    "wrong": partial(raise_error, Wrong("another")),
    "memory": partial(run_out_of, "memory"),
    "hang": partial(run_out_of, "sleep"),
    "crash": lambda: str(cases.os.kill(cases.os.getpid(), cases.signal.SIGKILL)),
}


@pytest.mark.filterwarnings("ignore")  # the warning about forking a process with threads
@pytest.mark.parametrize("outcome", ENDS)
def test_every_end_of_a_case_has_its_outcome(monkeypatch, tmp_path, outcome):
    monkeypatch.setattr(cases, "IDLE_SECONDS", 1)
    found = run_case("kind", 7, lambda *_: Case("a file", ("a.jsonl",), ENDS[outcome]), tmp_path)
    assert (found.kind, found.seed, found.outcome, found.what) == ("kind", 7, outcome, "a file")


def test_a_seed_determines_the_case_and_its_kind():
    value = {"a": [1, {"b": None}], "c": "d"}
    for change in (
        lambda draws: mutate_json(draws, value, 3),
        lambda draws: mutate_bytes(draws, b"abc" * 99),
    ):
        made = [[change(random.Random(seed)) for seed in range(50)] for _ in range(2)]
        assert made[0] == made[1] and len(set(made[0])) > 40
    assert {kind_of(seed) for seed in range(100)} == {*KINDS}


def test_the_last_record_of_a_case_counts(tmp_path):
    path = Path(tmp_path, "results.jsonl")
    line = {"kind": "task", "seed": 1, "outcome": "hang", "message": "", "what": "", "seconds": 3.0}
    path.write_text("".join(json.dumps(line | {"outcome": end}) + "\n" for end in ("hang", "refused")))
    assert [outcome.outcome for outcome in read_results(path).values()] == ["refused"]
