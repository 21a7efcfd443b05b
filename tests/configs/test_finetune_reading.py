"""SQuAD, QuALITY and ContractNLI are trained as in the paper, with every model of the presets."""

import dataclasses
import json

import pytest

from birdie_jax.errors import ConfigError
from birdie_jax.finetuning.stage_rows import make_stage_rows
from birdie_jax.finetuning.stages import read_stages
from birdie_jax.finetuning.task_heads import with_task_head
from birdie_jax.models import encoder_names, model_names
from birdie_jax.models.encoder_config import EncoderConfig
from birdie_jax.tasks.evaluation import tasks_of_config
from birdie_jax.tasks.squad_spans import SquadSpans
from tests.configs.test_every_config import load
from tests.trained_workdirs import small_tokenizer

POSITIONS = {"tiny": 128, "11b": 128, "29b": 128, "97b": 128, "119m": 128, "512": 512, "4096": 4096}
# The first values of the paper's grid (table 7): learning rate, rows, epochs.
GRID = {
    "squad": (4e-5, 32, 2.0),
    "squad_2": (4e-5, 32, 2.0),
    "quality": (3e-5, 16, 5.0),
    "contract_nli": (3e-5, 16, 5.0),
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("size", POSITIONS)
@pytest.mark.parametrize("dataset", GRID)
@pytest.mark.parametrize("name", encoder_names())
def test_the_measured_task_is_the_trained_task(size, dataset, name):
    config = load("finetune_reading", f"{size},{dataset},{name}")
    (stage,) = read_stages(config)
    rate, rows, epochs = GRID[dataset]
    assert (stage.rows, stage.epochs, stage.pack) == (rows, epochs, False)
    assert config.optimizer.learning_rate == pytest.approx(rate * (10 if size == "tiny" else 1))
    if dataset == "quality":
        assert stage.length == 4 * POSITIONS[size]
        # Between four samples are three spacings of three positions.
        assert stage.length - 4 < 4 * stage.task.max_positions + 3 * config.batching.spacing <= stage.length
    else:
        assert stage.length == stage.task.max_positions == POSITIONS[size]
    (measured,) = (named.task for named in tasks_of_config(config.eval.tasks, "config.eval.tasks"))
    assert type(measured) is type(stage.task) and measured.path != stage.task.path
    model = with_task_head(config, [stage]).model
    assert (model.head_name, model.head_dropout) == (dataset.removesuffix("_2"), 0.1)
    assert model.section(EncoderConfig).positions == stage.length


def test_a_question_on_an_article_that_is_cut_fits_into_a_row(tmp_path):
    """With all options, each as long as a sample may be."""
    path = tmp_path / "quality.jsonl"
    question = {
        "question": "Who?",
        "question_unique_id": "q1",
        "options": ["a", "b", "c", "d"],
        "gold_label": 2,
        "difficult": 0,
    }
    path.write_text(json.dumps({"article": "abc " * 400, "questions": [question]}) + "\n")
    config = load("finetune_reading", "tiny,quality")
    (stage,) = read_stages(config)
    examples = dataclasses.replace(stage.task, path=str(path)).training_examples(small_tokenizer())
    assert examples.lengths.tolist() == [4 * stage.task.max_positions]
    rows = make_stage_rows(stage, examples, seed=0, first_step=0, spacing=config.batching.spacing)
    assert rows.description.startswith("1 examples in 1 rows of 512, ")


@pytest.mark.parametrize(
    ("name", "first"), [("finetune_reading", "tiny,squad,bigs"), ("finetune_glue", "tiny,cola,bigs")]
)
def test_no_variant_is_the_first_one(name, first):
    assert load(name) == load(name, first)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("size", POSITIONS)
def test_version_2_of_squad_may_have_no_answer(size):
    """And is else what version 1.1 is, but for its files."""
    first, second = (load("finetune_reading", f"{size},{dataset}") for dataset in ("squad", "squad_2"))
    for old, new in (
        (read_stages(first)[0].task, read_stages(second)[0].task),
        (
            tasks_of_config(first.eval.tasks, "config.eval.tasks")[0].task,
            tasks_of_config(second.eval.tasks, "config.eval.tasks")[0].task,
        ),
    ):
        assert isinstance(old, SquadSpans) and isinstance(new, SquadSpans)
        assert (old.no_answer, new.no_answer, new.no_answer_threshold) == (False, True, 0.0)
        path = old.path.replace("v1.1", "v2.0")
        assert dataclasses.replace(old, no_answer=True, path=path) == new
    steps = {"squad": 2 * 87_599 // 32, "squad_2": 2 * 130_319 // 32}
    warmup = (first.optimizer.warmup_steps, second.optimizer.warmup_steps)
    assert warmup == tuple(count // 10 for count in steps.values())


@pytest.mark.parametrize("name", model_names())
def test_the_model_is_that_of_the_preset_but_for_dropout(name):
    tuned, preset = load("finetune_reading", f"tiny,squad,{name}").model, load("bigs_tiny", name).model
    assert (tuned.name, tuned.layers, tuned.features) == (preset.name, preset.layers, preset.features)
    assert tuned.section(EncoderConfig).embedding_dropout == 0.1
    assert (tuned.dropout > 0) == (name == "stack_attention")


@pytest.mark.parametrize(
    ("name", "variant", "said"),
    [
        ("finetune_reading", "large", "'large' is unknown; allowed: tiny, 11b, 29b, 97b, 119m, 512, 4096"),
        ("finetune_reading", "tiny,race", "'race' is unknown; allowed: squad, squad_2, quality, contract_"),
        ("finetune_reading", "tiny,squad,llama", "'llama' is unknown; allowed: bigs, "),
        ("finetune_glue", "large", "'large' is unknown; allowed: tiny, 11b, 29b, 97b, 119m, 512"),
        ("finetune_glue", "tiny,snli", "'snli' is unknown; allowed: wnli, qnli, mnli, cola, "),
        ("finetune_glue", "tiny,rte,llama", "'llama' is unknown; allowed: bigs, "),
    ],
)
def test_unknown_parts_of_a_variant_are_refused(name, variant, said):
    with pytest.raises(ConfigError, match=f"^config variant {said}"):
        load(name, variant)
