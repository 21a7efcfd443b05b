"""The Gated SSM: a sequence mixer, causal or bidirectional on the context."""

from dataclasses import dataclass
from typing import ClassVar, Unpack

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array

from birdie_jax.array_types import Activations, Key
from birdie_jax.config_sections import ModelConfig
from birdie_jax.config_types import ConvolutionTaps
from birdie_jax.models.layers import ShortConvolution, output_projection, projection
from birdie_jax.models.layout import Layout
from birdie_jax.models.parameters import ParameterPolicy, parameter
from birdie_jax.models.recurrence import (
    RecurrentCache,
    RecurrentConfig,
    ScanSettings,
    empty_recurrent_cache,
    recurrent_attributes,
    recurrent_layer,
)
from birdie_jax.models.registry import ModuleFields, mixer_config, register_model
from pallas_kernels.gated_scan import Cell, gelu, sigmoid


@dataclass(frozen=True)
class GatedSSMConfig(RecurrentConfig):
    """`config.model.gated_ssm`.

    Attributes:
        conv_width: the taps of the short convolution of gated_ssm_plus; the other models have none.
    """

    section: ClassVar[str] = "gated_ssm"
    free_fields: ClassVar[frozenset[str]] = frozenset({"conv_width"})

    conv_width: ConvolutionTaps = 4

    def conv_taps(self, model: ModelConfig) -> int:
        """Return the taps of the short convolution in a model; 0 without one."""
        layers = mixer_config(model).layer_models() or (model.name,)
        return self.conv_width if "gated_ssm_plus" in layers else 0


def slow_to_fast(key: Key, shape: tuple[int, ...], dtype: DTypeLike = jnp.float32) -> Array:
    """Return biases that make a gate remember for 2 to 200 tokens, log-uniform over the channels.

    Without them every f_t starts near 1/2, so the state forgets after a few tokens, and no gradient teaches
    the gates to remember longer (Gers et al. 2000). The spread follows Tallec and Ollivier (2018).
    """
    timescale = jnp.exp(jax.random.uniform(key, shape, dtype, jnp.log(2.0), jnp.log(200.0)))
    return jnp.log(timescale - 1)


def _recurrence_inputs(
    parameters: tuple[Array, ...], operands: tuple[Array, ...], not_reset: Array | None
) -> tuple[Array, Array]:
    """Return f_t and i_t * z_t of h_t = f_t * h_{t-1} + i_t * z_t."""
    del not_reset
    (b_f,) = parameters
    w_i_x, z, w_f_x = operands
    f = sigmoid(w_f_x + b_f)
    i = sigmoid(w_i_x)
    return f, i * z


GATED_SSM = Cell(
    name="gated_ssm",
    operands=("input_gate", "input", "forget_gate"),
    parameters=("forget_bias",),
    recurrence_inputs=_recurrence_inputs,
    # o_t = GeLU(W_o x_t) multiplies h_t.
    readout=gelu,
    transcendentals=3,
    # i = 1/2, z = 0, f = 1.
    identity_operands=(0.0, 0.0, 1e4),
)
"""The recurrence of the Gated SSM: see `GatedSSM`."""


class GatedSSM(nn.Module):
    """Gated SSM of the Birdie paper (section 3.4, appendix E.2) for a normalised input x_t:

        i_t = sigmoid(W_i x_t)        z_t = W_z x_t
        o_t = GeLU(W_o x_t)           f_t = sigmoid(W_f x_t + b_f)
        h_t = f_t * h_{t-1} + i_t * z_t
        y_t = W_out(o_t * h_t)

    The bias b_f is in appendix E.2, where gates are Dense layers with a bias, but not in section 3.4.
    Without it the model did not learn to copy at all (docs/decisions/models.md). The other maps have no
    bias, as in the recipe.

    With `conv_width` (Gated SSM+) i, z and f read a short convolution of x; o reads x itself (E.2).

    If `bidirectional`, the second half of the channels runs in reverse on the context (section 3.1), as h_t
    = f_t * h_{t+1} + i_t * z_t with f_t set to zero in the causal area. Parameters and computation stay the
    same as in the causal model.

    Attributes:
        features: the width D of input and output.
        state: the recurrent channels N, even.
        conv_width: the taps of the convolution; 0 = none.
        bidirectional: whether the second half of the channels runs in reverse.
        dtype: the type of the matrix products.
        scan_dtype: the type of f, i * z and h in memory; the carry is float32.
        scan_implementation: the implementation of `gated_scan`; None = the best one for the platform.
        output_scale: the factor of the initial size of W_out.
    """  # noqa: D400, D415

    features: int
    state: int
    conv_width: int
    bidirectional: bool
    dtype: jnp.dtype
    scan_dtype: jnp.dtype
    scan_implementation: str | None = None
    output_scale: float = 1.0

    @classmethod
    def from_config(
        cls, config: ModelConfig, *, output_scale: float, **module: Unpack[ModuleFields]
    ) -> "GatedSSM":
        """Return the mixer of `config`; see `registry.Mixer`."""
        return cls(
            conv_width=config.section(GatedSSMConfig).conv_taps(config),
            output_scale=output_scale,
            **recurrent_attributes(config),
            **module,
        )

    @nn.compact
    def __call__(
        self, x: Activations, layout: Layout, cache: RecurrentCache | None = None
    ) -> tuple[Activations, RecurrentCache | None]:
        """Mix along the sequence.

        Args:
            x: normalised inputs.
            layout: the resets, which separate samples, padding and the future of the target.
            cache: the state after an earlier part of the same samples, or `empty_cache` for new samples.

        Returns:
            The outputs, and the cache after the last token (None if none was given).
        """
        w_o_x = projection(self.state, "output_gate", self.dtype)(x)
        initial, tail = (None, None) if cache is None else cache
        if self.conv_width:
            x, tail = ShortConvolution(self.conv_width, self.dtype, name="convolution")(x, layout, tail)
        policy = ParameterPolicy(axes=("inner",), weight_decay=False)
        b_f = parameter(self, "forget_bias", slow_to_fast, (self.state,), policy)
        w_i_x = projection(self.state, "input_gate", self.dtype)(x)
        z = projection(self.state, "input", self.dtype)(x)
        w_f_x = projection(self.state, "forget_gate", self.dtype)(x)
        o_h, last = recurrent_layer(
            self,
            GATED_SSM,
            (w_i_x, z, w_f_x),
            w_o_x,
            (b_f,),
            layout=layout,
            initial=initial,
            settings=ScanSettings(self.bidirectional, self.scan_dtype, self.scan_implementation),
        )
        y = output_projection(self.features, "out", self.dtype, self.output_scale)(o_h)
        return y, None if cache is None else cache.updated(last, tail)

    def empty_cache(self, rows: int, length: int | None = None) -> RecurrentCache:
        """Return the cache for `rows` new samples; its size does not depend on `length`."""
        del length
        channels = self.state // 2 if self.bidirectional else self.state
        tail = (max(self.conv_width - 1, 0), self.features)
        return empty_recurrent_cache(rows, channels, tail, self.dtype)


register_model("gated_ssm", mixer=GatedSSM, config=GatedSSMConfig)
register_model("gated_ssm_mlp", mixer=GatedSSM, config=GatedSSMConfig, has_mlp=True)
register_model("gated_ssm_plus", mixer=GatedSSM, config=GatedSSMConfig, has_mlp=True)
