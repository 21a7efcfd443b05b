"""Tests which fields of a model define its computation, and which may differ."""

import dataclasses

import pytest

from birdie_jax.config import ModelConfig
from birdie_jax.models.attention import AttentionConfig
from birdie_jax.models.birdie_ssm import BirdieSSMConfig
from birdie_jax.models.computation import computation_differences
from birdie_jax.models.encoder_config import EncoderConfig
from birdie_jax.models.griffin import GriffinConfig
from birdie_jax.models.registry import mixer_config, mixer_sections


def model(name, *sections, **fields):
    return ModelConfig(name=name, sections=sections, **fields)


@pytest.mark.parametrize(
    ("one", "other", "different"),
    [
        (model("hawk"), model("hawk", norm_epsilon=1e-5), [("norm_epsilon", 1e-6, 1e-5)]),
        (model("hawk"), model("hawk", bidirectional=False), [("bidirectional", True, False)]),
        (model("hawk"), model("hawk", embedding_scale=1.0), [("embedding_scale", 2048**0.5, 1.0)]),
        (
            model("birdie_ssm"),
            model("birdie_ssm", BirdieSSMConfig(input_activation="gelu")),
            [("birdie_ssm.input_activation", "tanh", "gelu")],
        ),
        (
            model("transformer", AttentionConfig(heads=8)),
            model("transformer", AttentionConfig(rope_base=1e4, window=64)),
            [("attention.heads", 8, 16), ("attention.rope_base", 5e5, 1e4), ("attention.window", 0, 64)],
        ),
        (model("griffin"), model("griffin", AttentionConfig(window=64)), [("attention.window", 0, 64)]),
        (
            model("bigs"),
            model("bigs", EncoderConfig(combination="sum", activation="exact")),
            [("encoder.activation", "tanh", "exact"), ("encoder.combination", "product", "sum")],
        ),
        (
            model("stack_ssm", EncoderConfig(combination="serial")),
            model("stack_ssm"),
            [("encoder.combination", "serial", "sum")],
        ),
        (model("hawk"), model("hawk_mlp"), [("name", "hawk", "hawk_mlp")]),
    ],
)
def test_differences_in_computation_are_named(one, other, different):
    assert computation_differences(one, other) == different


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            model("hawk"),
            model("hawk", dropout=0.1, dtype="float32", remat="none", scan_implementation="xla"),
        ),
        (model("hawk"), model("hawk", start_token=False, end_token=257, min_predicted_id=256)),
        (model("hawk"), model("hawk", embedding_scale=2048**0.5)),
        (model("hawk"), model("hawk", head="classification", head_name="label", head_outputs=2)),
        # Fields of other mixers.
        (model("hawk"), model("hawk", EncoderConfig(combination="sum"), AttentionConfig(window=64))),
        (model("bigs"), model("bigs", EncoderConfig(combination="product", attention_heads=8))),
        (
            model("bigs"),
            model("bigs", EncoderConfig(positions=4096, ssm_form="chunked", kernel_deviation=0.04)),
        ),
        (model("stack_attention"), model("stack_attention", EncoderConfig(combination="serial"))),
        (model("transformer"), model("transformer", AttentionConfig(kv_heads=16, implementation="xla"))),
        (model("griffin"), model("griffin", GriffinConfig(pattern="recurrent, recurrent, attention"))),
    ],
)
def test_other_fields_do_not_change_the_computation(one, other):
    assert computation_differences(one, other) == []


def test_free_fields_exist():
    for section in (ModelConfig, *mixer_sections()):
        assert section.free_fields <= {field.name for field in dataclasses.fields(section)}, section
    assert mixer_config(model("mamba")).computation(model("mamba")) == {}
