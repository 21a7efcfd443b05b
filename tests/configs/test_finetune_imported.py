"""Mamba, Mamba-2 and RecurrentGemma are fine-tuned in their published sizes, and take their parameters."""

import dataclasses
from pathlib import Path

import pytest

from birdie_jax.config import ModelConfig
from birdie_jax.engine.automatic_sizes import count_parameters
from birdie_jax.finetuning.stages import read_stages
from birdie_jax.interop import mamba, mamba2, recurrent_gemma
from tests.configs.test_every_config import load
from tests.configs.test_finetune_phonebook import measured

# GPT-NeoX has 50,277 pieces, and its models 50,280 rows; here the special tokens are before them.
PUBLISHED_ROWS, ROWS, GEMMA_ROWS = 50_280, 50_560, 256_000
# What training does not take from a model of another program.
OF_PROMPTS = ("start_token", "min_predicted_id", "max_predicted_id")


def check_imported(model, imported, chosen_here):
    """Check that a model is the imported one but for the fields that a configuration chooses."""
    default = {name: getattr(ModelConfig(), name) for name in OF_PROMPTS}
    for field in dataclasses.fields(ModelConfig):
        if field.name not in {"scan_implementation", "remat", *chosen_here}:
            expected = default.get(field.name, getattr(imported, field.name))
            assert getattr(model, field.name) == expected, field.name


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
def test_a_size_of_mamba_is_the_imported_model_of_that_name(size, parameters):
    model = load("finetune_mamba", size).model
    assert count_parameters(model, ROWS) - (ROWS - PUBLISHED_ROWS) * model.features == parameters
    settings = mamba.MambaSettings(PUBLISHED_ROWS, model.features, model.layers, model.state)
    imported = mamba.to_config(settings, model.dtype, Path("config.json")).model
    check_imported(model, imported, {"mlp_features"})


@pytest.mark.parametrize(
    ("size", "parameters"),
    [("130m", 129e6), ("370m", 368e6), ("780m", 780e6), ("1_3b", 1344e6), ("2_7b", 2702e6)],
)
def test_a_size_of_mamba2_is_the_imported_model_of_that_name(size, parameters):
    """Its 50,277 pieces have 50,288 rows there."""
    model = load("finetune_mamba2", size).model
    rows = 50_288
    count = count_parameters(model, ROWS) - (ROWS - rows) * model.features
    assert count == pytest.approx(parameters, rel=1e-3)
    if size == "130m":
        assert count == 128_989_632
    settings = mamba2.Mamba2Settings(
        rows,
        model.features,
        model.layers,
        model.state // 64,
        n_groups=1,
        tie_word_embeddings=True,
        eos_token_id=0,
    )
    imported = mamba2.to_config(settings, model.dtype, Path("config.json")).model
    check_imported(model, imported, {"mlp_features"})


@pytest.mark.parametrize(("size", "parameters", "heads"), [("2b", 2.68e9, 10), ("9b", 8.6e9, 16)])
def test_a_size_of_recurrent_gemma_is_the_imported_model_of_that_name(size, parameters, heads):
    model = load("finetune_recurrent_gemma", size).model
    assert count_parameters(model, GEMMA_ROWS) == pytest.approx(parameters, rel=0.01)
    sizes = (model.features, model.layers, 6 * model.features, heads, 1, model.features)
    settings = recurrent_gemma.RecurrentGemmaSettings(GEMMA_ROWS, *sizes)
    imported = recurrent_gemma.to_config(settings, model.dtype, Path("config.json")).model
    check_imported(model, imported, ())


@pytest.mark.parametrize("size", ["", "tiny"])
@pytest.mark.parametrize("name", ["finetune_mamba", "finetune_mamba2", "finetune_recurrent_gemma"])
def test_the_books_fit_the_rows(name, size):
    config = load(name, size)
    (stage,) = read_stages(config)
    assert measured(config).max_positions == stage.length == config.batching.length
