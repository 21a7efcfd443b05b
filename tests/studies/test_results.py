"""Tests reading and writing of results, and the pages made from recorded results."""

import dataclasses
import importlib
import json
import lzma
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from studies import pages
from studies.pages import RECORDED, difference, in_repository, recorded
from studies.results import read_result, read_results, result_file, write_result
from studies.retrieval.study import Retrieval
from studies.runner import choose_runs
from studies.small_mixtures import SmallMixtures
from studies.verbs import StudyError
from studies.workdirs import measured

MEASUREMENTS = Path(__file__).resolve().parents[2] / "docs/measurements"


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
def test_pages_have_the_tables_of_the_recorded_results(study, scale, folder):
    with in_repository():
        chosen = recorded(study, scale, folder)
        results = chosen.read_results()
        assert difference(chosen, results) == ""
        # A page may also show runs of another scale.
        found = {run for run in results if run.scale == scale}
        assert found and found <= set(chosen.runs())


def test_a_page_that_differs_is_named_with_its_line(tmp_path, monkeypatch):
    """Change a digit of a table, take its marks away, and leave out a result."""
    with in_repository():
        chosen = recorded(*next(one for one in RECORDED if one[0] is SmallMixtures))
        page = (pages.MEASUREMENTS / chosen.page_of(chosen.scale)).read_text()
    monkeypatch.setattr(pages, "MEASUREMENTS", tmp_path)
    copy = tmp_path / chosen.page_of(chosen.scale)
    chosen = dataclasses.replace(chosen, results=MEASUREMENTS / "small_mixtures")
    results = chosen.read_results()
    cell = chosen.tables(results)[0].splitlines()[2]
    copy.write_text(page)
    assert difference(chosen, results) == ""
    copy.write_text(page.replace(cell, cell + " 1"))
    found = difference(chosen, results)
    assert "small, line" in found and f"recorded: {cell!r}" in found
    before, rest = page.split(f"{cell}\n", 1)
    end = "<!-- end small_mixtures.small -->"
    copy.write_text(before + end + rest.partition(end)[2])
    assert f"found None; recorded: {cell!r}" in difference(chosen, results)
    last = chosen.tables(results)[0].splitlines()[-1]
    copy.write_text(page.replace(last, f"{last}\n{last}"))
    assert difference(chosen, results).endswith("allowed: a figure, or the missing runs")
    copy.write_text(page.replace("<!-- end", "<!-- the end"))
    assert difference(chosen, results).endswith("small: lacks its marks")
    assert "no recorded results" in difference(chosen, {})


@pytest.mark.parametrize("study", dict.fromkeys(study for study, *_ in RECORDED))
def test_the_docstring_of_a_command_names_scales_of_the_study(study):
    module = importlib.import_module(f"studies.{study.name}")
    if hasattr(module, "__path__"):
        module = importlib.import_module(f"studies.{study.name}.__main__")
    named = re.findall(r"--scale=(\w+)", module.__doc__)
    assert named and set(named) <= set(study.scales)


class NoTables(Retrieval):
    def tables(self, results):
        return []


def test_missing_runs_are_run_on_the_text_of_the_others(tmp_path):
    """The command has no --text only if the results are of the text that a scale has without it."""
    study = NoTables(NoTables.scales["smoke"], tmp_path, tmp_path, "stdlib")
    run, *_ = study.runs()
    for recorded_text, flag in (("stdlib", ""), ("/data/corpus.jsonl", " --text=corpus.jsonl")):
        text = study.page_text({run: {"text": {"text": recorded_text}}}, [])
        assert f"python -m studies.retrieval --scale=smoke{flag} --results={tmp_path}\n" in text


def test_answers_may_have_separators_of_lines(tmp_path):
    folder = tmp_path / "evaluations/00000007"
    folder.mkdir(parents=True)
    answer = {
        "prompt": "a\u2028b",
        "references": ["c\x85"],
        "weight": 1.0,
        "groups": {},
        "metrics": {"f1": 1},
    }
    (folder / "copying.jsonl").write_text(2 * (json.dumps(answer, ensure_ascii=False) + "\n"))
    record = {"task": "copying", "settings": {}, "main_metric": "f1", "refused": []}
    (folder / "copying.json").write_text(json.dumps(record))
    found = measured(tmp_path, 7, ["copying"])
    assert found is not None and found["copying"]["scores"] == {"f1": [1, 1]}
