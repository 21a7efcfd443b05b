"""Comparisons of runs: the sides, the differences with their intervals, and the page."""

import json

import numpy as np
import pytest
import scipy.stats

from birdie_jax.comparison import write_comparison
from birdie_jax.comparison.scores import end_rows, evaluation_rows
from birdie_jax.comparison.sides import different_settings, read_sides
from birdie_jax.errors import ConfigError, RecordError
from birdie_jax.evaluation_record import EvaluatedModel
from birdie_jax.storage.workdir import Workdir
from birdie_jax.tasks import Question, ScoredAnswer, TaskResult
from birdie_jax.tasks.evaluation import answers_to_jsonl
from birdie_jax.tasks.registry import make_task
from birdie_jax.tasks.summary import paired_differences, summarise
from tests.reporting.synthetic_workdir import tiny_arms, write_workdir

_LOSSES = {"mixture": (2.0, 2.3, 2.1), "causal": (2.5, 2.9, 2.4)}


def write_run(folder, seed, loss, mixture="tiny"):
    """Write a run without arms; `loss` is its last loss."""
    folder.mkdir(parents=True)
    config = {"seed": seed, "objectives": {"mixture": mixture}, "train": {"num_steps": 40}}
    (folder / "config.json").write_text(json.dumps(config))
    steps = range(2, 41, 2)
    lines = [{"step": step, "loss": loss, "tokens_seen": 100.0 * step} for step in steps]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def folder(tmp_path):
    for name, losses in _LOSSES.items():
        for seed, loss in enumerate(losses):
            write_run(tmp_path / name / f"run_{'cab'[seed]}", seed, loss, name)
    return tmp_path


def difference(folder, *sides):
    """Return the difference of train losses: mean, ends of the interval, and remark."""
    (row,) = [row for row in end_rows(read_sides([folder / side for side in sides])) if "loss" in row.name]
    (cell,) = row.differences
    ends, _, remark = cell.remark.partition("; ")
    values = [float(text.replace("−", "-")) for text in (cell.text, *ends.split(" to "))]
    return values, remark


def test_equal_seeds_are_paired(folder):
    values, remark = difference(folder, "mixture", "causal")
    wanted = np.subtract(_LOSSES["causal"], _LOSSES["mixture"])
    interval = scipy.stats.ttest_1samp(wanted, 0).confidence_interval()
    assert values == pytest.approx([wanted.mean(), interval.low, interval.high], rel=5e-3)
    assert remark == "3 pairs of seeds"


def test_different_seeds_are_not_paired(folder):
    write_run(folder / "more/run", 7, 2.2)
    write_run(folder / "more/run_2", 8, 2.6)
    values, remark = difference(folder, "mixture", "more")
    interval = scipy.stats.ttest_ind((2.2, 2.6), _LOSSES["mixture"], equal_var=False).confidence_interval()
    assert values == pytest.approx(
        [2.4 - np.mean(_LOSSES["mixture"]), interval.low, interval.high], rel=6e-3
    )
    assert remark == "3 and 2 runs, seeds not paired"


def test_one_run_has_no_interval_over_seeds(folder):
    sides = read_sides([folder / "mixture/run_a", folder / "causal"])
    (row,) = [row for row in end_rows(sides) if "loss" in row.name]
    assert [cell.text for cell in row.cells] == ["2.3", "2.6"]
    assert row.cells[1].remark == "sd 0.2646, 2.4 to 2.9"
    assert row.differences[0].remark == "no interval: one run"


def test_different_settings_are_listed(folder):
    first, second = different_settings(read_sides([folder / "mixture", folder / "causal"]))
    assert (first.name, first.values) == ("objectives.mixture", ("mixture", "causal"))
    assert (second.name, second.values) == ("seed", ("1, 2, 0", "1, 2, 0"))


def write_evaluation(workdir, task, right, *, answers=True, metrics=("exact_match", "f1")):
    scored = tuple(
        ScoredAnswer(
            Question(f"q{number}", f"p{number}", ("b",), groups={"prompt_tokens": number}),
            "b" if number in right else "c",
            {name: float(number in right) for name in metrics},
        )
        for number in range(30)
    )
    model = EvaluatedModel(str(workdir), 40, "c", "p", "prefix_lm")
    record = summarise("asked", task, model, TaskResult(scored, ()), seconds=1.0)
    files = Workdir(workdir)
    path = files.evaluation(40, "asked")
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(record.to_json()))
    if answers:
        files.evaluation_answers(40, "asked").write_bytes(answers_to_jsonl(scored))
    return scored


def test_answers_are_paired_by_question(folder):
    task = make_task("jsonl", {"path": "q.jsonl"}, "task")
    paths = [folder / "mixture/run_a", folder / "causal/run_a"]
    evaluated = [
        write_evaluation(path, task, right)
        for path, right in zip(paths, ({1, 2}, set(range(9))), strict=True)
    ]
    wanted, _ = paired_differences(task, *evaluated)
    row = next(row for row in evaluation_rows(read_sides(paths)) if row.name == "asked: exact match")
    found = wanted["exact_match"]
    assert row.differences[0].text == f"{found.mean:+.3g}"
    assert row.differences[0].remark == f"{found.low:+.3g} to {found.high:+.3g}; 30 pairs of answers"


