"""GLUE is trained as in the paper, except for the learning rate, with every model of the preset."""

import dataclasses

import pytest

from birdie_jax.errors import DataError
from birdie_jax.finetuning.stages import read_stages
from birdie_jax.finetuning.task_heads import with_task_head
from birdie_jax.models import model_names
from birdie_jax.models.encoder_config import EncoderConfig
from birdie_jax.tasks.evaluation import tasks_of_config
from birdie_jax.tasks.glue import Glue
from birdie_jax.tasks.glue_files import GLUE_DATASETS
from tests.configs.test_every_config import load
from tests.tasks.glue_folders import labels_of, write_glue


@pytest.mark.parametrize("dataset", GLUE_DATASETS)
def test_the_measured_task_is_the_trained_task(dataset):
    config = load("finetune_glue", f"tiny,{dataset}")
    (stage,) = read_stages(config)
    assert isinstance(stage.task, Glue) and stage.task.dataset == dataset
    assert (stage.rows, stage.length, stage.epochs, stage.pack) == (16, 128, 3.0, False)
    measured = [named.task for named in tasks_of_config(config.eval.tasks, "config.eval.tasks")]
    assert measured[0] == stage.task
    splits = [task.split for task in measured if isinstance(task, Glue)]
    assert splits == (["", "dev_mismatched"] if dataset == "mnli" else [""])
    head = with_task_head(config, [stage]).model
    assert (head.head_name, head.head_dropout) == (dataset, 0.1)


def test_the_published_rows_of_qqp_that_lack_columns_are_passed_over(tmp_path):
    """Its train.tsv has some; those of the other data sets have none, and a bad row is refused."""
    rows = [("abc", "def", "1"), ("abc", "def", "0")]
    for dataset in GLUE_DATASETS:
        (stage,) = read_stages(load("finetune_glue", f"tiny,{dataset}"))
        task = dataclasses.replace(stage.task, path=str(tmp_path / dataset))
        labelled = [(first, second, labels_of(dataset)[int(label)]) for first, second, label in rows]
        path = write_glue(tmp_path / dataset, dataset, "train", labelled)
        with path.open("a") as file:
            file.write("97931\n")
        if dataset == "qqp":
            samples, refused = task.samples("train")
            said = "line 4: found 1 columns; allowed: 6: id, qid1, qid2, question1, question2, is_duplicate"
            assert (len(samples), refused) == (2, [f"{path}: {said}"])
        else:
            with pytest.raises(DataError, match=r"1 of 3 records are bad: line \d: found 1 columns"):
                task.samples("train")


@pytest.mark.parametrize("name", model_names())
def test_the_model_is_that_of_the_preset_but_for_dropout(name):
    def without_dropout(model):
        sections = tuple(
            dataclasses.replace(one, embedding_dropout=0.0) if isinstance(one, EncoderConfig) else one
            for one in model.sections
        )
        return dataclasses.replace(model, dropout=0.0, sections=sections)

    tuned, preset = load("finetune_glue", f"tiny,rte,{name}").model, load("bigs_tiny", name).model
    assert without_dropout(tuned) == without_dropout(preset)
    assert tuned.section(EncoderConfig).embedding_dropout == 0.1
    assert (tuned.dropout > 0) == (name == "stack_attention")


@pytest.mark.parametrize("size", ["11b", "29b", "97b", "119m", "512"])
@pytest.mark.parametrize("name", ["bigs", "stack_attention"])
def test_the_paper_s_sizes_are_those_of_their_pretraining(size, name):
    tuned = load("finetune_glue", f"{size},mnli,{name}")
    preset = load("bigs_longer_rows" if size == "512" else "bigs", f"{size},{name}")
    assert tuned.model == preset.model
    length = 512 if size == "512" else 128
    assert (tuned.batching.rows, tuned.batching.length) == (16, length)
    (stage,) = read_stages(tuned)
    assert isinstance(stage.task, Glue) and (stage.length, stage.task.max_positions) == (length, length)
    assert tuned.optimizer.learning_rate == 3e-5
    assert tuned.train.num_steps == 0 and tuned.train.accumulation_steps == preset.train.accumulation_steps
