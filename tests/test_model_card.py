"""The card of an exported model, from the records of its run."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from birdie_jax.config import FinetuneConfig, parse_config
from birdie_jax.config_sections import FinetuneLoraConfig
from birdie_jax.engine import Workdir
from birdie_jax.errors import DataError
from birdie_jax.evaluation_record import EvaluatedModel, EvaluationRecord, Interval
from birdie_jax.model_card import model_card
from birdie_jax.objectives import mixture_from_arms
from birdie_jax.start_recorder import StartRecorder, describe_program
from birdie_jax.text import Tokenizer
from birdie_jax.trained_model import TrainedModel
from tests.micro_config import get_config


@pytest.fixture
def model():
    config = parse_config(get_config("fixed"))
    params = {"a": np.zeros((30, 40)), "b": np.zeros(34)}
    # The card reads only its hash, as a part of the model's identity.
    tokenizer = Tokenizer.__new__(Tokenizer)
    tokenizer.sha256 = ""
    return TrainedModel("runs/a", 8, config, None, params, tokenizer, ())


def write_evaluation(workdir, model, name):
    metrics = {"accuracy|all": Interval(0.25, 0.125, 0.5)}
    evaluated = EvaluatedModel(model.name, model.step, "", model.identify().parameters_sha256, "")
    record = EvaluationRecord(1, name, "copy", {}, "accuracy", evaluated, 1600, [], metrics, {}, 1.0)
    file = workdir.evaluation(model.step, name)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(record.to_json()))


def test_a_run_without_records(tmp_path, model):
    card = model_card(tmp_path / "runs" / "a", model, "out")
    assert card.startswith("---\nlibrary_name: birdie-jax\n")
    assert "A gated_ssm_plus of 1,234 parameters, saved at step 8 of the run a, after at most 2,048" in card
    assert "\nlicense: unknown\n" in card
    assert "birdie_jax.generate --model=out" in card
    assert "| mixture | tiny |" in card
    assert "The run did not record its devices." in card
    assert "## Losses\n\nThe run recorded no losses." in card
    assert "No evaluation of this model is recorded" in card
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
        write_evaluation(workdir, model._replace(step=step), f"copy{step}")
    lines = [{"step": step, "loss": 9 - step / 2, "arm/copy/validation_loss": 2.5} for step in (2, 8, 10)]
    workdir.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    card = model_card(tmp_path, model, "out")
    assert f"| completed | 1 x cpu | {program.title} |" in card
    assert program.host not in card.replace(program.title, "")
    assert "\n```bash\ntrain --config=x\n```\n" in card
    assert "| copy8 | accuracy\\|all | 0.25 | 0.125 .. 0.5 | 1,600 |" in card
    assert "copy4" not in card
    assert "| arm/copy/validation_loss | 8 | 2.5 |\n| loss | 8 | 5 |" in card


def test_the_card_shows_the_evaluations_of_its_own_parameters(tmp_path, model):
    """A later step has the same evaluation, and this step that of an average."""
    workdir = Workdir(tmp_path)
    average = model._replace(params=jax.tree.map(lambda leaf: leaf + 1, model.params), average=True)
    for one, name in ((model, "copy"), (model._replace(step=12), "copy"), (average, "copy_average")):
        write_evaluation(workdir, one, name)
    card = model_card(tmp_path, model, "out")
    assert "| copy | accuracy" in card and "copy_average" not in card and "averaged" not in card
    card = model_card(tmp_path, average, "out")
    assert "| copy_average | accuracy" in card and "| copy |" not in card
    assert "1,234 parameters, averaged over training and saved at step 8 of" in card


def test_a_damaged_record_is_named(tmp_path, model):
    (tmp_path / "starts.json").write_text('[{"began": 3}]')
    with pytest.raises(DataError, match=r"starts\.json\[0\]"):
        model_card(tmp_path, model, "out")
    (tmp_path / "starts.json").unlink()
    (tmp_path / "starts.json").mkdir()
    with pytest.raises(DataError, match=r"starts\.json: cannot be read: Is a directory"):
        model_card(tmp_path, model, "out")


def with_config(model, **sections):
    config = dataclasses.replace(
        model.config,
        **{name: dataclasses.replace(getattr(model.config, name), **one) for name, one in sections.items()},
    )
    return model._replace(config=config)


def write_metrics(workdir, lines):
    Workdir(workdir).metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_the_card_of_a_fine_tuned_run_has_its_stages_and_no_settings_of_pretraining(tmp_path, model):
    book = {"task": "jsonl", "path": "a.jsonl", "length": 64, "rows": 3, "epochs": 1.5, "steps": 9}
    stages = {
        "2_words": {
            "task": "toy_words",
            "length": 96,
            "rows": 4,
            "steps": 5,
            "max_letters": 9,
            "pack": None,
        },
        "1_book": book,
    }
    finetune = FinetuneConfig(stages, lora=FinetuneLoraConfig(rank=2))
    tuned = with_config(model, train={"num_steps": 0}, init={"from_": "runs/source@5"})
    tuned = tuned._replace(config=dataclasses.replace(tuned.config, finetune=finetune))
    card = model_card(tmp_path, tuned, "out")
    assert f"saved at step 8 of the fine-tuning run {tmp_path.name}.\n" in card
    assert "| started from | runs/source@5 |\n| steps planned | all of the stages |" in card
    assert "| low-rank adaptation | rank 2 of * |" in card
    stage = "| 1_book | jsonl | path=a.jsonl | 3 of 64 tokens | 1.5 epochs, at most 9 steps |"
    assert f"{stage} not recorded |" in card
    assert "| 2_words | toy_words | max_letters=9 | 4 of 96 tokens | 5 steps | not recorded |" in card
    for absent in ("stdlib", "mixture", "bandit", "2,048", "2 of 128", "planned | 0 |"):
        assert absent not in card
    (tmp_path / "summary.json").write_text('{"num_steps": 11}')
    lines = [
        {"step": step, "loss": 2.0, f"stage/{name}/tokens": 1000.0, f"stage/{name}/loss": 2.0}
        for name, steps in (("1_book", (2, 4, 6)), ("2_words", (8, 10)))
        for step in steps
    ]
    write_metrics(tmp_path, lines)
    card = model_card(tmp_path, tuned, "out")
    assert ", after 4,000 target tokens." in card and "| steps planned | 11 |" in card
    assert f"{stage} 3,000 |" in card and "| 5 steps | 1,000 |" in card
    assert "| stage/1_book/loss | 6 | 2 |" in card


def test_the_card_of_a_run_with_arms_and_corpora_has_their_shares(tmp_path, model):
    arms = {
        "web_lm": {"objective": "causal_lm", "weight": 3.0, "corpora": "web"},
        "copies": {"objective": "copying"},
    }
    corpora = {"web": {"source": "web.jsonl", "weight": 3.0}, "code": {"prepared": "code"}}
    named = with_config(model, objectives={"arms": arms, "shares_of": "target_tokens"})
    named = named._replace(arms=mixture_from_arms(arms).arms)
    card = model_card(tmp_path, named, "out")
    assert "| mixture |" not in card and "| text | stdlib |" in card
    assert "| arm | objective | first share of target tokens |\n" in card
    assert "| web_lm | causal_lm | 75.0% |\n| copies | copying | 25.0% |" in card
    both = with_config(named, data={"corpora": corpora})
    card = model_card(tmp_path, both, "out")
    assert "stdlib" not in card
    assert "| web | web.jsonl | 75.0% | not recorded | not recorded |" in card
    assert "| web_lm | causal_lm | 75.0% | web |\n| copies | copying | 25.0% | all |" in card
    recorded = {
        "web": {"tokens": 12345, "expected_epochs": 1.25},
        "code": {"tokens": 9, "expected_epochs": 3},
    }
    (tmp_path / "corpora.json").write_text(json.dumps(recorded))
    record = {
        "name": "web_lm",
        "group": "web_lm",
        "objective": "causal_lm",
        "parameters": {},
        "weight": 1.0,
        "corpora": ["web"],
        "examples": [],
    }
    (tmp_path / "arms.json").write_text(json.dumps([record]))
    card = model_card(tmp_path, both, "out")
    assert "| corpus | text | share | tokens | expected epochs |\n" in card
    assert "| code | code | 25.0% | 9 | 3 |\n| web | web.jsonl | 75.0% | 12,345 | 1.2 |" in card
    assert "| web_lm | causal_lm | 100.0% | web |" in card
