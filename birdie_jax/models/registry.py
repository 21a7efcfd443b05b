"""The registry of models by name. The module of each mixer registers its models."""

from dataclasses import dataclass
from typing import Protocol, TypedDict, Unpack, runtime_checkable

from jaxtyping import Array, PyTree

from birdie_jax.array_types import Activations
from birdie_jax.config_sections import MixerConfig, ModelConfig
from birdie_jax.models.layout import Layout
from birdie_jax.registry import Registry

Cache = PyTree[Array]
"""The decoding cache of a mixer. A call does not change its shapes."""


class ModuleFields(TypedDict, total=False):
    """The fields that linen adds to every module: its name, and `parent=None` if it has no parent."""

    name: str
    parent: None


@runtime_checkable
class Mixer(Protocol):
    """A sequence mixer: a linen module between the norm of a block and the residual stream."""

    @classmethod
    def from_config(
        cls, config: ModelConfig, *, output_scale: float, **module: Unpack[ModuleFields]
    ) -> "Mixer":
        """Return the mixer of `config`.

        Args:
            config: the architecture; `config.section(...)` is the mixer's own section.
            output_scale: the factor of the initial size of the weights of the output projection.
            module: `name` and `parent` of the linen module.
        """
        ...

    def __call__(
        self, x: Activations, layout: Layout, cache: Cache | None = None
    ) -> tuple[Activations, Cache | None]:
        """Mix the normalised inputs along the sequence, within the bounds of `layout`.

        With a cache, the call continues the cached samples. It returns the cache after its last token that
        the layout does not skip, or None without a cache. Outputs and cache are differentiable with respect
        to the cache.
        """
        ...

    def empty_cache(self, rows: int, length: int | None = None) -> Cache:
        """Return the cache for `rows` new samples of at most `length` tokens."""
        ...


@dataclass(frozen=True)
class Architecture:
    """The registration of a model name.

    Attributes:
        mixer: the class of its sequence mixer, a linen module that is a `Mixer`; None for a hybrid, which
            has blocks of other models as layers.
        config: the class of the mixer's own section of `config.model`.
        has_mlp: whether an MLP follows the mixer in a block.
        encoder: whether it is a bidirectional encoder (`birdie_jax.models.encoder`), which predicts masked
            tokens and does not generate.
    """

    mixer: type[Mixer] | None
    config: type[MixerConfig]
    has_mlp: bool
    encoder: bool = False


ARCHITECTURES: Registry[Architecture] = Registry("model.name")


def register_model(
    name: str,
    *,
    mixer: type[Mixer] | None,
    config: type[MixerConfig],
    has_mlp: bool = False,
    encoder: bool = False,
) -> None:
    """Register a model as `config.model.name`, and the mixer's section as `config.model.<section>`.

    Args:
        name: the name of the model.
        mixer: the class of its sequence mixer; None for a hybrid.
        config: the class of the mixer's section, a `HybridConfig` for a hybrid; several models may share
            one.
        has_mlp: whether an MLP follows the mixer in a block.
        encoder: whether the model is a bidirectional encoder, not a language model.

    Raises:
        ValueError: the name is taken, or another section or a field of `config.model` has the section's
            name.
    """
    others = {kind.section for kind in mixer_sections() if kind is not config}
    if config.section in others | set(ModelConfig.__dataclass_fields__):
        raise ValueError(
            f"register_model: config.model.{config.section} is taken; choose another section name for "
            f"{config.__name__}"
        )
    ARCHITECTURES.register(name, Architecture(mixer, config, has_mlp, encoder))


def architecture_of(config: ModelConfig) -> Architecture:
    """Return the registration of `config.name`.

    Raises:
        ValueError: no mixer has registered such a model.
    """
    return ARCHITECTURES.find(config.name)


def mixer_type(config: ModelConfig) -> type[Mixer]:
    """Return the class of the sequence mixer of `config.name`.

    Raises:
        ValueError: no mixer has registered such a model, or it is a hybrid.
    """
    mixer = architecture_of(config).mixer
    if mixer is None:
        allowed = ", ".join(dict.fromkeys(mixer_config(config).layer_models()))
        raise ValueError(
            f"model.name: found {config.name!r}, whose layers differ; allowed for one layer: {allowed}"
        )
    return mixer


def mixer_config(config: ModelConfig) -> MixerConfig:
    """Return the section of the mixer of `config.name`."""
    return config.section(architecture_of(config).config)


def model_names() -> tuple[str, ...]:
    """Return the names of the registered models: language models, then encoders."""
    return language_model_names() + encoder_names()


def language_model_names() -> tuple[str, ...]:
    """Return the names of the language models: the default, then the others in alphabetical order."""
    default = ModelConfig().name
    names = [name for name, architecture in ARCHITECTURES.items() if not architecture.encoder]
    return tuple(sorted(names, key=lambda name: (name != default, name)))


def encoder_names() -> tuple[str, ...]:
    """Return the names of the bidirectional encoders, in alphabetical order."""
    return tuple(sorted(name for name, architecture in ARCHITECTURES.items() if architecture.encoder))


def mixer_sections() -> tuple[type[MixerConfig], ...]:
    """Return the section classes of all mixers, in alphabetical order of section names."""
    kinds = {architecture.config for architecture in ARCHITECTURES.values()}
    return tuple(sorted(kinds, key=lambda kind: kind.section))
