"""What the mixers of encoders share: a whole architecture to read, and no cache."""

from typing import Any, ClassVar, NoReturn

import flax.linen as nn

from birdie_jax.array_types import Activations
from birdie_jax.config_errors import ConfigError
from birdie_jax.config_sections import ModelConfig
from birdie_jax.models.layout import Layout
from birdie_jax.models.registry import Cache, language_model_names


class EncoderMixer(nn.Module):
    """A `registry.Mixer` of an encoder; subclasses define `mix`.

    Attributes:
        attends: whether it mixes by attention, over all pairs of tokens.
        combination: how it joins the two directions of state-space layers where `config` does not say.
        config: the architecture.
    """

    attends: ClassVar[bool] = False
    combination: ClassVar[str] = ""

    config: ModelConfig

    @classmethod
    def from_config(
        cls, config: ModelConfig, *, output_scale: float = 1.0, **module: Any
    ) -> "EncoderMixer":
        """Return the mixer of `config`; all weights start small, whatever `output_scale` is."""
        del output_scale
        return cls(config, **module)

    def __call__(
        self, x: Activations, layout: Layout, cache: Cache | None = None
    ) -> tuple[Activations, Cache | None]:
        """Mix the normalised inputs along the sequence, in both directions within the bounds of `layout`.

        Raises:
            ConfigError: a cache is given.
        """
        if cache is not None:
            refuse_cache(self.config)
        return self.mix(x, layout), None

    def mix(self, x: Activations, layout: Layout) -> Activations:
        """Return what the block adds to the residual stream."""
        raise NotImplementedError

    def empty_cache(self, rows: int, length: int | None = None) -> NoReturn:
        """Refuse to decode.

        Raises:
            ConfigError: always.
        """
        refuse_cache(self.config)


def refuse_cache(config: ModelConfig) -> NoReturn:
    """Refuse to decode with an encoder.

    Raises:
        ConfigError: always.
    """
    raise ConfigError(
        f"config.model.name: found {config.name!r}, a bidirectional encoder, which cannot generate: "
        "each of its tokens reads those after it, so that no cache goes on from one token to the next; "
        f"allowed: {', '.join(language_model_names())}"
    )
