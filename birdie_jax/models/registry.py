"""The models by name. The file of a mixer registers the models that it makes; nothing else lists names."""

from dataclasses import dataclass
from typing import Protocol, TypedDict, Unpack, runtime_checkable

from jaxtyping import Array, PyTree

from birdie_jax.array_types import Activations
from birdie_jax.config_sections import MixerConfig, ModelConfig
from birdie_jax.models.layout import Layout
from birdie_jax.registry import Registry

Cache = PyTree[Array]
"""What decoding carries from token to token; its shapes are the same before and after a call."""


class ModuleFields(TypedDict, total=False):
    """What linen gives every module: its name, and where it has no parent, None for it."""

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
            output_scale: the factor of the initial size of the weights that lead to the residual stream.
            module: `name` and `parent` of the linen module.
        """
        ...

    def __call__(
        self, x: Activations, layout: Layout, cache: Cache | None = None
    ) -> tuple[Activations, Cache | None]:
        """Mix the normalised inputs along the sequence, within the bounds of `layout`.

        With a cache this is decoding. The call continues the samples of the cache. It returns the cache
        after its own last token (None without a cache), or after the last token that the layout does not
        skip. Outputs and cache are differentiable in the cache.
        """
        ...

    def empty_cache(self, rows: int, length: int | None = None) -> Cache:
        """Return the cache from which `rows` new samples of at most `length` tokens start."""
        ...


@dataclass(frozen=True)
class Architecture:
    """The registration of a model name.

    Attributes:
        mixer: the class of its sequence mixer, a linen module that is a `Mixer`; None in a hybrid, whose
            layers are blocks of other models.
        config: the class of the mixer's own section of `config.model`.
        has_mlp: whether an MLP follows the mixer in a block.
        encoder: whether it is a bidirectional encoder (`birdie_jax.models.encoder`), which fills in masked
            tokens and generates none.
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
        ValueError: the name is taken, or the section's name is one of another section or of a field of
            `config.model`.
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
    """Return the class of the sequence mixer that all layers of `config.name` have.

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
    """Return the registered models: language models, then encoders."""
    return language_model_names() + encoder_names()


def language_model_names() -> tuple[str, ...]:
    """Return the models that generate: the default one, then the others in alphabetical order."""
    default = ModelConfig().name
    names = [name for name, architecture in ARCHITECTURES.items() if not architecture.encoder]
    return tuple(sorted(names, key=lambda name: (name != default, name)))


def encoder_names() -> tuple[str, ...]:
    """Return the bidirectional encoders, in alphabetical order."""
    return tuple(sorted(name for name, architecture in ARCHITECTURES.items() if architecture.encoder))


def mixer_sections() -> tuple[type[MixerConfig], ...]:
    """Return the classes of all mixers' sections, in alphabetical order of the sections' names."""
    kinds = {architecture.config for architecture in ARCHITECTURES.values()}
    return tuple(sorted(kinds, key=lambda kind: kind.section))
