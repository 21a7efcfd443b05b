"""The smallest scale of the retrieval study, from text to its page, stopped in its midst."""

import json
import random
import string
from pathlib import Path

import pytest

from studies.markdown import write_tables
from studies.results import result_file
from studies.retrieval.arms import arms_of
from studies.retrieval.figures import draw_figures
from studies.retrieval.matrix import runs_of
from studies.retrieval.result import read_results, read_squad_scores
from studies.retrieval.scales import SCALES
from studies.retrieval.study import Study, ask_squad, commands_left, run_to_its_result
from studies.retrieval.tables import all_tables
from studies.verbs import StudyError
from tests.forked_verbs import ForkedVerbs
from tests.studies.verbs_that_stop import VerbsThatStop
from tests.whole_runs import run_environment


def write_text(folder: Path) -> Path:
    """Write documents of short sentences with names, of which questions and stories can be made."""
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
    """Return the study after its one run, and the commands that it took; it was stopped on the way."""
    folder = tmp_path_factory.mktemp("study")
    flags = run_environment()["XLA_FLAGS"]
    with ForkedVerbs("tests.without_reports", XLA_FLAGS=flags) as verbs:
        run_verb = VerbsThatStop(verbs, {2, 4})
        study = Study(
            SCALES["smoke"], folder / "results", folder / "workdirs", str(write_text(folder)), run_verb
        )
        run = next(run for run in runs_of(study.scale) if run.procedure == "birdie")
        planned = commands_left(study, run)
        for _ in range(2):
            with pytest.raises(StudyError, match="stopped"):
                run_to_its_result(study, run)
        left = commands_left(study, run)
        assert left == planned[4:], "the plan is not what is left"
        run_to_its_result(study, run)
        yield study, run, planned, run_verb.commands


@pytest.mark.slow
def test_a_stopped_run_repeats_nothing(finished):
    study, run, planned, commands = finished
    assert commands_left(study, run) == []
    assert len(commands) == len(set(commands)) == len(planned) + 2, "the two tests come to the plan"
    file = result_file(study.results, run)
    before = json.loads(file.read_text())
    file.unlink()
    count = len(commands)
    run_to_its_result(study, run)
    after = json.loads(file.read_text())
    del before["circumstances"], after["circumstances"]
    assert after == before
    assert len(commands) == count


@pytest.mark.slow
def test_result_tells_everything(finished):
    study, run, *_ = finished
    result = read_results(study.results, "smoke")[run]
    assert result["pretraining"]["positions"] == study.scale.pretraining_tokens
    decisions = result["pretraining"]["mixture"]
    assert len(decisions) >= study.scale.decisions
    assert all(abs(sum(one["probabilities"].values()) - 1) < 1e-4 for one in decisions)
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
    assert tuned["chosen"]["score"] == pytest.approx(max(scores))
    assert set(result["circumstances"]["seconds"]) == {
        "pretraining",
        "measuring",
        "phonebook_tuning",
        "extraction_tuning",
    }


@pytest.mark.slow
def test_no_question_is_learned_or_asked_twice(finished):
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


@pytest.mark.slow
def test_page_has_tables_figures_and_the_commands_that_are_missing(finished, tmp_path):
    study, run, *_ = finished
    results = read_results(study.results, "smoke")
    figures = draw_figures(results, tmp_path, "page_smoke")
    assert {path.name for path in figures} == {
        f"page_smoke_{name}.png" for name in ("phonebook", "learning_curves", "passages", "mixture")
    }
    planned = list(runs_of(study.scale))
    command = ["python", "-m", "studies.retrieval"]
    text = all_tables(results, planned, command, figures, read_squad_scores(study.results, "smoke"))
    assert next(iter(arms_of(results))).title in text
    exact = results[run]["fine_tuned"]["phonebook"]["test"]["entries_2"]["scores"]["exact_match"]
    by_seed = text.partition("Phone book by seed")[2].partition("###")[0]
    assert f"| {run.seed} | {100 * sum(exact) / len(exact):.0f} |" in by_seed
    assert f"Not run: {len(planned) - 1} of {len(planned)}" in text
    for other in planned:
        assert (f"--only={other.name}" in text) == (other != run)
    page = tmp_path / "page.md"
    page.write_text("head\n<!-- begin smoke -->\nold\n<!-- end smoke -->\ntail\n")
    write_tables(page, "smoke", text)
    write_tables(page, "smoke", text)
    assert page.read_text() == f"head\n<!-- begin smoke -->\n\n{text}\n\n<!-- end smoke -->\ntail\n"
    with pytest.raises(StudyError, match="lacks the lines <!-- begin small -->"):
        write_tables(page, "small", text)


@pytest.mark.slow
def test_squad_is_asked_once_and_told_on_the_page(finished, tmp_path):
    study, run, *_ = finished
    entry = {"id": "q", "question": "What leans?", "answers": [{"text": "The tower", "answer_start": 0}]}
    paragraph = {"context": "The tower leans.", "qas": [entry]}
    questions = tmp_path / "dev.json"
    questions.write_text(json.dumps({"version": "1.1", "data": [{"title": "", "paragraphs": [paragraph]}]}))
    file = ask_squad(study, run, questions)
    before = file.read_bytes()
    questions.unlink()
    assert ask_squad(study, run, questions) == file and file.read_bytes() == before
    squad = read_squad_scores(study.results, "smoke")
    assert list(squad) == [run] and len(squad[run]["scores"]["f1"]) == 1
    text = all_tables(read_results(study.results, "smoke"), [run], ["python"], [], squad)
    told = text.partition("SQuAD, asked once at the end")[2].partition("###")[0]
    assert "| 1 | 1 |" in told
