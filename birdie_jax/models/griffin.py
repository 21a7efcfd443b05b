"""Griffin: alternates layers of Hawk and layers of local attention (De et al. 2024, section 3)."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from birdie_jax.config_sections import Config, MixerConfig, ModelConfig, Require
from birdie_jax.config_types import RequiredName
from birdie_jax.models.registry import ARCHITECTURES, mixer_config, register_model


@dataclass(frozen=True)
class HybridConfig(MixerConfig):
    """The base section of hybrids: a pattern, and the checks of its layers.

    The layers of a hybrid are blocks of other models. The sections of these models configure them.

    Attributes:
        kinds: short names for the pattern, each with the model that provides the block.
        pattern: the models of the first layers, separated by commas; it repeats until the last layer.
    """

    free_fields: ClassVar[frozenset[str]] = frozenset({"pattern"})
    kinds: ClassVar[Mapping[str, str]]

    pattern: RequiredName

    def layer_models(self) -> tuple[str, ...]:
        """Return the model of each layer of the pattern."""
        return tuple(self.kinds.get(kind, kind) for kind in map(str.strip, self.pattern.split(",")))

    @property
    def has_attention(self) -> bool:
        """Whether the cache of any layer holds tokens."""
        return any(section.has_attention for section in self._sections(ModelConfig()))

    @property
    def has_linear_scan(self) -> bool:
        """Whether the recurrence of any layer is `pallas_kernels.linear_scan`."""
        return any(section.has_linear_scan for section in self._sections(ModelConfig()))

    @property
    def influence_problem(self) -> tuple[str, str]:
        """Why tokens have no score."""
        return super().influence_problem or ("whose layers differ", "a model of layers of one kind")

    def check_fields(self, require: Require) -> None:
        """Check that the pattern names models that are neither hybrids nor encoders."""
        known = [
            name for name, found in ARCHITECTURES.items() if found.mixer is not None and not found.encoder
        ]
        names = (*self.kinds, *sorted(known))
        allowed = f"names of layers with commas between, of {', '.join(names)}"
        require(set(self.layer_models()) <= set(known), f"model.{self.section}.pattern", allowed)

    def check_model(self, config: Config, require: Require) -> None:
        """Check the requirements of the layers of each kind."""
        for kind in self._sections(config.model):
            kind.check_model(config, require)

    def check_platform(self, model: ModelConfig, platform: str, require: Require) -> None:
        """Check that the implementations of the layers of each kind compile for a platform."""
        for kind in self._sections(model):
            kind.check_platform(model, platform, require)

    def mesh_problem(self, model: ModelConfig, length: int, axis: str, size: int) -> str | None:
        """Return why an axis cannot divide layers of some kind."""
        problems = (kind.mesh_problem(model, length, axis, size) for kind in self._sections(model))
        return next((problem for problem in problems if problem is not None), None)

    def extra_flops_per_token(self, model: ModelConfig, length: int) -> float:
        """Return the sum over the layers of each kind."""
        names = self.layer_models()
        counts = Counter(names[layer % len(names)] for layer in range(model.layers))
        return sum(
            mixer_config(replace(model, name=name)).extra_flops_per_token(
                replace(model, layers=count), length
            )
            for name, count in counts.items()
        )

    def computation(self, model: ModelConfig) -> dict[str, Any]:
        """Return the fields of each kind of layer."""
        found = super().computation(model)
        for kind in self._sections(model):
            found |= kind.computation(model)
        return found

    def _sections(self, model: ModelConfig) -> list[MixerConfig]:
        return [mixer_config(replace(model, name=name)) for name in dict.fromkeys(self.layer_models())]


@dataclass(frozen=True)
class GriffinConfig(HybridConfig):
    """`config.model.griffin`.

    `config.model.hawk` and `config.model.attention` configure the layers. In the paper attention has one
    head of keys and values, `kv_heads` = 1, and a `window` of 1,024. Other hybrids set another pattern,
    such as three layers of gated_deltanet and one of transformer.

    Attributes:
        pattern: the models of the first layers, separated by commas; it repeats until the last layer.
            "recurrent" is hawk_mlp and "attention" is transformer.
    """

    section: ClassVar[str] = "griffin"
    kinds: ClassVar[Mapping[str, str]] = {"recurrent": "hawk_mlp", "attention": "transformer"}

    pattern: RequiredName = "recurrent,recurrent,attention"


register_model("griffin", mixer=None, config=GriffinConfig, has_mlp=True)
