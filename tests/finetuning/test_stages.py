"""Stages are read in the order of their names; errors in them name the field."""

import dataclasses
import re

import ml_collections
import pytest

from birdie_jax.config import FinetuneConfig, check_config, parse_config, to_dict
from birdie_jax.config_sections import FinetunePruningConfig
from birdie_jax.errors import ConfigError
from birdie_jax.finetuning.run import check_stages
from birdie_jax.finetuning.stage_sequence import make_stage_sequence
from birdie_jax.finetuning.stages import read_stages, stage_config
from birdie_jax.models.attention import AttentionConfig
from birdie_jax.models.encoder_config import EncoderConfig
from tests.finetuning.toy_tasks import BackwardWords, Words
from tests.trained_workdirs import micro_config, small_tokenizer

BACKWARD = {"task": "toy_backward_words", "length": 64, "rows": 4, "epochs": 1.5}
WORDS = {"task": "toy_words", "length": 96, "rows": 2, "steps": 5, "max_letters": 9}


def config_with(stages, **train):
    config = micro_config()
    train = {"num_steps": 0, "loss_chunk": 32, **train}
    return dataclasses.replace(
        config, train=dataclasses.replace(config.train, **train), finetune=FinetuneConfig(stages)
    )


def pruning_config(stages, model=None, **pruning):
    config = config_with(stages)
    section = FinetunePruningConfig(**{"max_pruned": 0.9, **pruning})
    finetune = FinetuneConfig(stages, section)
    return dataclasses.replace(config, model=model or config.model, finetune=finetune)


def refusal(stages, **train):
    with pytest.raises(ConfigError) as caught:
        read_stages(config_with(stages, **train))
    return str(caught.value)


def test_stages_run_in_the_sorted_order_of_their_names():
    first, second = read_stages(config_with({"2_words": WORDS, "1_backward": BACKWARD}))
    assert (first.name, first.number, first.task) == ("1_backward", 0, BackwardWords())
    assert (first.length, first.rows, first.epochs, first.steps) == (64, 4, 1.5, None)
    assert (second.name, second.number, second.task) == ("2_words", 1, Words(max_letters=9))
    assert (second.epochs, second.steps, second.skip_long) == (None, 5, False)


@pytest.mark.parametrize(
    ("name", "stage", "message"),
    [
        (
            "transformer",
            WORDS,
            "config.model.name = 'transformer', which has attention, whose cache holds tokens",
        ),
        (
            "griffin",
            WORDS,
            "config.model.name = 'griffin', which has attention, whose cache holds tokens",
        ),
        (
            "gated_deltanet",
            WORDS,
            "config.model.name = 'gated_deltanet', in which a token also changes what others wrote",
        ),
        (
            "bigs",
            WORDS,
            "config.model.name = 'bigs', a bidirectional encoder, which predicts no next token",
        ),
        (
            "bigs",
            {
                "task": "labelled_text",
                "path": "x.jsonl",
                "classes": ("yes", "no"),
                "length": 64,
                "rows": 2,
                "epochs": 1.0,
            },
            "config.finetune.stages.a, whose task labelled_text has a head and no next token",
        ),
    ],
)
def test_runs_that_cannot_drop_tokens_are_refused(name, stage, message):
    # Attention with a window too, although its cache does not grow.
    model = micro_config(name=name, sections=(AttentionConfig(heads=2, window=4),)).model
    with pytest.raises(ConfigError) as caught:
        read_stages(pruning_config({"a": stage}, model))
    assert str(caught.value) == f"config.finetune.pruning.max_pruned: found 0.9; allowed: 0 with {message}"


