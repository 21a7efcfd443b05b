"""The card of an exported model, from the records of its run."""

import json

import jax
import numpy as np
import pytest

from birdie_jax.config import parse_config
from birdie_jax.engine import Workdir
from birdie_jax.errors import DataError
from birdie_jax.evaluation_record import EvaluatedModel, EvaluationRecord, Interval
from birdie_jax.model_card import model_card
from birdie_jax.start_recorder import StartRecorder, describe_program
from birdie_jax.trained_model import TrainedModel
from tests.micro_config import get_config


@pytest.fixture
def model():
    config = parse_config(get_config("fixed"))
    params = {"a": np.zeros((30, 40)), "b": np.zeros(34)}
    return TrainedModel("runs/a", 8, config, None, params, None, ())


def record(step):
    metrics = {"accuracy|all": Interval(0.25, 0.125, 0.5)}
    evaluated = EvaluatedModel("runs/a", step, "", "", "")
    return EvaluationRecord(1, f"copy{step}", "copy", {}, "accuracy", evaluated, 1600, [], metrics, {}, 1.0)


def test_a_run_without_records(tmp_path, model):
    card = model_card(tmp_path / "runs" / "a", model, "out")
    assert card.startswith("---\nlibrary_name: birdie-jax\n")
    assert "A gated_ssm_plus of 1,234 parameters, saved at step 8 of the run a, after at most 2,048" in card
    assert "\nlicense: unknown\n" in card
    assert "birdie_jax.generate --model=out" in card
    assert "| mixture | tiny |" in card
    assert "The run did not record its devices." in card
    assert "## Losses\n\nNone was recorded." in card
    assert "None at this step" in card
    card = model_card(tmp_path / "runs" / "a", model, "out", for_transformers=True)
    assert card.startswith("---\nlibrary_name: transformers\n")
    assert 'model = AutoModelForCausalLM.from_pretrained("out", trust_remote_code=True)' in card


def test_the_card_shows_the_records(tmp_path, model):
    workdir = Workdir(tmp_path)
    program = describe_program(["train", "--config=x"], {}, None)
    with StartRecorder(workdir, program, 1) as start:
        start.announce(jax.make_mesh((1,), ("data",)), "")
        start.note_outcome("completed", 8)
    for step in (4, 8):
        file = workdir.evaluation(step, f"copy{step}")
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(record(step).to_json()))
    lines = [{"step": step, "loss": 9 - step / 2, "arm/copy/validation_loss": 2.5} for step in (2, 8, 10)]
    workdir.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    card = model_card(tmp_path, model, "out")
    assert f"| completed | 1 x cpu | {program.title} |" in card
    assert program.host not in card.replace(program.title, "")
    assert "\n```bash\ntrain --config=x\n```\n" in card
    assert "| copy8 | accuracy\\|all | 0.25 | 0.125 .. 0.5 | 1,600 |" in card
    assert "copy4" not in card
    assert "| arm/copy/validation_loss | 8 | 2.5 |\n| loss | 8 | 5 |" in card


def test_a_damaged_record_is_named(tmp_path, model):
    (tmp_path / "starts.json").write_text('[{"began": 3}]')
    with pytest.raises(DataError, match=r"starts\.json\[0\]"):
        model_card(tmp_path, model, "out")
    (tmp_path / "starts.json").unlink()
    (tmp_path / "starts.json").mkdir()
    with pytest.raises(DataError, match=r"starts\.json: cannot be read: Is a directory"):
        model_card(tmp_path, model, "out")
