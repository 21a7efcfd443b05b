"""The report shows the newest evaluation of each name, and tasks measured during training."""

import json
import re

import pytest
from synthetic_workdir import tiny_arms, write_workdir

from birdie_jax.errors import RecordError
from birdie_jax.evaluation_record import EvaluatedModel
from birdie_jax.reporting import write_report
from birdie_jax.reporting.sections.scalars import MACHINE, OTHER_SCALARS, TRAINING
from birdie_jax.reporting.sections.tasks import TASKS
from birdie_jax.storage.workdir import Workdir
from birdie_jax.tasks import Question, ScoredAnswer, TaskResult
from birdie_jax.tasks.summary import summarise
from tests.tasks.toy_tasks import Lengths


def write_evaluation(workdir, step, name, right):
    """Write an evaluation of eighty answers; the numbers in `right` are correct."""
    answers = tuple(
        ScoredAnswer(
            Question(
                name=f"q{number}",
                prompt="a",
                references=("b",),
                groups={"numbers": number % 4, "one": 1},
                categories={"construction": (["short", "long <b>"][number % 2],)} if number else {},
            ),
            "b",
            {"characters": float(number % 4 < right), "right": 0.25},
        )
        for number in range(80)
    )
    model = EvaluatedModel("runs/a", step, "c", "p", "prefix_lm")
    record = summarise(name, Lengths(), model, TaskResult(answers, ("f line 3: <bad>",)), seconds=1.0)
    path = Workdir(workdir).evaluation(step, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record.to_json()))
    return path


@pytest.fixture
def workdir(tmp_path):
    arms = [tiny_arms()[index] for index in (3, 4, 7)]
    return write_workdir(tmp_path / "run", arms, steps=40, log_every=5, decide_every=20)


@pytest.mark.slow
def test_evaluations_are_shown(workdir):
    write_evaluation(workdir, 20, "phonebook", 1)
    write_evaluation(workdir, 40, "phonebook", 3)
    with (workdir / "metrics.jsonl").open("a") as file:
        for step in (30, 40):
            file.write(json.dumps({"step": step, "task/recall/accuracy": step / 100}) + "\n")
    page = write_report(workdir, (TASKS, TRAINING, MACHINE, OTHER_SCALARS)).read_text()
    assert "evaluated at step 40" in page
    assert "evaluated at step 20" not in page
    assert "characters by numbers" in page
    # A group with one value has no curve.
    assert "characters by one" not in page
    assert "0: 1.000 of 20; 1: 1.000 of 20; 2: 1.000 of 20; 3: 0.000 of 20" in page
    assert "while training" in page
    assert "phonebook: 1 skipped, the first: f line 3: &lt;bad&gt;" in page
    assert "0.75" in page
    # A construction has one row, with its score, interval and number of answers.
    assert "phonebook: characters by construction <small>known of 79 of 80 answers, at step 40<" in page
    for name, mean, count in (("long &lt;b&gt;", "0.5", 40), ("short", "1", 39)):
        row = re.search(rf"<td class=\"name\">{name}</td>(.*?)</tr>", page)
        assert row
        cells = re.findall(r'<td class="n">(.*?)</td>', row[1])
        assert (cells[0], cells[2]) == (mean, f"{count}")
        low, high = map(float, cells[1].split(" to "))
        assert low <= float(mean) <= high
        # On an axis from 0 to 1 that is 232 wide.
        assert f'<circle cx="{4 + 232 * float(mean):.1f}"' in row[1]
    # Scalars in this section are not among the other scalars.
    assert page.count("recall") == 1


def test_a_damaged_evaluation_is_named(workdir):
    path = write_evaluation(workdir, 40, "phonebook", 1)
    path.write_text(path.read_text()[:-40])
    with pytest.raises(RecordError, match=r"phonebook.json: found no JSON"):
        write_report(workdir)


@pytest.mark.slow
def test_a_run_without_tasks_has_no_tasks_section(workdir):
    assert 'id="tasks"' not in write_report(workdir, (TASKS,)).read_text()
