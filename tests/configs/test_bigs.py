"""The recipes of "Pretraining Without Attention" have its sizes, its tokens and its optimizers."""

from dataclasses import replace
from itertools import product

import pytest

from birdie_jax.engine.automatic_sizes import count_parameters
from birdie_jax.engine.mesh import fill_in_sizes
from birdie_jax.errors import ConfigError
from birdie_jax.models import encoder_names
from birdie_jax.models.encoder_config import EncoderConfig
from birdie_jax.resolve import configured_mixture
from birdie_jax.vocabulary import NUM_SPECIAL_TOKENS, padded_vocab_size
from tests.configs.test_every_config import load, tokens
from tests.pages.hardware import devices_of, gpus, tpus

SIZES = ("11b", "29b", "97b", "119m")
BERT_VOCABULARY = 30_522


def parameters(config):
    return count_parameters(config.model, BERT_VOCABULARY)


def test_the_sizes_are_those_of_the_paper():
    assert parameters(load("bigs")) == 346_314_134
    assert parameters(load("bigs_longer_rows", "4096")) == 119_350_890
    for name in encoder_names():
        assert parameters(load("bigs", f"11b,{name}")) == pytest.approx(346e6, rel=0.04)
    config = load("bigs")
    assert config.data.vocab_size + NUM_SPECIAL_TOKENS == BERT_VOCABULARY
    assert config.model.section(EncoderConfig).token_types == 2


def test_the_tokens_are_those_of_the_paper():
    found = {size: tokens(load("bigs", size)) / 1e9 for size in SIZES[:3]}
    assert found == pytest.approx({"11b": 11, "29b": 29, "97b": 97}, rel=0.03)
    assert load("bigs", "119m").train.num_steps == 500_000
    longer = load("bigs_longer_rows")
    assert (longer.batching.rows * longer.batching.length, longer.train.num_steps) == (53_248, 10_000)
    assert (longer.optimizer.learning_rate, load("bigs_longer_rows", "4096").optimizer.learning_rate) == (
        4e-5,
        3e-5,
    )


@pytest.mark.parametrize("size", SIZES)
def test_cells_differ_in_model_and_optimizer_alone(size):
    configs = {name: load("bigs", f"{size},{name}") for name in encoder_names()}
    same = [replace(one, model=configs["bigs"].model) for one in configs.values()]
    bert = configs["stack_attention"].optimizer
    assert (bert.schedule, bert.learning_rate, bert.final_learning_rate) == ("linear", 4e-4, 0)
    assert (bert.weight_decay, bert.warmup_steps) == (0.01, configs["bigs"].train.num_steps / 50)
    others = [one for one in same if one.optimizer != bert]
    assert len(others) == 3
    assert all(one == others[0] for one in others)
    optimizer = others[0].optimizer
    assert (optimizer.schedule, optimizer.learning_rate, optimizer.weight_decay) == ("cosine", 6e-4, 0.05)
    assert optimizer.warmup_steps == others[0].train.num_steps / 100
    assert (optimizer.beta1, optimizer.beta2, optimizer.epsilon, optimizer.clip_norm) == (
        0.9,
        0.98,
        1e-6,
        0,
    )


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("name", "variant"),
    [
        (name, f"{size},{model}")
        for name, sizes in (("bigs", SIZES), ("bigs_longer_rows", ("512", "4096")))
        for size, model in product(sizes, encoder_names())
    ],
)
def test_every_variant_trains_on_eight_devices(name, variant):
    config = load(name, variant)
    assert [arm.name for arm in configured_mixture(config).arms] == ["masked_lm"]
    for devices in (
        devices_of("A100x8"),
        tpus("TPU v5 lite", 8),
        tpus("TPU v5", 8),
        gpus("NVIDIA H200", 4),
    ):
        sized = fill_in_sizes(config, 0, devices).config
        fill_in_sizes(sized, padded_vocab_size(config.data.vocab_size), devices)


@pytest.mark.parametrize(("variant", "size"), [("512", "97b"), ("4096", "119m")])
def test_longer_rows_change_nothing_of_the_model_but_its_positions(variant, size):
    for model in encoder_names():
        longer, shorter = load("bigs_longer_rows", f"{variant},{model}"), load("bigs", f"{size},{model}")
        sections = [replace(longer.model.section(EncoderConfig), positions=128)]
        assert longer.model.section(EncoderConfig).positions == longer.batching.length == int(variant)
        assert sections == [shorter.model.section(EncoderConfig)]
        assert replace(longer.model, sections=shorter.model.sections) == shorter.model


@pytest.mark.parametrize(("name", "first"), [("bigs", "11b"), ("bigs_longer_rows", "512")])
def test_variants_are_those_that_are_named(name, first):
    assert load(name) == load(name, f"{first},bigs")
    with pytest.raises(ConfigError, match=r"^config variant 'llama' is unknown; allowed: \d"):
        load(name, "llama")
    allowed = ", ".join(encoder_names())
    with pytest.raises(ConfigError, match=f"^config variant 'hawk' is unknown; allowed: {allowed}$"):
        load(name, f"{first},hawk")
