"""Parameters of a checkpoint are read alone, verified, and checked against the architecture."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from birdie_jax.errors import CheckpointError, ConfigError, DataError
from birdie_jax.generation import Generator
from birdie_jax.trained_model import model_of_workdir
from tests.engine.test_checkpoint import damage
from tests.generation.conftest import some_prompts
from tests.trained_workdirs import micro_config, small_tokenizer, write_workdir


@pytest.fixture
def workdir(tmp_path):
    return tmp_path / "run"


def assert_same(found, wanted):
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_array_equal(one, other)


def test_newest_or_the_requested_step(workdir):
    saved = write_workdir(workdir, micro_config(), steps=(5, 9))
    newest = model_of_workdir(workdir)
    assert_same(newest.params, saved[9])
    assert (newest.step, newest.origin) == (9, f"{workdir} step 9")
    assert [arm.name for arm in newest.arms][:2] == ["causal_lm", "prefix_lm"]
    assert_same(model_of_workdir(workdir, 5).params, saved[5])
    with pytest.raises(CheckpointError) as error:
        model_of_workdir(workdir, 7)
    assert str(error.value) == f"{workdir}/checkpoints: has no checkpoint of step 7; allowed: 5, 9"


@pytest.mark.slow
def test_a_damaged_checkpoint_is_noticed_and_left_where_it_is(workdir, caplog):
    saved = write_workdir(workdir, micro_config(), steps=(5, 9))
    # Of JSON with other names orbax makes no objects, and then misses their attributes.
    metadata = workdir / "checkpoints/00000009/state/array_metadatas/process_0"
    metadata.write_text(metadata.read_text().replace('"array_metadata"', '"metadata"'))
    assert_same(model_of_workdir(workdir).params, saved[5])
    damage(workdir / "checkpoints" / "00000009")
    assert_same(model_of_workdir(workdir).params, saved[5])
    assert f"{workdir}/checkpoints/00000009: the checkpoint is damaged (" in caplog.text
    with pytest.raises(CheckpointError, match=r"checkpoints/00000009: the checkpoint is damaged \("):
        model_of_workdir(workdir, 9)
    damage(workdir / "checkpoints" / "00000005")
    with pytest.raises(CheckpointError, match=r"every checkpoint is damaged \(steps \[5, 9\]\)"):
        model_of_workdir(workdir)
    names = sorted(path.name for path in workdir.iterdir())
    assert names == ["checkpoints", "config.json", "tokenizer.model"]
    assert len(list((workdir / "checkpoints").iterdir())) == 2


def change_config(workdir, **model):
    path = workdir / "config.json"
    config = json.loads(path.read_text())
    config["model"].update(model)
    path.write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("saved", "change", "message"),
    [
        (
            *({}, {"features": 32}),
            "for params/blocks/mixer/convolution/kernel it has float32[1, 4, 16]; "
            "the configuration needs float32[1, 4, 32]",
        ),
        (
            *({}, {"name": "gated_ssm"}),
            "it has params/blocks/mixer/convolution/kernel (float32[1, 4, 16]); the "
            "configuration has no such array",
        ),
        (
            *({}, {"tie_embeddings": False}),
            "for params/head it has nothing; the configuration needs float32[640, 16]",
        ),
        (
            *({"tie_embeddings": False}, {"tie_embeddings": True}),
            "it has params/head (float32[640, 16]); the configuration has no such array",
        ),
    ],
)
def test_a_checkpoint_of_another_architecture(workdir, saved, change, message):
    write_workdir(workdir, micro_config(**saved))
    change_config(workdir, **change)
    with pytest.raises(CheckpointError) as error:
        model_of_workdir(workdir)
    folder = workdir / "checkpoints" / "00000005"
    expected = f"{folder}: a checkpoint of another architecture: {message}. Nothing was changed"
    assert str(error.value) == expected


def test_a_tokenizer_that_does_not_fit_the_weights(workdir):
    write_workdir(workdir, micro_config())
    small_tokenizer(400).save(workdir / "tokenizer.model")
    with pytest.raises(CheckpointError) as error:
        model_of_workdir(workdir)
    assert str(error.value) == (
        f"{workdir}/checkpoints/00000005: the tokenizer does not fit the weights: the embedding table has "
        "640 rows; the tokenizer needs 768"
    )


def test_a_missing_checkpoint_is_named(workdir):
    with pytest.raises(ConfigError) as error:
        model_of_workdir(workdir)
    assert str(error.value) == f"{workdir}/config.json: not found; allowed: the workdir of a run"
    write_workdir(workdir, micro_config(), steps=())
    with pytest.raises(CheckpointError) as error:
        model_of_workdir(workdir)
    assert str(error.value) == (
        f"{workdir}/checkpoints: holds no checkpoint; allowed: the workdir of a run that saved one"
    )
    (workdir / "tokenizer.model").unlink()
    with pytest.raises(DataError, match=r"tokenizer\.model: the tokenizer model cannot be read"):
        model_of_workdir(workdir)


@pytest.mark.slow
def test_a_configuration_of_another_version(workdir, caplog):
    saved = write_workdir(workdir, micro_config())
    path = workdir / "config.json"
    config = json.loads(path.read_text())
    del config["model"]["norm_epsilon"], config["eval"]
    path.write_text(json.dumps(config))
    assert_same(model_of_workdir(workdir).params, saved[5])
    config["model"]["colour"] = "red"
    path.write_text(json.dumps(config))
    assert_same(model_of_workdir(workdir).params, saved[5])
    assert "unknown field config.model.colour; ignored" in caplog.text


@pytest.mark.slow
def test_devices_change_nothing(workdir, two_devices):
    """What one device has saved, a process with two reads, and they divide the prompts among themselves."""
    saved = write_workdir(workdir, dataclasses.replace(micro_config(), seed=3))
    trained = model_of_workdir(workdir)
    assert_same(trained.params, saved[5])
    answers = []
    for devices in (jax.devices()[:1], None):
        generator = Generator(trained.model, trained.params, devices=devices)
        parts = list(generator.generate_chunks(some_prompts(), [9] * 8, [0] * 8))
        answers.append([np.concatenate([part[row] for part in parts]).tolist() for row in range(8)])
    assert answers[0] == answers[1]
