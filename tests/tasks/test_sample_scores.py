"""Every task refuses scores that have no order, and names the sample or the question."""

import json
import re
import runpy
from pathlib import Path

import jax
import numpy as np
import pytest

from birdie_jax.config import parse_config
from birdie_jax.errors import ScoreError
from birdie_jax.finetuning.stages import read_stages
from birdie_jax.finetuning.task_heads import with_task_head
from birdie_jax.generation.likelihood import Likelihood, Scorer
from birdie_jax.tasks.contract_nli import ContractNLI
from birdie_jax.tasks.glue import Glue
from birdie_jax.tasks.labelled_text import LabelledText
from birdie_jax.tasks.quality import Quality
from birdie_jax.tasks.squad_spans import SquadSpans
from birdie_jax.tasks.task_model import TaskModel
from tests import trained_workdirs
from tests.forked_verbs import run_commands
from tests.tasks.glue_folders import write_glue, write_unlabelled
from tests.tasks.json_lines import write_lines
from tests.tasks.tiny_task_model import tiny_task_model
from tests.tasks.toy_tasks import Picks

MICRO = runpy.run_path(str(Path(__file__).parents[1] / "finetuning" / "micro_head.py"))["get_config"]


def of_classes(folder):
    path = write_glue(folder, "rte", "dev", [("abc", "def", "entailment")] * 2)
    return Glue(dataset="rte", path=str(folder)), f"{path}: line 3"


def of_numbers(folder):
    path = write_glue(folder, "stsb", "dev", [("abc", "def", "1.000"), ("ghi", "jkl", "2.000")])
    return Glue(dataset="stsb", path=str(folder)), f"{path}: line 3"


def of_predictions(folder):
    path = write_unlabelled(folder, "rte")
    return Glue(dataset="rte", path=str(folder), split="test"), f"{path}: line 4"


def of_own_texts(folder):
    path = write_lines(folder / "a.jsonl", *[{"text": "abc", "label": "mail"}] * 2)
    return LabelledText(path=path, classes=("mail", "spam")), f"{path}: line 2"


def of_contracts(folder):
    path = write_lines(
        folder / "a.jsonl", *({"id": name, "input": "abc\n\ndef", "output": "Entailment"} for name in "ab")
    )
    return ContractNLI(path=path), f"{path}: line 2"


def of_options(folder):
    questions = [
        {"question_unique_id": name, "question": "abc?", "options": list("abcd"), "gold_label": 1}
        for name in "pq"
    ]
    path = write_lines(folder / "a.jsonl", {"article": "def ghi", "questions": questions})
    return Quality(path=path), f"{path}: line 1: questions[1]"


def of_spans(folder):
    answers = [{"text": "def", "answer_start": 4}]
    questions = [{"id": name, "question": "abc?", "answers": answers} for name in "pq"]
    path = folder / "dev.json"
    data = [{"title": "x", "paragraphs": [{"context": "abc def ghi", "qas": questions}]}]
    path.write_text(json.dumps({"version": "1.1", "data": data}))
    return SquadSpans(path=str(path)), f"{path}: data[0].paragraphs[0].qas[1]"


@pytest.mark.parametrize(
    "make",
    [of_classes, of_numbers, of_predictions, of_own_texts, of_contracts, of_options, of_spans],
    ids=lambda make: make.__name__,
)
def test_a_score_that_is_not_finite_names_the_sample(tmp_path, monkeypatch, make):
    task, where = make(tmp_path)
    head = task.head
    outputs = {"classification": head.outputs, "spans": 2}.get(head.kind, 1)

    def head_scores(model, examples, progress):
        del model, progress
        found = [
            np.zeros((len(example.context) if head.kind == "spans" else 1, outputs), np.float32)
            for example in examples
        ]
        found[-1][-1, -1] = wrong
        return found

    monkeypatch.setattr(TaskModel, "head_scores", head_scores)
    for wrong in (np.nan, np.inf, -np.inf):
        message = f"{where}: found {wrong} among the head's scores; allowed: finite numbers"
        with pytest.raises(ScoreError, match=f"^{re.escape(message)}$"):
            task.measure(tiny_task_model())


@pytest.mark.parametrize("wrong", [(-2.0, np.nan, -1.0), (-np.inf, -np.inf, -np.inf)], ids=str)
def test_choices_without_a_most_likely_one_name_the_question(monkeypatch, wrong):
    def score(scorer, prompts, continuations):
        del scorer, continuations
        found = {"question p3": wrong}
        scored = [found.get(prompt.name, (-2.0, -np.inf, -1.0)) for prompt in prompts]
        return [[Likelihood(one, 1, False) for one in of_prompt] for of_prompt in scored]

    monkeypatch.setattr(Scorer, "score", score)
    found = ", ".join(map(str, wrong))
    message = f"^question p3: found the log-likelihoods {found}; allowed: numbers, at least one of them"
    with pytest.raises(ScoreError, match=message):
        Picks().measure(tiny_task_model())
    wrong = (-3.0, -1.0, -2.0)
    assert len(Picks().measure(tiny_task_model()).answers) == 5


@pytest.mark.slow
def test_evaluate_reports_the_error_in_one_line(tmp_path, monkeypatch):
    """The parameters are finite, so the checkpoint is valid."""
    finite = trained_workdirs.random_params

    def too_large(config, vocab_size, seed):
        params = finite(config, vocab_size, seed)
        params["task_head"]["rte"] = jax.tree.map(
            lambda leaf: np.full_like(leaf, 3e38), params["task_head"]["rte"]
        )
        params["task_head"]["pooler"]["bias"][:] = 100.0
        return params

    monkeypatch.setattr(trained_workdirs, "random_params", too_large)
    path = write_glue(tmp_path / "data", "rte", "dev", [("abc", "def", "entailment")])
    config = MICRO("rte")
    config.finetune.stages.glue.path = config.eval.tasks.glue.path = str(path.parent)
    parsed = parse_config(config)
    trained_workdirs.write_workdir(tmp_path / "run", with_task_head(parsed, read_stages(parsed)))
    ((status, output, errors),) = run_commands(
        [("evaluate", f"--workdir={tmp_path}/run", f"--task=glue:dataset=rte,path={path.parent}")]
    )
    message = (
        f"birdie_jax.evaluate: {path}: line 2: found inf among the head's scores; allowed: finite numbers"
    )
    assert (status, output, errors.splitlines()[-1]) == (1, "", message)
    assert "Traceback" not in errors