def test_comparison_imports_the_imports_of_a_run(folder):
    config = folder / "causal/run_a/config.json"
    named = {"imports": ["no_such_module_here"]}
    config.write_text(json.dumps(json.loads(config.read_text()) | named))
    with pytest.raises(ConfigError, match=r"run_a/config\.json: imports\[0\].*no_such_module_here"):
        read_sides([folder / "mixture", folder / "causal"])


def test_evaluations_with_other_settings_have_no_difference(folder):
    paths = [folder / "mixture/run_a", folder / "causal/run_a"]
    for path, name in zip(paths, "ab", strict=True):
        write_evaluation(path, make_task("jsonl", {"path": f"{name}.jsonl"}, "task"), {1})
    (row, *_) = evaluation_rows(read_sides(paths))
    assert row.differences[0].remark == "other settings of the task"


def test_evaluations_with_other_metrics_have_no_difference(folder):
    """An earlier version of a task had fewer metrics."""
    paths = [folder / "mixture/run_a", folder / "causal/run_a"]
    task = make_task("jsonl", {"path": "q.jsonl"}, "task")
    write_evaluation(paths[0], task, {1})
    write_evaluation(paths[1], task, {1, 2}, metrics=("exact_match",))
    (row, *_) = evaluation_rows(read_sides(paths))
    assert row.differences[0].remark == "other metrics of the task"


def test_evaluations_without_scores_have_no_rows(folder):
    """Such as predictions for a leaderboard."""
    paths = [folder / "mixture/run_a", folder / "causal/run_a"]
    task = make_task("glue", {"dataset": "cola", "path": "cola", "split": "test"}, "task")
    for path in paths:
        write_evaluation(path, task, {1}, metrics=())
    assert evaluation_rows(read_sides(paths)) == []


def test_an_evaluation_with_scores_on_one_side_has_no_difference(folder):
    """All questions were too long for the first model."""
    paths = [folder / "mixture/run_a", folder / "causal/run_a"]
    task = make_task("jsonl", {"path": "q.jsonl"}, "task")
    write_evaluation(paths[0], task, {1}, metrics=())
    write_evaluation(paths[1], task, set(range(15)))
    row = next(row for row in evaluation_rows(read_sides(paths)) if row.name == "asked: exact match")
    assert [row.cells[0].text, row.cells[1].text, row.differences[0].text] == ["–", "0.5", "–"]


def test_damaged_answers_are_named(folder):
    task = make_task("jsonl", {"path": "q.jsonl"}, "task")
    paths = [folder / "mixture/run_a", folder / "causal/run_a"]
    for path in paths:
        write_evaluation(path, task, {1}, answers=False)
    answers = Workdir(paths[0]).evaluation_answers(40, "asked")
    with pytest.raises(RecordError, match=r"asked\.jsonl: cannot be read"):
        evaluation_rows(read_sides(paths))
    answers.write_text('{"name": 3}\n')
    with pytest.raises(RecordError, match=r"asked\.jsonl: line 1: found no answer"):
        evaluation_rows(read_sides(paths))


def test_folders_without_runs_are_refused(folder):
    (folder / "empty").mkdir()
    for names, said in (
        (("mixture", "nowhere"), "nowhere: found no run"),
        (("mixture", "empty"), "empty: found no run; allowed: the --workdir"),
        (("mixture", "mixture"), "found .*mixture twice"),
        (("mixture/run_a",), "found one run; allowed: two or more"),
    ):
        with pytest.raises(ConfigError, match=said):
            read_sides([folder / name for name in names])


def test_sides_have_the_shortest_distinct_names(folder):
    sides = read_sides([folder / "mixture/run_a", folder / "causal/run_a"])
    assert [side.name for side in sides] == ["mixture/run_a", "causal/run_a"]
    assert [side.name for side in read_sides([folder / "mixture", folder / "causal"])] == [
        "mixture",
        "causal",
    ]


@pytest.mark.slow
def test_the_page(tmp_path):
    arms = [tiny_arms()[index] for index in (3, 7)]
    for name in ("one", "<b>"):
        write_workdir(tmp_path / name, arms, steps=40, log_every=5, decide_every=20)
    path = write_comparison([tmp_path / "one", tmp_path / "<b>"], tmp_path / "page.html")
    page = path.read_text()
    assert "<h1>one, &lt;b&gt;</h1>" in page
    assert "<b></h1>" not in page and "http" not in page.replace("http-equiv", "")
    for title in ("Train loss", "Validation loss, copying", "Validation loss, causal lm", "Throughput"):
        assert f"<strong>{title}</strong>" in page
    assert "All runs have the same configuration." in page
    # Each line ends with the name of its side.
    assert page.count(">one</text>") == page.count(">&lt;b&gt;</text>") > 3