def test_invalid_pruning_fields_are_named():
    config = pruning_config({"a": WORDS})
    assert len(read_stages(config)) == 1
    divided = dataclasses.replace(config, mesh=dataclasses.replace(config.mesh, sequence=2))
    with pytest.raises(
        ConfigError, match=r"^config\.mesh\.sequence: found 2; allowed: 1 with config\.fine"
    ):
        read_stages(divided)
    with pytest.raises(ConfigError, match=r"^config\.finetune\.pruning\.policy: found 'x'; allowed: influ"):
        check_config(pruning_config({"a": WORDS}, policy="x"))
    with pytest.raises(
        ConfigError, match=r"^config\.finetune\.pruning\.max_pruned: found 0\.9; allowed: 0 w"
    ):
        check_config(dataclasses.replace(pruning_config({}), train=micro_config().train))


def test_a_configuration_without_stages_pretrains():
    assert read_stages(micro_config()) == ()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"lenght": 3}, ".lenght: unknown field of a stage of toy_words; allowed: length, task, rows, "),
        ({"task": "toy"}, ": task: found 'toy'; allowed: "),
        ({"task": ...}, ".task: missing; allowed: "),
        ({"rows": ...}, ".rows: missing"),
        ({"rows": 0}, ".rows: found 0; allowed: at least 1"),
        ({"length": "long"}, ".length: found 'long' (str); allowed: int"),
        ({"steps": ...}, ": found neither epochs nor steps; allowed: one of them, or both"),
        ({"epochs": 0.0}, ".epochs: found 0.0; allowed: more than 0"),
        ({"max_letters": -1}, ".max_letters: found -1; allowed: at least 0"),
        ({"skip_long": 1}, ".skip_long: found 1 (int); allowed: bool"),
        ({"length": 2**24, "rows": 2**10}, ".rows: found 1024; allowed: at most 127 of config.finetune."),
    ],
)
def test_refusals(changed, message):
    stage = {name: value for name, value in (WORDS | changed).items() if value is not ...}
    assert refusal({"a": stage}).startswith(f"config.finetune.stages.a{message}")


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        (WORDS | {"length": ...}, ".length: missing"),
        (WORDS | {"length": "long"}, ".length: found 'long' (str); allowed: int"),
        (WORDS | {"length": None}, ".length: found None"),
        (3, ": found 3; allowed: a section with the fields task, length, rows"),
    ],
)
def test_invalid_stages_of_an_encoder_are_refused(stage, message):
    """The check precedes the reading of stages; the stage is alone or next to a good one."""
    encoder = micro_config(name="bigs", sections=(EncoderConfig(attention_heads=4),)).model
    if stage != 3:
        stage = {name: value for name, value in stage.items() if value is not ...}
    for stages in ({"b": stage}, {"a": WORDS, "b": stage}):
        given = dataclasses.replace(config_with(stages), model=encoder)
        with pytest.raises(ConfigError) as caught:
            read_stages(parse_config(ml_collections.ConfigDict(to_dict(given))))
        assert str(caught.value).startswith(f"config.finetune.stages.b{message}")


def test_a_stage_that_does_not_fit_other_sections_is_named():
    assert refusal({"a": WORDS | {"length": 100}}) == (
        "config.train.loss_chunk: found 32; allowed: a divisor of config.finetune.stages.a.length = 100, "
        "or more than it"
    )
    assert refusal({"b": WORDS | {"rows": 3}}, accumulation_steps=2) == (
        "config.finetune.stages.b.rows: found 3; allowed: a multiple of train.accumulation_steps = 2"
    )


@pytest.mark.parametrize(
    ("batching", "train"),
    [
        ({"rows": 8}, {"accumulation_steps": 3}),
        ({"rows": 8, "workers": 3}, {}),
        ({"length": 100}, {"loss_chunk": 32}),
        ({"rows": 2**20, "length": 2**20}, {"loss_chunk": 2**20}),
    ],
)
def test_fine_tuning_does_not_check_the_batches_of_pre_training(batching, train):
    """The batches of the stages are checked, and errors name the stages' fields."""
    stage = {"task": "toy_words", "length": 96, "rows": 9, "steps": 5}
    given = config_with({"a": stage}, **train)
    batches = dataclasses.replace(given.batching, **batching)
    given = dataclasses.replace(given, batching=batches)
    parsed = parse_config(ml_collections.ConfigDict(to_dict(given)))
    assert [stage.rows for stage in read_stages(parsed)] == [9]
    pretraining = dataclasses.replace(given, finetune=FinetuneConfig())
    pretraining = dataclasses.replace(
        pretraining, train=dataclasses.replace(pretraining.train, num_steps=3)
    )
    with pytest.raises(ConfigError, match=r"batching\.(rows|length)"):
        check_config(pretraining)


