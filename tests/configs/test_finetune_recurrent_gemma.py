"""The sizes of RecurrentGemma that are fine-tuned are the published ones, and take their parameters."""

import dataclasses
from pathlib import Path

import pytest

from birdie_jax.config import ModelConfig
from birdie_jax.engine.automatic_sizes import count_parameters
from birdie_jax.finetuning.stages import read_stages
from birdie_jax.interop.recurrent_gemma import RecurrentGemmaSettings, to_config
from tests.configs.test_every_config import load
from tests.configs.test_finetune_mamba import OF_PROMPTS
from tests.configs.test_finetune_phonebook import measured

PUBLISHED_ROWS = 256_000


@pytest.mark.parametrize(("size", "parameters"), [("2b", 2.68e9), ("9b", 8.6e9)])
def test_a_size_is_the_imported_model_of_that_name(size, parameters):
    model = load("finetune_recurrent_gemma", size).model
    assert count_parameters(model, PUBLISHED_ROWS) == pytest.approx(parameters, rel=0.01)
    heads = {"2b": 10, "9b": 16}[size]
    wide = 6 * model.features
    settings = RecurrentGemmaSettings(
        PUBLISHED_ROWS, model.features, model.layers, wide, heads, 1, model.features
    )
    imported = to_config(settings, model.dtype, Path("config.json")).model
    default = {name: getattr(ModelConfig(), name) for name in OF_PROMPTS}
    for field in dataclasses.fields(ModelConfig):
        if field.name not in {"scan_implementation", "remat"}:
            expected = default.get(field.name, getattr(imported, field.name))
            assert getattr(model, field.name) == expected, field.name


@pytest.mark.parametrize("size", ["", "tiny"])
def test_the_books_fit_the_rows(size):
    config = load("finetune_recurrent_gemma", size)
    (stage,) = read_stages(config)
    assert measured(config).max_positions == stage.length == config.batching.length
