"""The Transformer's sequence mixer: attention within packed samples, unmasked on the context."""

import math
from dataclasses import dataclass
from typing import ClassVar, Unpack

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from birdie_jax.array_types import Activations, TokenIds
from birdie_jax.config_sections import Config, MixerConfig, ModelConfig, Require
from birdie_jax.config_types import Heads, HeadsOrAsMany, Name, RopeBase, RotaryShare, WindowOrNone
from birdie_jax.errors import nearest_first
from birdie_jax.models.axes import may_run_on_tpu, must_divide
from birdie_jax.models.key_value_cache import KeyValueCache
from birdie_jax.models.layers import output_projection, projection
from birdie_jax.models.layout import Layout, own_segments
from birdie_jax.models.platforms import check_implementation
from birdie_jax.models.registry import ModuleFields, register_model
from birdie_jax.models.splash import fits as splash_fits
from birdie_jax.models.splash import packed_splash_attention
from birdie_jax.models.window_cache import WindowCache


def rotate(
    x: Float[Array, "rows length heads width"], positions: TokenIds, base: float, share: float = 1.0
) -> Float[Array, "rows length heads width"]:
    """Rotate channel pair i of each head by position * base^(-2 i / width), in float32 (Su et al. 2021).

    A pair is channel i and channel i + width / 2, as in Llama, so Llama's weights fit. With a `share` of
    less than 1, only this share of a head's channels rotates, from the first on; the width is their number.
    """
    width = round(share * x.shape[-1])
    if width < x.shape[-1]:
        turned, rest = jnp.split(x, [width], axis=-1)
        return jnp.concatenate([rotate(turned, positions, base), rest], axis=-1)
    half = x.shape[-1] // 2
    frequencies = base ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = positions[..., None, None].astype(jnp.float32) * frequencies
    cosine, sine = jnp.cos(angles), jnp.sin(angles)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)
    return turned.astype(x.dtype)


IMPLEMENTATIONS: dict[str, tuple[str, ...]] = {
    "": ("cpu", "gpu", "tpu"),
    "xla": ("cpu", "gpu", "tpu"),
    "cudnn": ("attached gpu",),
    "splash": ("tpu",),
    "splash_interpret": ("cpu", "gpu", "tpu"),
}
"""Every implementation, and the platforms that it compiles for; cuDNN needs an attached GPU."""


