"""What configurations of models of other programs share: they know no special token of this one."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_collections

from birdie_jax.config import Config, ConfigError, ModelConfig, parse_config, to_dict
from birdie_jax.interop.interop_error import InteropError
from birdie_jax.storage import shown
from birdie_jax.vocabulary import NUM_SPECIAL_TOKENS

# Without a start token a prompt is the beginning of a text, as in causal language modelling.
_ARMS = {"causal_lm": {"objective": "causal_lm"}}


def read_built(described: Mapping[str, Any], built: Mapping[str, Any], path: Path) -> None:
    """Check the settings of which one value is built, and which files may lack.

    Args:
        described: the contents of a config.json.
        built: name -> value of each such setting.
        path: the file, for messages.

    Raises:
        InteropError: a setting has another value.
    """
    for name, value in built.items():
        if described.get(name, value) != value:
            raise InteropError(
                f"{path}: {name}: found {shown(described[name])}, which is not built; allowed: {value!r}"
            )


def foreign_config(
    model: ModelConfig, *, vocab_size: int, end_token: int | None, conv_taps: int, path: Path
) -> Config:
    """Return the configuration of a model whose token i is token 256 + i here, and which has no other.

    Args:
        model: the architecture, but for the fields that say so.
        vocab_size: the number of its tokens.
        end_token: the token that ends a text there.
        conv_taps: the taps of its short convolution.
        path: the file that the model is from, for messages.

    Raises:
        InteropError: no token ends a text, or a field is not one that this program can have.
    """
    if end_token is None or not 0 <= end_token < vocab_size:
        raise InteropError(
            f"{path}: eos_token_id: found {end_token}; allowed: the id of the token that ends "
            f"a text, below vocab_size = {vocab_size}"
        )
    model = dataclasses.replace(
        model,
        start_token=False,
        end_token=NUM_SPECIAL_TOKENS + end_token,
        min_predicted_id=NUM_SPECIAL_TOKENS,
        max_predicted_id=NUM_SPECIAL_TOKENS + vocab_size - 1,
    )
    config = Config(model=model)
    spacing = max(config.batching.spacing, conv_taps - 1)
    config = dataclasses.replace(
        config,
        batching=dataclasses.replace(config.batching, spacing=spacing),
        objectives=dataclasses.replace(config.objectives, arms=_ARMS),
    )
    try:
        return parse_config(ml_collections.ConfigDict(to_dict(config)))
    except ConfigError as error:
        raise InteropError(f"{path}: {error}") from error