def test_workers_must_divide_the_rows_of_a_stage():
    given = config_with({"a": WORDS})
    given = dataclasses.replace(given, batching=dataclasses.replace(given.batching, workers=4, rows=8))
    message = "config.batching.workers: found 4; allowed: a divisor of config.finetune.stages.a.rows = 2"
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        read_stages(given)


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ({"a b": WORDS}, "config.finetune.stages: found 'a b'; allowed: a name of at most 100 letters"),
        (
            {"a": 3},
            "config.finetune.stages.a: found 3; allowed: a section with the fields task, length, rows",
        ),
    ],
)
def test_invalid_stage_sections_are_refused(stages, message):
    assert refusal(stages).startswith(message)


def test_a_stage_that_does_not_fit_memory_is_refused():
    config = config_with({"a": WORDS | {"length": 2**24, "rows": 64}})
    with pytest.raises(
        ConfigError, match=r"config\.finetune\.stages\.a\.\w+: found \d+; allowed: what fits"
    ):
        check_stages(config, read_stages(config))


def sequence_of(stages, **train):
    config = config_with(stages, **train)
    return make_stage_sequence(config, read_stages(config), small_tokenizer())


def test_a_run_has_the_steps_of_its_stages():
    sequence = sequence_of({"1": BACKWARD, "2": WORDS})
    first = sequence.ends[0]
    assert sequence.num_steps == sequence.ends[1] == first + 5
    assert [sequence.find(step) for step in (0, first - 1, first, first + 4)] == [
        *((0, 0), (0, first - 1)),
        *((1, 0), (1, 4)),
    ]
    assert sequence.positions(first - 1, first + 2) == 64 * 4 + 2 * 96 * 2
    assert sequence.positions(0, sequence.num_steps) == first * 64 * 4 + 5 * 96 * 2
    assert sequence_of({"1": BACKWARD, "2": WORDS}, num_steps=3).num_steps == 3


def test_a_run_with_more_steps_than_its_stages_is_refused():
    total = sequence_of({"1": BACKWARD, "2": WORDS}).num_steps
    message = (
        f"config.train.num_steps: found {total + 1}; allowed: at most {total}, the steps of "
        "config.finetune.stages, or 0: all of them"
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        sequence_of({"1": BACKWARD, "2": WORDS}, num_steps=total + 1)


def test_the_identity_depends_on_the_examples():
    identity = sequence_of({"1": BACKWARD}).identity
    assert identity == sequence_of({"1": BACKWARD | {"rows": 2}}).identity
    assert identity != sequence_of({"1": BACKWARD | {"count": 39}}).identity
    assert sequence_of({"2": WORDS}).identity != sequence_of({"2": WORDS | {"max_letters": 8}}).identity


def test_the_identity_depends_on_the_text_of_generated_examples(tmp_path):
    copied = {"task": "copying_by_length", "lengths": (4, 8), "length": 64, "rows": 2, "steps": 5}
    identities = []
    for number in range(2):
        for name in "abcdef":
            (tmp_path / f"{name}.txt").write_text(f"{name} {number} " * 20)
        stage = copied | {"source": str(tmp_path), "validation_fraction": 0.1}
        identities += [sequence_of({"1": stage}).identity for _ in range(2)]
    assert identities[0] == identities[1] != identities[2] == identities[3]


def test_stage_config_has_the_batches_of_the_stage():
    config = config_with({"a": WORDS})
    (stage,) = read_stages(config)
    own = stage_config(config, stage, 77)
    assert (own.batching.rows, own.batching.length, own.train.num_steps) == (2, 96, 77)
    assert dataclasses.replace(own, batching=config.batching, train=config.train) == config
