"""A workdir belongs to one configuration."""

import dataclasses
import json

import pytest

from birdie_jax.config import CheckpointConfig, Config, ConfigError, OptimizerConfig
from birdie_jax.training.workdir import claim_workdir


def test_claims_a_new_folder_and_knows_it_again(tmp_path):
    claim_workdir(tmp_path / "deep" / "run", Config())
    claim_workdir(tmp_path / "deep" / "run", Config())
    written = json.loads((tmp_path / "deep" / "run" / "config.json").read_text())
    assert written["batching"]["rows"] == 512


def test_refuses_another_configuration_and_names_every_field(tmp_path):
    claim_workdir(tmp_path, Config())
    other = Config(seed=3, optimizer=OptimizerConfig(learning_rate=2e-3))
    with pytest.raises(ConfigError) as error:
        claim_workdir(tmp_path, other)
    assert str(error.value).splitlines() == [
        f"{tmp_path}: holds a run of another configuration; use another workdir, or its values:",
        "  config.optimizer.learning_rate: the run has 0.001, asked for is 0.002",
        "  config.seed: the run has 0, asked for is 3",
    ]
    assert json.loads((tmp_path / "config.json").read_text())["seed"] == 0


def test_what_does_not_change_the_run_may_differ(tmp_path):
    claim_workdir(tmp_path, Config())
    claim_workdir(tmp_path, dataclasses.replace(Config(), checkpoint=CheckpointConfig(every_steps=7)))


def test_damaged_config_file(tmp_path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"config\.json: cannot be used: "):
        claim_workdir(tmp_path, Config())


def test_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be used"):
        claim_workdir(tmp_path / "file" / "run", Config())
