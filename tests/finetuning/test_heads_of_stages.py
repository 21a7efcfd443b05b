"""The head of a run, and the maximum number of samples in a row of its stages."""

import dataclasses
import re
import runpy
from pathlib import Path

import jax
import ml_collections
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding

from birdie_jax.config import parse_config
from birdie_jax.errors import ConfigError
from birdie_jax.finetuning.stage_rows import RecordedRows
from birdie_jax.finetuning.stages import read_stages
from birdie_jax.finetuning.task_heads import maps_of_other_classes, max_samples, with_task_head
from birdie_jax.interop.initialization import config_of_source, read_initial_parameters
from birdie_jax.models import build_model
from birdie_jax.models.language_model import parameter_shapes
from birdie_jax.models.parameters import parameter_policies
from birdie_jax.models.task_head import Head
from birdie_jax.objectives import Example
from birdie_jax.tasks.head_task import SampleExamples, labelled_example, sample_tokens
from tests.trained_workdirs import small_tokenizer, write_workdir

MICRO = runpy.run_path(str(Path(__file__).with_name("micro_head.py")))["get_config"]
RTE = {"task": "glue", "dataset": "rte", "path": "x", "length": 64, "rows": 2, "epochs": 1.0}
MAIL = {"task": "labelled_text", "classes": ("mail", "spam"), "path": "x", "length": 64, "rows": 2}
MAIL["epochs"] = 1.0
WORDS = {"task": "phonebook", "length": 64, "rows": 2, "steps": 1}
WHERE = "config.finetune.stages"


def parsed(stages, changes=None):
    config = MICRO()
    config.finetune.stages = stages
    for name, value in (changes or {}).items():
        config.update_from_flattened_dict({name: value})
    assert isinstance(config, ml_collections.ConfigDict)
    return parse_config(config)


def headed(stages, changes=None):
    config = parsed(stages, changes)
    return with_task_head(config, read_stages(config))


def test_the_model_has_the_head_of_the_tasks():
    config = headed({"1": RTE, "2": RTE | {"rows": 4}})
    model = config.model
    assert Head(model.head, model.head_name, model.head_outputs) == Head("classification", "rte", 2)
    # Saved, then read again.
    assert with_task_head(config, read_stages(config)) == config
    words = parsed({"words": WORDS}, {"model.name": "gated_ssm"})
    assert with_task_head(words, read_stages(words)) == words
    assert with_task_head(words, ()) == words


@pytest.mark.parametrize(
    ("stages", "changes", "said"),
    [
        (
            {"1": RTE, "2": RTE | {"dataset": "mnli"}},
            {},
            f"{WHERE}.2.task: found one that needs the head mnli: classification, 3 outputs; allowed: what "
            f"{WHERE}.1 needs, the head rte: classification, 2 outputs: all stages of a run have one head",
        ),
        (
            {"1": MAIL, "2": MAIL | {"classes": ("spam", "mail")}},
            {},
            f"{WHERE}.2.task: found one that needs the head label: classification, 2 outputs (spam, mail); "
            f"allowed: what {WHERE}.1 needs, the head label: classification, 2 outputs (mail, spam): all "
            "stages of a run have one head",
        ),
        (
            {"1": WORDS, "2": RTE},
            {},
            f"{WHERE}.2.task: found one that needs the head rte: classification, 2 outputs; allowed: what "
            f"{WHERE}.1 needs, no head: all stages of a run have one head",
        ),
        (
            {"1": WORDS},
            {},
            f"{WHERE}.1.task: found phonebook, which generates text, and config.model.name = 'bigs', a "
            "bidirectional encoder, which cannot; allowed: a task with a head, such as glue",
        ),
        (
            {"1": RTE},
            {"model.head": "spans"},
            f"config.model.head: found 'spans'; allowed: '', or 'classification', which {WHERE}.1 needs",
        ),
        (
            {"1": WORDS},
            {"model.head_name": "rte"},
            f"config.model.head_name: found 'rte'; allowed: '': {WHERE}.1 needs no head",
        ),
        (
            {"1": RTE},
            {"model.name": "gated_ssm", "mesh.sequence": 2},
            f"config.mesh.sequence: found 2; allowed: 1: the head of {WHERE}.1 reads whole samples",
        ),
    ],
)
def test_invalid_heads_are_refused(stages, changes, said):
    with pytest.raises(ConfigError, match=f"^{re.escape(said)}$"):
        headed(stages, changes)


@pytest.fixture(scope="module")
def mnli(tmp_path_factory):
    """The workdir of a run on MNLI, and its parameters."""
    folder = tmp_path_factory.mktemp("mnli")
    return folder, write_workdir(folder, headed({"1": RTE | {"dataset": "mnli"}}))[5]


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("dataset", "kind", "outputs"),
    [("rte", "classification", 2), ("mrpc", "classification", 2), ("stsb", "regression", 1)],
)
def test_a_run_from_mnli_keeps_its_pooler_and_has_its_own_last_map(mnli, dataset, kind, outputs):
    """Regression needs another head, which also reuses the parameters shared with a classification head."""
    config, tokenizer = headed({"1": RTE | {"dataset": dataset}}), small_tokenizer()
    assert config.model.head == kind
    model = build_model(config.model, tokenizer.vocab_size)
    here = SingleDeviceSharding(jax.devices()[0])
    abstract = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=here), parameter_shapes(model)
    )
    folder, saved = mnli
    initial = read_initial_parameters(str(folder), abstract, tokenizer.sha256, parameter_policies(model))
    last = f"task_head/{dataset}"
    assert initial.new == {
        f"{last}/kernel": f"float32[16, {outputs}]",
        f"{last}/bias": f"float32[{outputs}]",
    }
    assert initial.left == {
        "task_head/mnli/kernel": "float32[16, 3], not in this model",
        "task_head/mnli/bias": "float32[3], not in this model",
    }
    for part in ("kernel", "bias"):
        found = initial.loaded[f"task_head/pooler/{part}"]
        np.testing.assert_array_equal(found, saved["task_head"]["pooler"][part])


