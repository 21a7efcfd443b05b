"""Tests that an implementation for another platform is refused before compilation, in one line."""

from dataclasses import replace

import jax
import pytest

from birdie_jax.config import Config, default_config, parse_config
from birdie_jax.engine.mesh import fill_in_sizes
from birdie_jax.errors import ConfigError
from birdie_jax.models import attention, language_model_names
from birdie_jax.models.attention import AttentionConfig
from birdie_jax.models.mamba import MambaConfig
from birdie_jax.models.platforms import check_platform, for_platform
from pallas_kernels import gated_delta_rule, linear_scan, selective_scan
from tests.pages.hardware import FakeDevice, devices_of

PLATFORMS = ("cpu", "gpu", "tpu")
DEVICES = {"cpu": [FakeDevice("cpu", "cpu", 0)], "gpu": devices_of("H200x8"), "tpu": devices_of("v5e-256")}


def config_with(name: str, implementation: str) -> Config:
    """Return the default configuration with a model and the implementation of its mixer."""
    config = Config()
    if name == "transformer":
        # As in a parsed config, without sections of defaults.
        sections = (AttentionConfig(implementation=implementation),) if implementation else ()
        return replace(config, model=replace(config.model, name=name, sections=sections))
    return replace(config, model=replace(config.model, name=name, scan_implementation=implementation))


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("name", language_model_names())
def test_an_implementation_is_refused_where_it_cannot_run(name, platform, monkeypatch):
    """The devices of the platform count as attached."""
    monkeypatch.setattr(jax, "default_backend", lambda: platform)
    field = "model.scan_implementation"
    implementations = known = {"": PLATFORMS, **linear_scan.IMPLEMENTATIONS}
    if name == "transformer":
        field, implementations = "model.attention.implementation", attention.IMPLEMENTATIONS
        known = implementations
    if name == "mamba":
        implementations = {"": PLATFORMS, **selective_scan.IMPLEMENTATIONS}
        assert implementations.keys() == known.keys()
    if name in ("mamba2", "gated_deltanet"):
        implementations = {"": PLATFORMS, **gated_delta_rule.IMPLEMENTATIONS}
        assert implementations.keys() <= known.keys()
    fits = [one for one, of in implementations.items() if platform in of or f"attached {platform}" in of]
    for implementation in known:
        config = config_with(name, implementation)
        if implementation in fits:
            check_platform(config.model, platform)
            continue
        with pytest.raises(ConfigError) as error:
            check_platform(config.model, platform)
        assert str(error.value) == (
            f"config.{field}: found {implementation!r} for devices of {platform}; allowed: "
            f"{', '.join(fits[1:])}, or empty for the best of them"
        )


@pytest.mark.parametrize(
    ("name", "implementation", "platform", "allowed"),
    [
        ("hawk", "pallas_tpu", "cpu", "xla, pallas_interpret"),
        ("hawk", "pallas_tpu", "gpu, not attached", "xla, pallas_interpret"),
        ("gated_ssm", "pallas_gpu", "tpu, not attached", "xla, pallas_tpu, pallas_interpret"),
        ("gated_ssm", "pallas_gpu", "gpu, not attached", "xla, pallas_interpret"),
        ("transformer", "splash", "cpu", "xla, splash_interpret"),
        ("transformer", "cudnn", "gpu, not attached", "xla, splash_interpret"),
        ("transformer", "cudnn", "tpu, not attached", "xla, splash, splash_interpret"),
    ],
)
def test_a_mesh_is_checked_for_the_platform_of_its_devices(name, implementation, platform, allowed):
    """The attached devices do not matter, because a plan may be for other machines."""
    config = config_with(name, implementation)
    field = "attention.implementation" if name == "transformer" else "scan_implementation"
    with pytest.raises(ConfigError) as error:
        fill_in_sizes(config, 0, DEVICES[platform[:3]])
    assert str(error.value) == (
        f"config.model.{field}: found {implementation!r} for devices of {platform}; allowed: {allowed}"
        ", or empty for the best of them"
    )


@pytest.mark.parametrize(
    ("platform", "dtype", "most"),
    [("gpu", "bfloat16", 40), ("tpu", "bfloat16", 128), ("tpu", "float32", 64)],
)
def test_more_states_than_a_kernel_supports_are_refused(monkeypatch, platform, dtype, most):
    monkeypatch.setattr(jax, "default_backend", lambda: platform)
    model = replace(config_with("mamba", f"pallas_{platform}").model, dtype=dtype)
    check_platform(replace(model, sections=(MambaConfig(state_size=most),)), platform)
    model = replace(model, sections=(MambaConfig(state_size=most + 1),))
    with pytest.raises(ConfigError) as error:
        check_platform(model, platform)
    assert str(error.value) == (
        f"config.model.scan_implementation: found 'pallas_{platform}' for devices of {platform}; allowed: "
        f"xla, or empty, with a model.mamba.state_size of more than {most} in {dtype}"
    )
    assert for_platform(model, platform) == replace(model, scan_implementation="")


def test_fields_of_other_mixers_are_not_checked():
    check_platform(config_with("transformer", "").model, "cpu")
    model = replace(config_with("transformer", "").model, scan_implementation="pallas_tpu")
    check_platform(model, "cpu")
    sections = (AttentionConfig(implementation="cudnn"),)
    check_platform(replace(config_with("hawk", "").model, sections=sections), "cpu")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"dtype": "float32"},
            "config.model.dtype: found 'float32'; allowed: bfloat16 for model.attention.implementation "
            "cudnn",
        ),
        (
            {"features": 96},
            "config.model.attention.heads: found 16; allowed: heads of model.features / heads = 8, 16, .. "
            "256 channels for model.attention.implementation cudnn; these have 6",
        ),
        ({}, None),
    ],
)
def test_cudnn_requires_supported_types_and_widths(fields, message):
    config = default_config()
    config.model.update({"name": "transformer", "attention": {"implementation": "cudnn"}} | fields)
    if message is None:
        assert parse_config(config)
        return
    with pytest.raises(ConfigError) as error:
        parse_config(config)
    assert str(error.value) == message


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("name", language_model_names())
def test_a_trained_model_uses_an_implementation_of_the_platform(name, platform):
    known = attention.IMPLEMENTATIONS if name == "transformer" else ("", *linear_scan.IMPLEMENTATIONS)
    for implementation in known:
        model = config_with(name, implementation).model
        here = for_platform(model, platform)
        check_platform(here, platform)
        assert here in (model, config_with(name, "").model)
        if here != model:
            with pytest.raises(ConfigError):
                check_platform(model, platform)
