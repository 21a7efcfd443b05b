"""Tests reading and writing of results, and the pages made from recorded results."""

import json
import lzma
from pathlib import Path
from typing import NamedTuple

import pytest

from studies.bandit_regret import BanditRegret
from studies.bandit_steering import BanditSteering
from studies.encoders.study import Encoders
from studies.mixture_grid import MixtureGrid
from studies.pruning.study import Pruning
from studies.recall import Recall
from studies.results import read_result, read_results, result_file, write_result
from studies.retrieval.study import Retrieval
from studies.runner import choose_runs
from studies.small_mixtures import SmallMixtures
from studies.steering import Steering
from studies.verbs import StudyError

MEASUREMENTS = Path(__file__).resolve().parents[2] / "docs/measurements"
# The bootstraps of these studies take many seconds.
SLOW = pytest.mark.slow
RECORDED = [
    (BanditRegret, "full", "bandit_regret"),
    (SmallMixtures, "small", "small_mixtures"),
    (BanditSteering, "small", "bandit_steering"),
    (MixtureGrid, "small", "mixture_grid"),
    (Steering, "small", "steering"),
    (Encoders, "small", "encoder_study"),
    pytest.param(Encoders, "small_tuned", "encoder_study", marks=SLOW),
    pytest.param(Retrieval, "small", "retrieval", marks=SLOW),
    pytest.param(Retrieval, "worth", "retrieval", marks=SLOW),
    pytest.param(Retrieval, "memory", "retrieval", marks=SLOW),
    pytest.param(Recall, "small", "recall", marks=SLOW),
    pytest.param(Pruning, "small", "pruning_study", marks=SLOW),
]


class Run(NamedTuple):
    scale: str
    model: str

    @property
    def name(self):
        return self.model


RUN = Run("small", "hawk")
FOUND = {
    "seconds": 3.5,
    "empty": {},
    "no items": [],
    "curve": [[1, 0.5], [2, 0.25]],
    "by task": {"copying": {"scores": [1, 0]}, "none": None},
    "decisions": [{"step": 1, "probabilities": {"a": 0.5}}, {"step": 2, "probabilities": {"a": 0.7}}],
}


def test_reading_returns_the_written_result(tmp_path):
    file = result_file(tmp_path, RUN)
    write_result(file, {"study": "some", "run": RUN._asdict()}, FOUND)
    assert read_result(file) == {"study": "some", "run": {"scale": "small", "model": "hawk"}, **FOUND}
    assert read_results(tmp_path, "small", Run) == {RUN: {"study": "some", **FOUND}}
    assert read_results(tmp_path, "large", Run) == {}


def test_numbers_keep_six_digits(tmp_path):
    file = result_file(tmp_path, RUN)
    write_result(file, {"run": RUN._asdict()}, {"losses": [2.123456789, 3], "by task": {"a": 1e-9 / 3}})
    found = read_result(file)
    assert found["losses"] == [2.12346, 3] and found["by task"] == {"a": 3.33333e-10}


@pytest.mark.parametrize("name", ["a/b", "a[]"])
def test_a_separator_in_a_part_name_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match="allowed: one without / and"):
        write_result(tmp_path / "a", {}, {name: {"score": 1}})
    assert not any(tmp_path.iterdir())


def test_damaged_files_are_refused(tmp_path):
    file = result_file(tmp_path, RUN)
    write_result(file, {"run": RUN._asdict()}, FOUND)
    whole = file.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", lzma.compress(b"{}\n{")):
        file.write_bytes(damaged)
        with pytest.raises(StudyError, match="is not a complete file of JSON lines"):
            read_result(file)
    file.write_bytes(lzma.compress(json.dumps({"format_version": 2}).encode()))
    with pytest.raises(StudyError, match="found format_version 2; allowed: 3"):
        read_result(file)


def test_a_pattern_chooses_runs_by_name():
    runs = [RUN, Run("small", "mamba")]
    assert choose_runs(runs, "*") == runs and choose_runs(runs, "m*") == runs[1:]
    with pytest.raises(SystemExit, match=r"--only=x: matches no run; allowed: a pattern of hawk, mamba"):
        choose_runs(runs, "x")
    with pytest.raises(SystemExit, match=r"m7, \.\.\.; --list prints all$"):
        choose_runs([Run("small", f"m{number}") for number in range(9)], "x")


@pytest.mark.parametrize(("study", "scale", "folder"), RECORDED)
def test_pages_have_the_tables_of_the_recorded_results(study, scale, folder, tmp_path):
    recorded = study(study.scales[scale], MEASUREMENTS / folder, tmp_path, "")
    results = recorded.read_results()
    page = (MEASUREMENTS / study.page_of(recorded.scale)).read_text()
    _, begin, rest = page.partition(f"<!-- begin {study.name}.{scale} -->\n")
    part, end, _ = rest.partition(f"<!-- end {study.name}.{scale} -->")
    assert begin and end and results
    assert part.startswith("\n" + "\n\n".join(recorded.tables(results)) + "\n")
    # A page may also show runs of another scale.
    assert {run for run in results if run.scale == scale} <= set(recorded.runs())
    planned = list(recorded.runs())
    missing = len(set(planned) - set(results))
    assert (f"Not run: {missing} of {len(planned)}" in part) == (missing > 0)
