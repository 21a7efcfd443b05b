"""Every file of configs/ in every variant is a configuration that can be trained, of the size it claims."""

import importlib.util
import re
from dataclasses import replace
from math import prod
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from birdie_jax.batching.packing import empty_rows
from birdie_jax.config import Config, parse_config
from birdie_jax.models import build_model, model_names
from birdie_jax.models.attention import AttentionConfig
from birdie_jax.models.hawk import HawkConfig
from birdie_jax.models.registry import mixer_config
from birdie_jax.pretraining.mixture import configured_mixture
from birdie_jax.vocabulary import padded_vocab_size

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
SIZES = ("1_4b", "400m", "110m", "tiny")
PRESETS = {"birdie_1_4b": 1.4e9, "birdie_400m": 400e6, "birdie_110m": 110e6}
VARIANTS = {
    **{name: model_names() for name in ("tiny", *PRESETS)},
    **{
        f"ablation_{name}": SIZES for name in ("birdie", "birdie_causal", "causal_lm", "fixed_ratio", "ul2")
    },
}


def load(name: str, variant: str = "") -> Config:
    """Load as ml_collections does, by the path alone."""
    spec = importlib.util.spec_from_file_location("config_under_test", CONFIGS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return parse_config(module.get_config(variant) if variant else module.get_config())


def count_parameters(config: Config) -> int:
    model = build_model(config.model, padded_vocab_size(config.data.vocab_size))
    batch = jax.tree.map(jnp.asarray, empty_rows(1, 8))
    shapes = jax.eval_shape(model.init, jax.random.key(0), batch)
    return sum(prod(leaf.shape) for leaf in jax.tree.leaves(shapes))


def test_no_file_is_forgotten():
    assert {path.stem for path in CONFIGS.glob("*.py")} == set(VARIANTS)


@pytest.mark.parametrize(("name", "variant"), [(name, v) for name, vs in VARIANTS.items() for v in vs])
def test_every_variant_has_a_mixture_that_fits_its_rows(name, variant):
    assert configured_mixture(load(name, variant)).arms


@pytest.mark.parametrize("name", VARIANTS)
def test_no_variant_is_the_first_one(name):
    assert load(name) == load(name, VARIANTS[name][0])


@pytest.mark.parametrize("name", VARIANTS)
def test_an_unknown_variant_is_refused(name):
    message = f"config variant 'llama' is unknown; allowed: {', '.join(VARIANTS[name])}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        load(name, "llama")


@pytest.mark.parametrize("model", model_names())
@pytest.mark.parametrize("name", PRESETS)
def test_presets_have_the_parameters_that_they_are_named_for(name, model):
    config = load(name, model)
    assert config.model.name == model
    assert count_parameters(config) == pytest.approx(PRESETS[name], rel=0.015)


@pytest.mark.parametrize("model", model_names())
@pytest.mark.parametrize("name", PRESETS)
def test_presets_have_widths_that_tile(name, model):
    settings = load(name, model).model
    assert settings.features % 256 == settings.state % 256 == settings.mlp_features % 256 == 0
    assert settings.state // 2 % 128 == 0
    mixer = mixer_config(settings)
    if isinstance(mixer, HawkConfig):
        assert settings.state // mixer.heads in (64, 128)
    if isinstance(mixer, AttentionConfig):
        assert settings.features // mixer.heads in (64, 128)


def test_the_paper_trains_32_billion_tokens_in_batches_of_520_rows():
    config = load("birdie_1_4b")
    tokens = config.batching.rows * config.batching.length * config.train.num_steps
    assert (config.batching.rows, config.batching.length) == (520, 2048)
    assert tokens == pytest.approx(33e9, rel=0.05)


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
