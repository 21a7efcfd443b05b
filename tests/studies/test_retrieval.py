"""Runs the smallest scale of the retrieval study, from text to page, with interruptions."""

import json
import random
import string
from pathlib import Path

import pytest

from studies.results import read_result
from studies.retrieval.conditions import conditions_of
from studies.retrieval.scales import SCALES
from studies.retrieval.study import Retrieval
from studies.verbs import StudyError
from tests.forked_verbs import ForkedVerbs
from tests.studies.verbs_that_stop import VerbsThatStop


def write_text(folder: Path) -> Path:
    """Write documents of short sentences with names, for questions and stories."""
    draw = random.Random(0)
    words = ["".join(draw.choices(string.ascii_lowercase, k=draw.randint(3, 6))) for _ in range(300)]
    path = folder / "corpus.jsonl"
    with path.open("w") as file:
        for _ in range(40):
            sentences = [
                f"The {first} of {name.capitalize()} was near the {second}, by the {third}."
                for first, name, second, third in (draw.sample(words, 4) for _ in range(30))
            ]
            file.write(json.dumps({"text": " ".join(sentences)}) + "\n")
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Yield the study after one interrupted run, the run, and its planned and executed commands."""
    folder = tmp_path_factory.mktemp("study")
    verbs = ForkedVerbs("tests.without_reports")
    run_verb = VerbsThatStop(verbs, {2, 4})
    text = str(write_text(folder))
    study = Retrieval(SCALES["smoke"], folder / "results", folder / "workdirs", text, run_verb=run_verb)
    run = next(run for run in study.runs() if run.procedure == "birdie")
    planned = study.commands_left(run)
    for _ in range(2):
        with pytest.raises(StudyError, match="stopped"):
            study.finish(run)
    left = study.commands_left(run)
    assert left == planned[4:], "the first four commands are done"
    study.finish(run)
    yield study, run, planned, run_verb.commands


def test_a_stopped_run_repeats_nothing(finished):
    study, run, planned, commands = finished
    assert study.commands_left(run) == []
    assert len(commands) == len(set(commands)) == len(planned) + 2, "the plan lacks the two tests"
    file = study.result_file(run)
    before = read_result(file)
    file.unlink()
    count = len(commands)
    study.finish(run)
    after = read_result(file)
    del before["circumstances"], after["circumstances"]
    assert after == before
    assert len(commands) == count


def test_the_result_has_every_measurement(finished):
    study, run, *_ = finished
    result = study.read_results()[run]
    assert result["pretraining"]["positions"] == study.scale.pretraining_tokens
    decisions = result["pretraining"]["mixture"]
    assert len(decisions) >= study.scale.decisions
    assert all(abs(sum(one["probabilities"].values()) - 1) < 1e-4 for one in decisions)
    assert all(
        one["validation_losses"].keys() == decisions[0]["validation_losses"].keys() for one in decisions
    )
    assert all("bandit/predicted_reward" in one for one in decisions[:-1])
    assert all("bandit/earned_reward" in one and one["rewards"] for one in decisions[1:])
    tuned = result["fine_tuned"]["phonebook"]
    plan = study.scale.phonebook_tuning
    assert [one["learning_rate"] for one in tuned["grid"]] == list(plan.learning_rates)
    for one in tuned["grid"]:
        assert [point["step"] for point in one["curve"]] == list(plan.measured_steps)
    scores = [
        sum(point[f"{cell}/digit_accuracy"] - base for cell, base in tuned["commonest_digits"].items())
        / len(tuned["commonest_digits"])
        for one in tuned["grid"]
        for point in one["curve"]
    ]
    # Results keep six significant digits.
    assert tuned["chosen"]["score"] == pytest.approx(max(scores), abs=1e-5)
    assert set(result["circumstances"]["seconds"]) == {
        "pretraining",
        "measuring",
        "phonebook_tuning",
        "extraction_tuning",
    }


def test_splits_share_no_passage(finished):
    study, *_ = finished
    splits = {
        split: {
            json.loads(line)["prompt"].split("\n\n")[0]
            for line in study.corpus.extraction(split).read_text().splitlines()
        }
        for split in ("train", "validation", "test")
    }
    assert splits["train"].isdisjoint(splits["validation"] | splits["test"])
    assert splits["validation"].isdisjoint(splits["test"])
    for split in splits:
        for line in study.corpus.extraction(split).read_text().splitlines():
            record = json.loads(line)
            passage, question = record["prompt"].split("\n\n")
            assert passage.count(record["reference"]) == 1
            sentence = question.removeprefix("Fill in the blank: ")
            assert sentence.replace("____", record["reference"]) in passage


def test_the_page_has_tables_figures_and_missing_runs(finished, tmp_path):
    study, run, *_ = finished
    results = study.read_results()
    page = tmp_path / "page.md"
    page.write_text("head\n<!-- begin retrieval.smoke -->\nold\n<!-- end retrieval.smoke -->\ntail\n")
    study.write_page(page)
    text = page.read_text()
    assert text.startswith("head\n<!-- begin retrieval.smoke -->\n\n### Runs\n")
    assert text.endswith("```\n\n<!-- end retrieval.smoke -->\ntail\n") and "\nold\n" not in text
    study.write_page(page)
    assert page.read_text() == text
    assert {path.name for path in tmp_path.glob("*.png")} == {
        f"page_smoke_{name}.png" for name in ("phonebook", "learning_curves", "passages", "mixture")
    }
    planned = list(study.runs())
    assert next(iter(conditions_of(results))).title in text
    exact = results[run]["fine_tuned"]["phonebook"]["test"]["entries_2"]["scores"]["exact_match"]
    by_seed = text.partition("Run by run")[2].partition("###")[0]
    assert f"| {run.seed} | {100 * sum(exact) / len(exact):.0f} |" in by_seed
    assert f"Not run: {len(planned) - 1} of {len(planned)}" in text
    assert "python -m studies.retrieval --scale=smoke" in text
    other = tmp_path / "new" / "page.md"
    study.write_page(other)
    assert other.read_text() in text
    unmarked = tmp_path / "unmarked.md"
    unmarked.write_text("<!-- begin smoke -->")
    with pytest.raises(StudyError, match=r"lacks the lines <!-- begin retrieval\.smoke -->"):
        study.write_page(unmarked)
    assert not list(tmp_path.glob("unmarked_*.png"))


def test_squad_is_measured_once_and_shown_on_the_page(finished, tmp_path):
    study, run, *_ = finished
    entry = {"id": "q", "question": "What leans?", "answers": [{"text": "The tower", "answer_start": 0}]}
    paragraph = {"context": "The tower leans.", "qas": [entry]}
    questions = tmp_path / "dev.json"
    questions.write_text(json.dumps({"version": "1.1", "data": [{"title": "", "paragraphs": [paragraph]}]}))
    file = study.ask_squad(run, questions)
    before = file.read_bytes()
    questions.unlink()
    assert study.ask_squad(run, questions) == file and file.read_bytes() == before
    results = study.read_results()
    assert len(results[run]["squad"]["scores"]["f1"]) == 1
    (table,) = (part for part in study.tables(results) if "SQuAD, asked once at the end" in part)
    assert "| 1 | 1 |" in table
