"""Checks that the implementations of a configuration compile for a platform.

`pallas_kernels.linear_scan.IMPLEMENTATIONS` and `birdie_jax.models.attention.IMPLEMENTATIONS` list the
platforms of each implementation.
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import jax

from birdie_jax.config_sections import ModelConfig, Require
from birdie_jax.errors import ConfigError, shown
from birdie_jax.models.registry import mixer_config, mixer_sections


def check_platform(model: ModelConfig, platform: str) -> None:
    """Check that a model compiles for devices of `platform`, which need not be attached.

    Args:
        model: the architecture.
        platform: "cpu", "gpu" or "tpu".

    Raises:
        ConfigError: the configured implementation of its mixer is for other platforms.
    """

    def require(condition: bool, field: str, allowed: str) -> None:
        if not condition:
            found = shown(_value(model, field))
            devices = platform if platform == jax.default_backend() else f"{platform}, not attached"
            raise ConfigError(f"config.{field}: found {found} for devices of {devices}; allowed: {allowed}")

    mixer_config(model).check_platform(model, platform, require)


def for_platform(model: ModelConfig, platform: str) -> ModelConfig:
    """Return `model` without the implementations that are not available on `platform`.

    Parameters are the same for every implementation. A model that was trained with a kernel for TPUs uses
    the best available implementation elsewhere.

    Args:
        model: the architecture.
        platform: "cpu", "gpu" or "tpu".
    """
    left: list[str] = []

    def note(condition: bool, field: str, allowed: str) -> None:
        del allowed
        if not condition:
            left.append(field)

    mixer_config(model).check_platform(model, platform, note)
    for field in left:
        _, *section, name = field.split(".")
        if not section:
            model = replace(model, **{name: ""})
            continue
        mixers = [model.section(kind) for kind in mixer_sections() if kind.section != section[0]]
        changed = [
            replace(model.section(kind), **{name: ""})
            for kind in mixer_sections()
            if kind.section == section[0]
        ]
        model = replace(
            model, sections=tuple(mixer for mixer in mixers + changed if mixer != type(mixer)())
        )
    return model


def check_implementation(
    require: Require,
    field: str,
    value: str,
    implementations: Mapping[str, tuple[str, ...]],
    platform: str,
) -> None:
    """Check that the implementation of a field is available for `platform`.

    Args:
        require: the argument of `MixerConfig.check_platform`.
        field: the path of the field below `config`.
        value: its value; empty = the best implementation for the platform.
        implementations: the platforms of each implementation. "attached gpu" is a GPU of this machine; a
            plan for other machines has none.
        platform: the platform of the devices.
    """
    platforms = {platform}
    if platform == jax.default_backend():
        platforms.add(f"attached {platform}")
    fits = [name for name, of in implementations.items() if platforms.intersection(of) and name]
    require(value in ("", *fits), field, f"{', '.join(fits)}, or empty for the best of them")


def _value(model: ModelConfig, field: str) -> Any:
    """Return the value of a field of `config.model` or of a mixer's section."""
    sections = {kind.section: model.section(kind) for kind in mixer_sections()}
    found: Any = {one.name: getattr(model, one.name) for one in fields(model)} | sections
    first, *rest = field.split(".")[1:]
    found = found[first]
    for name in rest:
        found = getattr(found, name)
    return found
