"""Tests the study of when direction matters, with verbs that write fixed measurements."""

import dataclasses
import json

import numpy as np
import pytest

from birdie_jax.comparison.seed_interval import seed_interval
from studies.pages import MEASUREMENTS
from studies.retrieval.config import get_config
from studies.retrieval.scales import SCALES
from studies.retrieval.study import Retrieval
from studies.verbs import StudyError
from tests.studies.written_verbs import WrittenVerbs

TEXT = "corpus.jsonl"
NEVER = (None, None, None)
# Fine-tuning 0 has the question after the book, 1 before it, 2 on both sides.
EXACT = {
    ("state_64.mixture_fixed_causal", 0): 0.2,
    ("state_64.mixture_fixed_causal", 1): 0.5,
    ("state_128.mixture_fixed", 0): 0.5,
    ("state_128.mixture_fixed", 1): 0.52,
}


def exact(workdir, task):
    """Return the share of exact answers of a run, higher by 0.02 on 8 entries; B128 rises with the seed."""
    arm, _, seed = workdir.parent.name.rpartition(".")
    number = int(workdir.name.split("_")[1]) if "_" in workdir.name else None
    rise = 0.1 if (arm, number) == ("state_128.mixture_fixed", 0) else 0.0
    return EXACT.get((arm, number), 0.4) + 0.02 * (task == "entries_8") + rise * (int(seed) - 20)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Return the study with the results of two seeds of the four arms."""
    folder = tmp_path_factory.mktemp("direction")
    scale = SCALES["direction"]
    scale = dataclasses.replace(scale, order=((scale.order[0][0], (20, 21)),))
    verbs = WrittenVerbs(scale, {procedure: NEVER for procedure in scale.order[0][0]}, exact)
    study = Retrieval(scale, folder / "results", folder / "workdirs", TEXT, run_verb=verbs)
    study.corpus.folder.mkdir(parents=True)
    study.corpus.record.write_text(json.dumps({"text": TEXT}))
    for run in study.runs():
        # Text is there: pre-training, its measurement, and the first stages of three fine-tunings.
        assert len(study.commands_left(run)) == 1 + 1 + 3
        study.finish(run)
    return study


def test_each_fine_tuning_has_its_place_of_the_question():
    for number, place in enumerate(("after", "before", "both")):
        for stage in (0, 1):
            config = get_config(f"direction,state_64,mixture_fixed,20,phonebook,0.002,{number},{stage}")
            (learned,), (measured,) = config.finetune.stages.values(), config.eval.tasks.values()
            assert learned["question"] == measured["question"] == place
            assert learned["max_entries"] == (3, 16)[stage]
            assert measured["max_entries"] == (2, 16)[stage]


def test_a_stage_that_is_not_learned_ends_after_its_steps(study):
    for result in study.read_results().values():
        for one in result["fine_tuned"]["phonebook"]["repeats"]:
            assert one["steps"] == 4000
            assert [point["stage"] for point in one["curve"]] == [0] * 10 + [1] * 30


def test_the_page_has_the_answers_by_place_and_the_interaction(study, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- begin retrieval.direction -->\n<!-- end retrieval.direction -->\n")
    study.write_page(page)
    text = page.read_text()
    assert (tmp_path / "page_direction_places.png").exists()
    assert "| B128 | 21 | 61 | 53 | 41 | 60 | 62 | 60 | 52 | 54 | 52 | 40 | 42 | 40 |" in text
    after = seed_interval(np.array([30.0, 40.0]))
    interaction = seed_interval(np.array([28.0, 38.0]))
    row = f"| B128 less C64 | 2 | +35 ({after.low:+.0f} .. {after.high:+.0f}) | +2 (+2 .. +2) |"
    assert f"{row} +0 (+0 .. +0) | +33 ({interaction.low:+.0f} .. {interaction.high:+.0f}) |" in text


def test_squad_is_refused_for_runs_that_were_not_fine_tuned_on_passages(tmp_path):
    recorded = Retrieval(SCALES["direction"], MEASUREMENTS / "retrieval", tmp_path, "")
    run = next(iter(recorded.read_results()))
    with pytest.raises(StudyError, match="was fine-tuned on phonebook; allowed: a scale that"):
        recorded.ask_squad(run, tmp_path / "dev.json")
