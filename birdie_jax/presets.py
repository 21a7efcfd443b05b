"""What the files in configs/ share; they are loaded by path and cannot import one another."""

import runpy
from collections.abc import Sequence
from pathlib import Path

import ml_collections

from birdie_jax.config import ConfigError
from birdie_jax.models.registry import model_names

_SIZES = {"1_4b": "birdie_1_4b.py", "400m": "birdie_400m.py", "110m": "birdie_110m.py", "tiny": "tiny.py"}


def choose_variant(variant: str, allowed: Sequence[str]) -> str:
    """Return `variant`, or the first of `allowed` if it is empty.

    Raises:
        ConfigError: `variant` is not allowed.
    """
    if variant and variant not in allowed:
        raise ConfigError(f"config variant {variant!r} is unknown; allowed: {', '.join(allowed)}")
    return variant or allowed[0]


def choose_model(variant: str) -> str:
    """Return the model that `variant` names; the default one, gated_ssm_plus, if it is empty."""
    return choose_variant(variant, model_names())


def gated_ssm_of_size(config_file: str, size: str) -> ml_collections.ConfigDict:
    """Return the Gated SSM configuration of `size` from the presets beside `config_file`.

    Args:
        config_file: `__file__` of a file in configs/.
        size: 1_4b, 400m, 110m or tiny; empty = 1_4b.

    Raises:
        ConfigError: there is no such size.
    """
    preset = Path(config_file).with_name(_SIZES[choose_variant(size, tuple(_SIZES))])
    return runpy.run_path(str(preset))["get_config"]("gated_ssm")