@dataclass(frozen=True)
class AttentionConfig(MixerConfig):
    """`config.model.attention`.

    Attributes:
        heads: the number of query heads.
        kv_heads: the number of heads of keys and values; 0 = as many as `heads`.
        rope_base: the base of the rotary frequencies.
        rotary_share: the share of a head's channels that rotate with the position, from the first on.
        output_bias: whether the map to the residual stream has a bias, as in RecurrentGemma.
        window: the number of tokens that a token sees, itself included, to its left. In a bidirectional
            context a token also sees as many to its right, within the context. 0 = the whole sample.
        implementation: xla, cudnn (NVIDIA), splash (TPU) or splash_interpret (the same kernel in the
            interpreter); empty = splash on a TPU where the row length is a multiple of 128 and no window
            limits a bidirectional context; else xla.
    """

    section: ClassVar[str] = "attention"
    free_fields: ClassVar[frozenset[str]] = frozenset({"kv_heads", "output_bias", "implementation"})

    heads: Heads = 16
    kv_heads: HeadsOrAsMany = 0
    rope_base: RopeBase = 500_000.0
    rotary_share: RotaryShare = 1.0
    output_bias: bool = False
    window: WindowOrNone = 0
    implementation: Name = ""

    def check_fields(self, require: Require) -> None:
        """Check each field by itself."""
        allowed = nearest_first(self.implementation, IMPLEMENTATIONS)
        require(self.implementation in IMPLEMENTATIONS, "model.attention.implementation", allowed)

    @property
    def has_attention(self) -> bool:
        """True: the mixer's cache holds tokens."""
        return True

    def check_model(self, config: Config, require: Require) -> None:
        """Check the mesh, and that features divide into heads and rows into blocks of the kernel."""
        features = config.model.features
        allowed = f"a divisor of model.features = {features} into heads of an even width"
        require(features % (2 * self.heads) == 0, "model.attention.heads", allowed)
        turned = self.rotary_share * (features // self.heads)
        allowed = f"a share that is an even number of the {features // self.heads} channels of a head"
        whole = math.isclose(turned, round(turned)) and round(turned) >= 2 and round(turned) % 2 == 0
        require(whole, "model.attention.rotary_share", allowed)
        allowed = f"a divisor of model.attention.heads = {self.heads}, or 0 for as many"
        divides = self.kv_heads == 0 or self.heads % self.kv_heads == 0
        require(divides, "model.attention.kv_heads", allowed)
        if self.implementation.startswith("splash"):
            allowed = "a multiple of 128, the block of model.attention.implementation splash"
            require(config.batching.length % 128 == 0, "batching.length", allowed)
            allowed = f"0 for model.attention.implementation {self.implementation} with model.bidirectional"
            one_bound = self.window == 0 or not config.model.bidirectional
            require(one_bound, "model.attention.window", allowed)
        if self.implementation == "cudnn":
            purpose = "for model.attention.implementation cudnn"
            require(config.model.dtype == "bfloat16", "model.dtype", f"bfloat16 {purpose}")
            width = features // self.heads
            allowed = (
                f"heads of model.features / heads = 8, 16, .. 256 channels {purpose}; these have {width}"
            )
            require(width % 8 == 0 and width <= 256, "model.attention.heads", allowed)
            require(config.batching.length % 2 == 0, "batching.length", f"an even number {purpose}")
        allowed = f"1 for {config.model.name}: attention reads whole rows"
        require(config.mesh.sequence == 1, "mesh.sequence", allowed)

    def check_platform(self, model: ModelConfig, platform: str, require: Require) -> None:
        """Check that the implementation of attention is available for the platform."""
        field, implementation = "model.attention.implementation", self.implementation
        check_implementation(require, field, implementation, IMPLEMENTATIONS, platform)

    def mesh_problem(self, model: ModelConfig, length: int, axis: str, size: int) -> str | None:
        """Return why an axis cannot divide attention: `tensor` divides heads; rows stay whole."""
        if axis == "tensor":
            heads = {"model.attention.heads": self.heads}
            kv_heads = {"model.attention.kv_heads": self.kv_heads} if self.kv_heads else {}
            return must_divide(size, heads | kv_heads)
        if axis == "sequence" and size > 1:
            return f"{model.name} reads whole rows"
        return None

    def extra_flops_per_token(self, model: ModelConfig, length: int) -> float:
        """Return 12 * layers * length * features: all pairs of tokens as in PaLM, for any mask.

        A window shorter than a row replaces the length.
        """
        return 12.0 * model.layers * min(length, self.window or length) * model.features


def packed_mask(layout: Layout, bidirectional: bool, window: int = 0) -> Bool[Array, "rows length length"]:
    """Return which token (second axis) may attend to which (third).

    A token attends to itself and to earlier tokens of its sample. If `bidirectional`, it also attends to
    the whole context; the context is the beginning of the sample, so this affects context tokens only. The
    start token is not part of the context (Birdie paper, appendix E.1: attn_mask). No token attends to
    another sample or to padding.

    A `window` of more than 0 keeps only the tokens that are less than `window` away: to the left (the
    sliding window of Griffin, De et al. 2024, section 2.3), and within the context also to the right.
    """
    segments = own_segments(layout)
    index = jnp.arange(segments.shape[1])
    earlier = (index <= index[:, None])[None]
    if bidirectional:
        earlier = earlier | layout.bidirectional[:, None, :]
    mask = earlier & (segments[:, :, None] == segments[:, None, :])
    if window:
        mask &= jnp.abs(index - index[:, None]) < window
    return mask


def packed_attention(
    query: Float[Array, "rows length heads width"],
    key: Float[Array, "rows length kv_heads width"],
    value: Float[Array, "rows length kv_heads width"],
    layout: Layout,
    *,
    bidirectional: bool,
    window: int = 0,
    implementation: str | None,
) -> Float[Array, "rows length heads width"]:
    """Return attention under `packed_mask`; `implementation` is as in `Attention`."""

    def splash(query, key, value, interpret=False):
        return packed_splash_attention(
            query, key, value, layout, bidirectional=bidirectional, window=window, interpret=interpret
        )

    def masked(query, key, value):
        mask = packed_mask(layout, bidirectional, window)[:, None]
        backend = implementation if implementation == "cudnn" else "xla"
        return jax.nn.dot_product_attention(query, key, value, mask=mask, implementation=backend)

    if implementation in ("splash", "splash_interpret"):
        return splash(query, key, value, interpret=implementation == "splash_interpret")
    one_bound = window == 0 or not bidirectional
    if implementation is None and one_bound and splash_fits(query.shape[1]) and may_run_on_tpu():
        return jax.lax.platform_dependent(query, key, value, tpu=splash, default=masked)
    return masked(query, key, value)


class Attention(nn.Module):
    """Grouped-query attention with rotary positions (Birdie paper, appendix A.1: as in Llama 2 Long).

        q_t, k_t, v_t = R_t W_q x_t, R_t W_k x_t, W_v x_t
        y_t = W_out sum_s softmax_s(q_t . k_s / sqrt(w)) v_s

    over the tokens s that `packed_mask` lets t see, for each head of width w. R_t rotates all channels, or
    the first ones, by the position within the sample. Every `heads / kv_heads` queries share a key and a
    value.

    Attributes:
        features: the width D of input and output.
        heads: the number of query heads, a divisor of `features`; a head has an even number of channels.
        kv_heads: the number of heads of keys and values, a divisor of `heads`.
        rope_base: the base of the rotary frequencies.
        bidirectional: whether the context attends to the whole context.
        dtype: the type of the matrix products; the softmax is in float32.
        window: the number of tokens that a token sees, as in `packed_mask`; 0 = the whole sample.
        implementation: "xla" or "cudnn" of `jax.nn.dot_product_attention`, "splash" (TPU), or
            "splash_interpret" (the same in the interpreter); None = the best one for the platform. With a
            cache, "xla" replaces splash.
        output_scale: the factor of the initial size of W_out.
        rotary_share: the share of a head's channels that R_t rotates; their number is even.
        output_bias: whether W_out has a bias.
    """

    features: int
    heads: int
    kv_heads: int
    rope_base: float
    bidirectional: bool
    dtype: jnp.dtype
    window: int = 0
    implementation: str | None = None
    output_scale: float = 1.0
    rotary_share: float = 1.0
    output_bias: bool = False

    @classmethod
    def from_config(
        cls, config: ModelConfig, *, output_scale: float, **module: Unpack[ModuleFields]
    ) -> "Attention":
        """Return the mixer of `config`; see `registry.Mixer`."""
        section = config.section(AttentionConfig)
        return cls(
            features=config.features,
            heads=section.heads,
            kv_heads=section.kv_heads or section.heads,
            rope_base=section.rope_base,
            bidirectional=config.bidirectional,
            dtype=jnp.dtype(config.dtype),
            window=section.window,
            implementation=section.implementation or None,
            output_scale=output_scale,
            rotary_share=section.rotary_share,
            output_bias=section.output_bias,
            **module,
        )

    @nn.compact
    def __call__(
        self, x: Activations, layout: Layout, cache: KeyValueCache | WindowCache | None = None
    ) -> tuple[Activations, KeyValueCache | WindowCache | None]:
        """Mix along the sequence.

        Args:
            x: normalised inputs.
            layout: the resets and the context. They separate samples, padding and the future of the target.
            cache: keys and values of earlier parts of the same samples, or `empty_cache` for new samples.
                Without a window, every output is NaN if the call has more tokens than the cache has room
                left.

        Returns:
            The outputs, and the cache after the last token (None if none was given).

        Raises:
            ValueError: there is no window, and the call alone exceeds the size of the cache, or the layout
                skips tokens.
        """
        width = self.features // self.heads
        query, key, value = (
            projection(heads * width, name, self.dtype)(x).reshape(*x.shape[:2], heads, width)
            for name, heads in (("query", self.heads), ("key", self.kv_heads), ("value", self.kv_heads))
        )
        positions = layout.positions(None if cache is None else cache.tokens)
        query, key = (rotate(part, positions, self.rope_base, self.rotary_share) for part in (query, key))
        if cache is None:
            mixed = packed_attention(
                query,
                key,
                value,
                layout,
                bidirectional=self.bidirectional,
                window=self.window,
                implementation=self.implementation,
            )
        else:
            mask = packed_mask(layout, self.bidirectional, self.window)
            backend = self.implementation if self.implementation == "cudnn" else "xla"
            cache, attended = cache.extended(layout, mask, positions, key, value)
            mixed = jax.nn.dot_product_attention(
                query, attended.keys, attended.values, mask=attended.mask[:, None], implementation=backend
            )
        out = output_projection(self.features, "out", self.dtype, self.output_scale, bias=self.output_bias)
        y = out(mixed.reshape(x.shape))
        return y if cache is None else cache.checked(y), cache

    def empty_cache(self, rows: int, length: int | None = None) -> KeyValueCache | WindowCache:
        """Return the cache for `rows` new samples; with a window its size does not depend on `length`.

        Args:
            rows: the number of samples.
            length: the maximum number of tokens of a sample; ignored with a window.

        Raises:
            ValueError: there is no window, and `length` is not given.
        """
        kind, slots = (WindowCache, self.window) if self.window else (KeyValueCache, length)
        if slots is None:
            raise ValueError(
                "empty_cache: attention needs length, the maximum number of tokens of a row; found None"
            )
        return kind.empty((rows, slots, self.kv_heads, self.features // self.heads), self.dtype)


register_model("transformer", mixer=Attention, config=AttentionConfig, has_mlp=True)