@pytest.mark.slow
def test_a_last_map_of_other_classes_is_initialized_and_reported(tmp_path):
    write_workdir(tmp_path, headed({"1": MAIL}))
    before = config_of_source(str(tmp_path))
    model = build_model(before.model, small_tokenizer().vocab_size)
    here = SingleDeviceSharding(jax.devices()[0])
    abstract = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=here), parameter_shapes(model)
    )
    policies = parameter_policies(model)
    for classes in (("spam", "mail"), ("mail", "news")):
        maps = maps_of_other_classes(headed({"1": MAIL | {"classes": classes}}), before)
        initial = read_initial_parameters(
            str(tmp_path), abstract, small_tokenizer().sha256, policies, not_taken=maps
        )
        why = f"for the classes mail, spam; this model's are {', '.join(classes)}"
        assert initial.left == {
            "task_head/label/kernel": f"float32[16, 2], {why}",
            "task_head/label/bias": f"float32[2], {why}",
        }
        assert initial.new == {
            "task_head/label/kernel": "float32[16, 2]",
            "task_head/label/bias": "float32[2]",
        }
        assert initial.loaded.keys() & initial.new.keys() == set()
        assert "task_head/pooler/kernel" in initial.loaded
    for same in (before, headed({"1": MAIL | {"head_name": "other", "classes": ("a", "b")}})):
        assert maps_of_other_classes(same, before) == {}


def test_pre_training_has_no_head():
    config = MICRO()
    config.train.num_steps = 4
    config.model.head = "spans"
    said = "config.model.head: found 'spans'; allowed: '' without config.finetune.stages: pre-training has "
    said += "none"
    with pytest.raises(ConfigError, match=f"^{re.escape(said)}$"):
        parse_config(config)


def test_a_row_has_room_for_the_shortest_samples():
    config = headed({"1": RTE})
    (stage,) = read_stages(config)
    spacing = config.batching.spacing
    room = max_samples(config, stage)
    assert room * 2 + (room - 1) * spacing <= 64 < (room + 1) * 2 + room * spacing
    assert max_samples(config, dataclasses.replace(stage, pack=False)) == 1
    choice = dataclasses.replace(
        config, model=dataclasses.replace(config.model, head="choice", head_outputs=4)
    )
    assert max_samples(choice, dataclasses.replace(stage, pack=False)) == 4
    assert max_samples(choice, stage) == room - room % 4


def examples_of_lengths(lengths):
    contexts = [sample_tokens([np.full(length - 2, 300, np.int32)]) for length in lengths]
    names = [f"record {number}" for number in range(len(lengths))]
    return SampleExamples(names, contexts, range(1, len(lengths) + 1))


def test_a_row_has_room_for_samples_without_text():
    """Like a tokenizer.json with a normaliser that drops control characters."""
    config = headed({"1": RTE})
    (stage,) = read_stages(config)
    spacing = config.batching.spacing
    rows = RecordedRows(stage, examples_of_lengths([2] * 100), seed=0, spacing=spacing)
    counts = [len(rows.examples(step, row)) for step in range(rows.num_steps) for row in range(stage.rows)]
    assert max(counts) == max_samples(config, stage)
    assert sum(counts) == 100


def rows_of(examples, **settings):
    (stage,) = read_stages(parsed({"1": RTE | settings}))
    return RecordedRows(stage, examples, seed=0, spacing=2)


def test_unpacked_examples_have_their_own_rows():
    rows = rows_of(examples_of_lengths([5, 9, 64, 5, 7]), pack=False)
    assert rows.num_steps == 3
    assert rows.description.startswith(
        f"5 examples in 5 rows of 64, {1 - 90 / 320:.1%} of them padding; 1 epo"
    )
    found = [rows.examples(step, row) for step in range(3) for row in range(2)]
    assert [len(row) for row in found] == [1, 1, 1, 1, 1, 0]
    assert sorted(int(example.labels[0]) for (example,) in found[:5]) == [1, 2, 3, 4, 5]


class Groups(SampleExamples):
    """Groups of each example and its copy."""

    group_size = 2

    def group(self, index: int) -> list[Example]:
        half = self[index].context[: self.lengths[index] // 2]
        return [labelled_example(half, 1), labelled_example(half, 2)]


@pytest.mark.parametrize("pack", [True, False])
def test_the_examples_of_a_group_share_a_row(pack):
    examples = examples_of_lengths([6, 10, 62, 12])
    examples.__class__ = Groups
    rows = rows_of(examples, pack=pack)
    found = [rows.examples(step, row) for step in range(rows.num_steps) for row in range(2)]
    labels = [[int(example.labels[0]) for example in row] for row in found if row]
    assert all(row == [1, 2] * (len(row) // 2) for row in labels)
    assert sum(map(len, labels)) == 8 and (max(map(len, labels)) > 2) == pack
    # 62 positions and a spacing of 2 fill a row of 64.
    assert rows_of(examples, length=64).num_steps
    with pytest.raises(
        ConfigError, match=r"found 32; 1 of 4 examples are longer than a row: record 2 \(64"
    ):
        rows_of(examples, length=32)
