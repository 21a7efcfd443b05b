"""Runs with heads that select a span or an option: learning, and resuming after a kill."""

import json
import random
import shutil
import sys
from pathlib import Path

import pytest

from birdie_jax.models.encoder_config import EncoderConfig
from tests.finetuning.micro_head import LEARNABLE
from tests.trained_workdirs import micro_config, write_workdir
from tests.whole_runs import assert_same_end, finish, metrics

pytestmark = pytest.mark.slow
CONFIG = Path(__file__).with_name("micro_head.py")
STEPS = 120


def write_spans(path, draw, count=64):
    """Write questions; the answer is the only letter o of the paragraph."""
    entries = []
    for number in range(count):
        letters = draw.choices("abcdef", k=6)
        letters[draw.randrange(6)] = answer = "o"
        context = " ".join(letters)
        found = [{"text": answer, "answer_start": context.index(answer)}]
        question = {"id": str(number), "question": "o", "answers": found}
        entries.append({"context": context, "qas": [question]})
    path.write_text(json.dumps({"version": "1.1", "data": [{"title": "a", "paragraphs": entries}]}))


def write_choices(path, draw, count=64):
    """Write questions; the option with the letter o is correct."""
    lines = []
    for number in range(count):
        options, label = [draw.choice("abcdef") for _ in range(4)], draw.randrange(4)
        options[label] = "o"
        question = {
            **{"question_unique_id": str(number), "question": "n", "options": options},
            **{"gold_label": label + 1, "difficult": 0},
        }
        article = {"article_id": str(number), "article": "k", "questions": [question]}
        lines.append(json.dumps(article) + "\n")
    path.write_text("".join(lines))


WRITE = {"spans": write_spans, "choices": write_choices}
MAIN = {"spans": "f1", "choices": "accuracy"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", LEARNABLE)
def test_a_head_learns_and_resumes_with_the_same_bits(kind, tmp_path):
    """Chance is 1/6 for spans and 1/4 for choices; the measured questions are new. Only spans resume."""
    section = EncoderConfig(positions=128, ssm_state=8, attention_heads=2)
    source = tmp_path / "source"
    write_workdir(source, micro_config(name="bigs", sections=(section,)))
    draw, files = random.Random(0), {}
    for split in ("train", "dev"):
        files[split] = tmp_path / f"{split}.json"
        WRITE[kind](files[split], draw)
    run, again = tmp_path / "run", tmp_path / "again"

    def command(workdir):
        return [
            *(sys.executable, "-m", "birdie_jax.train", f"--config={CONFIG}:{kind}"),
            *(f"--workdir={workdir}", f"--config.init.from={source}"),
            f"--config.finetune.stages.{kind}.path={files['train']}",
            f"--config.eval.tasks.{kind}.path={files['dev']}",
        ]

    status, output = finish(command(run))
    assert status == 0, output
    (measured,) = (line for line in metrics(run) if f"task/{kind}/{MAIN[kind]}" in line)
    assert measured["step"] == STEPS
    assert measured[f"task/{kind}/{MAIN[kind]}"] > 0.9

    if kind != "spans":
        return
    # The state of a run that was killed after a checkpoint.
    shutil.copytree(run, again)
    shutil.rmtree(again / "checkpoints" / f"{STEPS:08d}")
    (again / "summary.json").unlink()
    status, output = finish(command(again))
    assert status == 0, output
    assert "resumes from step 80" in output
    assert_same_end(again, run, STEPS)
