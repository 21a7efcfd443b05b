"""Hawk's sequence mixer: a short convolution and a gated RG-LRU."""

from dataclasses import dataclass
from typing import ClassVar, Unpack

import flax.linen as nn
import jax.numpy as jnp

from birdie_jax.array_types import Activations
from birdie_jax.config_sections import Config, ModelConfig, Require
from birdie_jax.config_types import ConvolutionTaps, Heads
from birdie_jax.models.axes import must_divide
from birdie_jax.models.layers import ShortConvolution, output_projection, projection
from birdie_jax.models.layout import Layout
from birdie_jax.models.recurrence import (
    RecurrentCache,
    RecurrentConfig,
    empty_recurrent_cache,
    recurrent_attributes,
)
from birdie_jax.models.registry import ModuleFields, register_model
from birdie_jax.models.rg_lru import RGLRU


@dataclass(frozen=True)
class HawkConfig(RecurrentConfig):
    """`config.model.hawk`.

    Attributes:
        heads: the groups of the RG-LRU's block-diagonal gates.
        conv_width: the taps of the short convolution.
        bias: whether the three maps and the convolution have a bias, as in RecurrentGemma.
    """

    section: ClassVar[str] = "hawk"
    free_fields: ClassVar[frozenset[str]] = frozenset({"conv_width", "bias"})

    heads: Heads = 16
    conv_width: ConvolutionTaps = 4
    bias: bool = False

    def conv_taps(self, model: ModelConfig) -> int:
        """Return the taps of the short convolution in a model."""
        del model
        return self.conv_width

    def check_model(self, config: Config, require: Require) -> None:
        """Check that the heads divide the channels, and the spacing for the convolution."""
        super().check_model(config, require)
        state = config.model.state
        require(state % self.heads == 0, "model.hawk.heads", f"a divisor of model.state = {state}")

    def mesh_problem(self, model: ModelConfig, length: int, axis: str, size: int) -> str | None:
        """Return why an axis cannot divide the mixer: `tensor` divides whole heads."""
        if axis == "tensor":
            problem = must_divide(size, {"model.state": model.state, "model.hawk.heads": self.heads})
            if problem is not None:
                return problem
        return super().mesh_problem(model, length, axis, size)


class Hawk(nn.Module):
    """Recurrent block of Griffin and Hawk (De et al. 2024, section 2.3; Birdie, appendix E.3):

        y_t = W_out(GeLU(W_gate x_t) * RG-LRU(conv(W_in x))_t)

    Only the RG-LRU's gates have a bias (E.3), unless `bias` adds others. The convolution starts near the
    identity, as in Gated SSM+.

    Attributes:
        features: the width D of input and output.
        state: the recurrent channels N, even.
        heads: the groups of the RG-LRU's block-diagonal gates, a divisor of `state`.
        conv_width: the taps of the convolution.
        bidirectional: whether the second half of the state runs in reverse on the context.
        dtype: the type of the matrix products.
        scan_dtype: the type of the recurrence in memory; the carry is float32.
        scan_implementation: the implementation of `gated_scan`; None = the best one for the platform.
        output_scale: the factor of the initial size of W_out.
        bias: whether the three maps and the convolution have a bias.
    """  # noqa: D400, D415

    features: int
    state: int
    heads: int
    conv_width: int
    bidirectional: bool
    dtype: jnp.dtype
    scan_dtype: jnp.dtype
    scan_implementation: str | None = None
    output_scale: float = 1.0
    bias: bool = False

    @classmethod
    def from_config(
        cls, config: ModelConfig, *, output_scale: float, **module: Unpack[ModuleFields]
    ) -> "Hawk":
        """Return the mixer of `config`; see `registry.Mixer`."""
        section = config.section(HawkConfig)
        return cls(
            heads=section.heads,
            conv_width=section.conv_width,
            output_scale=output_scale,
            bias=section.bias,
            **recurrent_attributes(config),
            **module,
        )

    @nn.compact
    def __call__(
        self, x: Activations, layout: Layout, cache: RecurrentCache | None = None
    ) -> tuple[Activations, RecurrentCache | None]:
        """Mix along the sequence; arguments and results are as in `GatedSSM`."""
        output_gate = projection(self.state, "output_gate", self.dtype, bias=self.bias)(x)
        u = projection(self.state, "input", self.dtype, bias=self.bias)(x)
        initial, tail = (None, None) if cache is None else cache
        bias_init = nn.initializers.zeros_init() if self.bias else None
        u, tail = ShortConvolution(
            self.conv_width, self.dtype, "inner", bias_init=bias_init, name="convolution"
        )(u, layout, tail)
        gated, last = RGLRU(
            self.heads,
            self.bidirectional,
            self.dtype,
            self.scan_dtype,
            self.scan_implementation,
            name="rg_lru",
        )(u, layout, initial, output_gate)
        out = output_projection(self.features, "out", self.dtype, self.output_scale, bias=self.bias)
        y = out(gated)
        return y, None if cache is None else cache.updated(last, tail)

    def empty_cache(self, rows: int, length: int | None = None) -> RecurrentCache:
        """Return the cache for `rows` new samples; its size does not depend on `length`."""
        del length
        return empty_recurrent_cache(
            rows,
            self.state // 2 if self.bidirectional else self.state,
            (self.conv_width - 1, self.state),
            self.dtype,
        )


register_model("hawk", mixer=Hawk, config=HawkConfig)
register_model("hawk_mlp", mixer=Hawk, config=HawkConfig, has_mlp=True)
