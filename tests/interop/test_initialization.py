"""`init.from` loads parameters by name from a run, a checkpoint or an export, and logs the others."""

import os
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding

from birdie_jax.engine.checkpoint_format import named_leaves
from birdie_jax.errors import ConfigError
from birdie_jax.interop import write_model
from birdie_jax.interop.initialization import check_source, config_of_source, read_initial_parameters
from birdie_jax.models import build_model
from birdie_jax.models.encoder_config import EncoderConfig
from birdie_jax.models.language_model import parameter_shapes
from birdie_jax.models.parameters import parameter_policies
from tests.trained_workdirs import micro_config, small_tokenizer, write_workdir
from tests.whole_runs import REPOSITORY, checkpoint_arrays, finish, train_command, write_corpus

SHA256 = small_tokenizer().sha256


def abstract(config):
    here = SingleDeviceSharding(jax.devices()[0])
    shapes = parameter_shapes(build_model(config.model, small_tokenizer().vocab_size))
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=here), shapes)


def read(path, config):
    policies = parameter_policies(build_model(config.model, small_tokenizer().vocab_size))
    return read_initial_parameters(str(path), abstract(config), SHA256, policies)


def encoder_config(positions, **model):
    """Return the configuration of an encoder with a table of `positions` rows."""
    section = EncoderConfig(positions=positions, ssm_state=4)
    return micro_config(name="bigs", sections=(section,), **model)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A workdir with two checkpoints, an export of the second, and the parameters of both."""
    folder = tmp_path_factory.mktemp("source")
    config = micro_config()
    saved = write_workdir(folder / "run", config, steps=(5, 9))
    write_model(folder / "export", config, saved[9], small_tokenizer(), 9)
    return folder, saved


@pytest.mark.parametrize(("path", "step"), [("run", 9), ("run/checkpoints/00000005", 5), ("export", 9)])
def test_every_kind_of_source_restores_the_saved_parameters(source, path, step):
    folder, saved = source
    initial = read(folder / path, micro_config())
    params = initial.put_into(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), abstract(micro_config())))
    jax.tree.map(np.testing.assert_array_equal, params, saved[step])
    assert initial.origin.endswith(f"step {step}")
    assert (initial.left, initial.new, initial.resized) == ({}, {}, {})
    assert config_of_source(str(folder / path)) == micro_config()


def test_a_workdir_without_a_configuration_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"config\.json: not found; allowed: the workdir of a run, "):
        config_of_source(str(tmp_path))


def test_mismatched_parameters_are_skipped_and_logged(source):
    folder, saved = source
    initial = read(folder / "run", micro_config(mlp_features=32, tie_embeddings=False))
    assert initial.new["head"] == "float32[640, 16]"
    assert initial.new["blocks/mlp/in/kernel"] == "float32[1, 16, 32]"
    assert initial.left["blocks/mlp/in/kernel"] == ("float32[1, 16, 16], this model has float32[1, 16, 32]")
    lines = initial.table().splitlines()
    assert lines[0].startswith(f"init.from: {folder / 'run'} step 9: loaded {len(initial.loaded)} arrays, ")
    assert "  new     head  float32[640, 16]" in lines
    assert "  loaded  embedding  float32[640, 16]" in lines
    np.testing.assert_array_equal(initial.loaded["embedding"], saved[9]["embedding"])
    initial = read(folder / "run", micro_config(name="gated_ssm"))
    assert initial.left["blocks/mlp/in/kernel"] == ("float32[1, 16, 16], not in this model")


def test_invalid_sources_are_refused(source, tmp_path):
    folder, _ = source
    target = abstract(micro_config())
    with pytest.raises(ConfigError, match=r"init\.from: .* was trained with another tokenizer"):
        read_initial_parameters(str(folder / "run"), target, small_tokenizer(400).sha256, {})
    for absent in (tmp_path, folder / "run" / "checkpoints" / "00000007"):
        with pytest.raises(ConfigError, match=r"which holds no checkpoint; allowed: the workdir of a run"):
            check_source(str(absent), name_checkpoint=False)
    nothing = {"other": target["embedding"]}
    with pytest.raises(ConfigError, match="no parameter matches one of this model in name and shape"):
        read_initial_parameters(str(folder / "run"), nothing, SHA256, {})


@pytest.fixture(scope="module")
def encoder_source(tmp_path_factory):
    """A workdir of an encoder of 128 positions, its export, and its parameters."""
    folder = tmp_path_factory.mktemp("encoder")
    config = encoder_config(128)
    saved = write_workdir(folder / "run", config)
    write_model(folder / "export", config, saved[5], small_tokenizer(), 5)
    return folder, saved[5]


@pytest.mark.parametrize(
    ("path", "positions", "how"),
    [("run", 300, "the 128 rows repeated"), ("export", 50, "the first of 128")],
)
def test_a_table_of_positions_is_resized(encoder_source, path, positions, how):
    folder, saved = encoder_source
    initial = read(folder / path, encoder_config(positions))
    assert (initial.left, initial.new) == ({}, {})
    words = f"float32[{positions}, 16], {how}"
    assert initial.resized == {"position_embedding": words}
    assert f"  resized position_embedding  {words}" in initial.table().splitlines()
    table = np.asarray(saved["position_embedding"])
    expected = np.stack([table[place % 128] for place in range(positions)])
    np.testing.assert_array_equal(initial.loaded["position_embedding"], expected)
    others = {name for name in initial.loaded if name != "position_embedding"}
    assert {"embedding", "blocks/mixer/routing/forward_ssm/C"} <= others
    for name in others:
        np.testing.assert_array_equal(initial.loaded[name], named_leaves(saved)[name])


def test_a_table_of_positions_of_another_width_is_refused(encoder_source):
    source = encoder_source[0] / "run"
    message = (
        f"config.init.from: found {source}, whose position_embedding is float32[128, 16]; this model's"
    )
    with pytest.raises(ConfigError, match=re.escape(f"{message} is float32[300, 32]; allowed: ")):
        read(source, encoder_config(300, features=32))


def test_check_source_names_a_checkpoint(source):
    folder, _ = source
    run, export = str(folder / "run"), str(folder / "export")
    assert check_source(run, name_checkpoint=False) == run
    assert check_source(run, name_checkpoint=True) == f"{run}/checkpoints/00000009"
    assert check_source(f"{run}/checkpoints/00000005", name_checkpoint=True).endswith("/00000005")
    assert check_source(export, name_checkpoint=True) == export


@pytest.mark.slow
def test_a_run_starts_with_the_parameters_of_another_run(tmp_path):
    corpus = write_corpus(tmp_path)
    first, second = tmp_path / "first", tmp_path / "second"
    fixed = ("--config.train.num_steps=2", "--config.eval.rows=1")
    status, output = finish(train_command(first, corpus, *fixed, variant="fixed"))
    assert status == 0, output
    # With this rate, an update is below the rounding error.
    slow = ("--config.optimizer.learning_rate=1e-30", "--config.optimizer.final_learning_rate=0.0")
    command = train_command(
        second,
        corpus,
        *fixed,
        *slow,
        "--config.model.norm_epsilon=1e-5",
        f"--config.init.from={os.path.relpath(first, REPOSITORY)}",
        variant="fixed",
    )
    status, output = finish(command)
    assert status == 0, output
    assert re.search(r"init\.from: \.\./.*/first step 2: loaded", output), output
    assert "computes differently: config.model.norm_epsilon: it has 1e-06, this run 1e-05\n" in output
    found, expected = checkpoint_arrays(second, 2), checkpoint_arrays(first, 2)
    params = [name for name in expected if name.startswith("state/params/")]
    assert params
    for name in params:
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)
    # A run that resumes reads its own checkpoint.
    status, output = finish(command)
    assert status == 0, output
    assert "init.from:" not in output
