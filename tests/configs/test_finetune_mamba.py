"""The sizes of Mamba that are fine-tuned are the published ones, and take their parameters."""

import dataclasses
from pathlib import Path

import pytest

from birdie_jax.config import ModelConfig
from birdie_jax.engine.automatic_sizes import count_parameters
from birdie_jax.finetuning.stages import read_stages
from birdie_jax.interop.mamba import MambaSettings, to_config
from tests.configs.test_every_config import load
from tests.configs.test_finetune_phonebook import measured

# GPT-NeoX has 50,277 pieces, and its models 50,280 rows; here the special tokens are before them.
PUBLISHED_ROWS, ROWS = 50_280, 50_560
# What training does not take from a model of another program.
OF_PROMPTS = ("start_token", "min_predicted_id", "max_predicted_id")


@pytest.mark.parametrize(
    ("size", "parameters"),
    [
        ("130m", 129_135_360),
        ("370m", 371_516_416),
        ("790m", 793_204_224),
        ("1_4b", 1_372_178_432),
        ("2_8b", 2_768_345_600),
    ],
)
def test_a_size_is_the_imported_model_of_that_name(size, parameters):
    model = load("finetune_mamba", size).model
    assert count_parameters(model, ROWS) - (ROWS - PUBLISHED_ROWS) * model.features == parameters
    settings = MambaSettings(PUBLISHED_ROWS, model.features, model.layers, model.state)
    imported = to_config(settings, model.dtype, Path("config.json")).model
    default = {name: getattr(ModelConfig(), name) for name in OF_PROMPTS}
    same = {"mlp_features", "scan_implementation", "remat"}
    for field in dataclasses.fields(ModelConfig):
        if field.name not in same:
            expected = default.get(field.name, getattr(imported, field.name))
            assert getattr(model, field.name) == expected, field.name


@pytest.mark.parametrize("size", ["", "tiny"])
def test_the_books_fit_the_rows(size):
    config = load("finetune_mamba", size)
    (stage,) = read_stages(config)
    assert measured(config).max_positions == stage.length == config.batching.length
