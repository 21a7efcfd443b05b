"""Every file of configs/ in every variant is a configuration that can be trained, of the size it claims."""

import importlib.util
import re
from dataclasses import replace
from math import prod
from pathlib import Path

import pytest

from birdie_jax.config import Config, corpora_of, parse_config
from birdie_jax.engine.automatic_sizes import count_parameters
from birdie_jax.engine.mesh import fill_in_sizes
from birdie_jax.finetuning.stages import read_stages, stage_config
from birdie_jax.models import encoder_names, language_model_names
from birdie_jax.models.attention import AttentionConfig
from birdie_jax.models.hawk import HawkConfig
from birdie_jax.models.layer_stacks import pattern_configs
from birdie_jax.models.registry import mixer_config
from birdie_jax.resolve import configured_mixture
from birdie_jax.text import open_source
from birdie_jax.vocabulary import padded_vocab_size
from tests.pages.hardware import MACHINES, devices_of, gpus

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
SIZES = ("1_4b", "400m", "110m", "tiny")
PRESETS = {"birdie_1_4b": 1.4e9, "birdie_400m": 400e6, "birdie_110m": 110e6}
VARIANTS = {
    **{name: language_model_names() for name in ("tiny", *PRESETS)},
    "bigs_tiny": encoder_names() + language_model_names(),
    **{
        f"ablation_{name}": SIZES for name in ("birdie", "birdie_causal", "causal_lm", "fixed_ratio", "ul2")
    },
}
FINE_TUNING = {"instruction_tuning": SIZES}


