"""Fine-tuning reports the number of skipped records and the first of them before the first step."""

import json
import runpy
from pathlib import Path

import pytest

from birdie_jax.config import parse_config
from birdie_jax.finetuning.stage_sequence import make_stage_sequence
from birdie_jax.finetuning.stages import read_stages
from tests.tasks.glue_folders import write_glue
from tests.trained_workdirs import small_tokenizer

MICRO = runpy.run_path(str(Path(__file__).with_name("micro_head.py")))["get_config"]
OPTIONS = {"options": ["a", "b", "c", "d"], "gold_label": 1, "question_unique_id": "q", "question": "e"}
STORY = {"entries": ["a", None, "b"], "choices": ["c", "d"], "label": 0}

# For each task that reads records: its settings, a good record, a bad record, and the fault.
JSON_LINES = {
    "contract_nli": (
        {},
        {"id": "a", "input": "b\n\nc", "output": "Entailment"},
        {"id": "b", "input": "b\n\nc", "output": "Neutral"},
        "output: found 'Neutral'; allowed: Contradiction, Entailment, Not mentioned",
    ),
    "quality": (
        {},
        {"article": "a", "questions": [OPTIONS]},
        {"article": "a", "questions": [OPTIONS | {"gold_label": 5}]},
        "questions[0]: gold_label: found 5; allowed: 1 to 4",
    ),
    "labelled_text": (
        {"classes": ("a", "b")},
        {"text": "c", "label": "a"},
        {"text": "c", "label": "z"},
        "label: found 'z'; allowed: a, b",
    ),
    "jsonl": (
        {},
        {"prompt": "a", "reference": "b"},
        {"prompt": " ", "reference": "b"},
        "prompt: found ' '; allowed: text with more than white space",
    ),
    "infilling": (
        {},
        STORY,
        STORY | {"choices": ["c"]},
        "choices: found 1, 1 of them different; allowed: 2 to 26 different ones",
    ),
    "instructions": (
        {},
        {"prompt": "a", "response": "b"},
        {"prompt": "a", "response": " "},
        "response: found ' '; allowed: text with more than white space",
    ),
}


def description(task, **settings):
    """Return the description of a stage of a task that skips bad records."""
    config = MICRO()
    config.model.encoder.positions = 1024
    config.finetune.stages = {
        "a": {"task": task, "skip_bad_records": True, "length": 64, "rows": 2, "epochs": 1.0, **settings}
    }
    parsed = parse_config(config)
    return make_stage_sequence(parsed, read_stages(parsed), small_tokenizer()).describe()


@pytest.mark.parametrize("task", JSON_LINES)
def test_json_lines(task, tmp_path):
    settings, good, bad, fault = JSON_LINES[task]
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in (good, bad, bad)))
    settings = settings | {"path": str(path), "length": 1024}
    said = description(task, **settings)
    assert said.endswith(f"; skipped: 2 records, the first: {path}: line 2: {fault}")
    assert said.startswith("stage a: 1 examples in 1 rows of 1,024")
    path.write_text(json.dumps(good) + "\n")
    assert "skipped" not in description(task, **settings)


def test_tables_of_glue(tmp_path):
    path = write_glue(tmp_path, "sst2", "train", [("abc", "", "1"), ("def", "", "2"), ("ghi", "", "0")])
    said = description("glue", dataset="sst2", path=str(tmp_path))
    assert said.startswith("stage a: 2 examples in ")
    assert said.endswith(
        f"; skipped: 1 records, the first: {path}: line 3: label: found '2'; allowed: 0, 1"
    )


@pytest.mark.parametrize("no_answer", [True, False])
def test_questions_of_squad(no_answer, tmp_path):
    """Bad questions come first, then unanswerable ones if training excludes them."""
    path = tmp_path / "train.json"
    questions = [
        {"id": "a", "question": "b", "answers": [], "is_impossible": True},
        {"id": "b", "question": "b", "answers": [{"text": "k", "answer_start": 0}]},
        {"id": "c", "question": "b", "answers": [{"text": "z", "answer_start": 0}]},
    ]
    document = {"data": [{"paragraphs": [{"context": "k l m", "qas": questions}]}]}
    settings = {"max_positions": 32, "stride": 8, "max_question_tokens": 8, "no_answer": no_answer}

    def describe():
        path.write_text(json.dumps(document))
        return description("squad_spans", path=str(path), **settings)

    said, where = describe(), f"{path}: data[0].paragraphs[0]"
    assert said.startswith(f"stage a: {1 + no_answer} examples in ")
    assert f"; skipped: {2 - no_answer} records, the first: {where}.qas[2]" in said
    del questions[2]
    without = f"; skipped: 1 records, the first: {where}.qas[0]: has no answer; no_answer=True asks"
    assert (without in describe()) == (not no_answer)