def load(name: str, variant: str = "") -> Config:
    """Load as ml_collections does, by the path alone."""
    spec = importlib.util.spec_from_file_location("config_under_test", CONFIGS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return parse_config(module.get_config(variant) if variant else module.get_config())


def test_every_configuration_is_tested():
    files = {path.stem for path in CONFIGS.glob("*.py")}
    # These have tests of their own.
    others = {"tiny_corpora", "bigs", "bigs_longer_rows", "finetune_phonebook", "finetune_glue"}
    others |= {"finetune_mamba", "finetune_mamba2", "finetune_recurrent_gemma", "finetune_reading"}
    assert files == {*VARIANTS, *FINE_TUNING, *others}


def test_tiny_corpora_has_its_corpora():
    config = load("tiny_corpora")
    assert configured_mixture(config).arms
    sources = [open_source(corpus.source, "text") for corpus in corpora_of(config.data).values()]
    assert min(source.total_bytes for source in sources) > 200_000


@pytest.mark.sampled(16)
@pytest.mark.parametrize(("name", "variant"), [(name, v) for name, vs in VARIANTS.items() for v in vs])
def test_every_variant_has_a_mixture_that_fits_its_rows(name, variant):
    assert configured_mixture(load(name, variant)).arms


@pytest.mark.parametrize("name", [*VARIANTS, *FINE_TUNING])
def test_no_variant_is_the_first_one(name):
    assert load(name) == load(name, (VARIANTS | FINE_TUNING)[name][0])


@pytest.mark.parametrize(("name", "variant"), [(name, v) for name, vs in FINE_TUNING.items() for v in vs])
def test_every_variant_has_stages_of_growing_length_that_fit_eight_gpus(name, variant):
    config = load(name, variant)
    stages = read_stages(config)
    assert [stage.length for stage in stages] == sorted(stage.length for stage in stages)
    assert len({stage.rows * stage.length for stage in stages}) == 1
    devices = devices_of("A100x8")
    for stage in stages:
        sized = fill_in_sizes(stage_config(config, stage), 0, devices).config
        fill_in_sizes(sized, padded_vocab_size(config.data.vocab_size), devices)


@pytest.mark.parametrize("size", SIZES)
def test_instruction_tuning_trains_the_models_of_the_presets(size):
    config = load("instruction_tuning", size)
    preset = load("tiny" if size == "tiny" else f"birdie_{size}")
    assert replace(config.model, dropout=0.0) == preset.model
    assert (config.optimizer.weight_decay, config.optimizer.learning_rate) == (0.0, 3e-4)
    assert config.model.dropout > 0


@pytest.mark.parametrize("name", [*VARIANTS, *FINE_TUNING])
def test_an_unknown_variant_is_refused(name):
    message = f"config variant 'llama' is unknown; allowed: {', '.join((VARIANTS | FINE_TUNING)[name])}"
    if name in PRESETS:
        message += "; each also with ,paper"
    elif name.startswith("ablation_"):
        message += "; each also with ,paper (not tiny)"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        load(name, "llama")


@pytest.mark.sampled(9)
@pytest.mark.parametrize("model", language_model_names())
@pytest.mark.parametrize("name", PRESETS)
def test_presets_have_the_parameters_that_they_are_named_for(name, model):
    config = load(name, model)
    assert config.model.name == model
    assert count_parameters(config.model, padded_vocab_size(config.data.vocab_size)) == pytest.approx(
        PRESETS[name], rel=0.015
    )


@pytest.mark.parametrize("model", language_model_names())
@pytest.mark.parametrize("name", PRESETS)
def test_presets_have_widths_that_tile(name, model):
    settings = load(name, model).model
    assert settings.features % 256 == settings.state % 256 == settings.mlp_features % 256 == 0
    assert settings.state // 2 % 128 == 0
    for mixer in map(mixer_config, pattern_configs(settings)):
        if isinstance(mixer, HawkConfig):
            assert settings.state // mixer.heads in (64, 128)
        if isinstance(mixer, AttentionConfig):
            assert settings.features // mixer.heads in (64, 128)


@pytest.mark.sampled(24)
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("model", language_model_names())
@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_runs_unchanged_on_every_machine(name, model, machine):
    config, devices = load(name, model), devices_of(machine)
    sized = fill_in_sizes(config, 0, devices).config
    sizes = fill_in_sizes(sized, padded_vocab_size(config.data.vocab_size), devices).mesh_sizes
    assert prod(sizes.values()) == len(devices)
    rows = 512 // (sizes["data"] * sizes["fsdp"] * sized.train.accumulation_steps)
    assert rows >= min(8, 512 // len(devices))


def test_the_largest_preset_shares_its_state_where_a_device_has_too_little_memory():
    preset = load("birdie_1_4b")
    sizes = {machine: fill_in_sizes(preset, 0, devices_of(machine)).mesh_sizes for machine in MACHINES}
    shared = {machine: found["fsdp"] for machine, found in sizes.items() if found["fsdp"] > 1}
    assert shared == {"v4-128": 2, "v5e-256": 4}


def tokens(config: Config) -> int:
    return config.batching.rows * config.batching.length * config.train.num_steps


def test_the_paper_trains_on_32_billion_tokens_in_batches_of_520_rows():
    config = load("birdie_1_4b", "paper")
    assert (config.batching.rows, config.batching.length) == (520, 2048)
    assert tokens(config) == pytest.approx(33e9, rel=0.05)
    devices = gpus("NVIDIA A100-SXM4-80GB", 20, per_host=4)
    assert fill_in_sizes(config, 0, devices).mesh_sizes["data"] == 20
    assert tokens(load("birdie_1_4b")) == pytest.approx(tokens(config), rel=0.02)


@pytest.mark.parametrize("name", ["birdie_400m", "birdie_110m"])
def test_smaller_presets_decide_as_often_for_their_tokens(name):
    large, small = load("birdie_1_4b"), load(name)
    assert tokens(small) == tokens(large) / 4
    assert small.bandit.every_steps == large.bandit.every_steps / 2


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", [name for name in VARIANTS if not name.endswith("tiny")])
def test_the_papers_batch_is_a_variant_of_every_variant(name):
    for variant in VARIANTS[name]:
        if variant != "tiny":
            plain, paper = load(name, variant), load(name, f"{variant},paper")
            assert (plain.batching.rows, plain.train.accumulation_steps) == (512, 0)
            assert (paper.batching.rows, paper.train.accumulation_steps) == (520, 2)
            batching = replace(paper.batching, rows=512)
            assert replace(paper, batching=batching, train=plain.train) == plain
    assert load(name, "paper") == load(name, f"{VARIANTS[name][0]},paper")


@pytest.mark.parametrize("size", SIZES)
def test_ablations_differ_in_nothing_but_what_they_ablate(size):
    ablated, rest = {}, []
    for name in (name for name in VARIANTS if name.startswith("ablation_")):
        config = load(name, size)
        ablated[name] = (config.objectives.mixture, config.bandit.policy, config.model.bidirectional)
        rest.append(
            replace(
                config,
                objectives=replace(config.objectives, mixture=""),
                bandit=replace(config.bandit, policy=""),
                model=replace(config.model, bidirectional=True),
            )
        )
    assert ablated == {
        "ablation_birdie": ("birdie", "birdie", True),
        "ablation_birdie_causal": ("birdie", "birdie", False),
        "ablation_causal_lm": ("causal_lm", "fixed", True),
        "ablation_fixed_ratio": ("bfr", "fixed", True),
        "ablation_ul2": ("ul2", "fixed", True),
    }
    assert all(config == rest[0] for config in rest)
    assert rest[0].model == load({"tiny": "tiny"}.get(size, f"birdie_{size}"), "gated_ssm").model
