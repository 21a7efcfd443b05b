"""The Minimalist Birdie SSM of the early draft: two maps into the state and one out of it."""

from dataclasses import dataclass
from typing import ClassVar, Unpack

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array

from birdie_jax.array_types import Activations
from birdie_jax.config_sections import ModelConfig, Require
from birdie_jax.config_types import Name
from birdie_jax.models.layers import output_projection, projection
from birdie_jax.models.layout import Layout
from birdie_jax.models.recurrence import (
    RecurrentCache,
    RecurrentConfig,
    ScanSettings,
    empty_recurrent_cache,
    recurrent_attributes,
    recurrent_layer,
)
from birdie_jax.models.registry import ModuleFields, register_model
from pallas_kernels.gated_scan import Cell, gelu, sigmoid

INPUT_ACTIVATIONS = {
    "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid,
    "gelu": jax.nn.gelu,
    "identity": lambda x: x,
}


@dataclass(frozen=True)
class BirdieSSMConfig(RecurrentConfig):
    """`config.model.birdie_ssm`.

    Attributes:
        input_activation: tau, one of `INPUT_ACTIVATIONS`.
    """

    section: ClassVar[str] = "birdie_ssm"

    input_activation: Name = "tanh"

    def check_fields(self, require: Require) -> None:
        """Check each field by itself."""
        known = self.input_activation in INPUT_ACTIVATIONS
        require(known, "model.birdie_ssm.input_activation", ", ".join(INPUT_ACTIVATIONS))


def _recurrence_inputs(
    parameters: tuple[Array, ...], operands: tuple[Array, ...], not_reset: Array | None
) -> tuple[Array, Array]:
    """Return f_t and z_t of h_t = f_t * h_{t-1} + z_t."""
    del parameters, not_reset
    z, w_f_x = operands
    f = sigmoid(w_f_x)
    return f, z


BIRDIE_SSM = Cell(
    name="birdie_ssm",
    operands=("input", "forget_gate"),
    parameters=(),
    recurrence_inputs=_recurrence_inputs,
    # The model has no output gate, so this is not used.
    readout=gelu,
    transcendentals=1,
    # z = 0, f = 1.
    identity_operands=(0.0, 1e4),
)
"""The recurrence of the Minimalist Birdie SSM: see `BirdieSSM`."""


class BirdieSSM(nn.Module):
    """Minimalist SSM of Birdie's early draft (section 3.1) for a normalised input x_t:

        z_t = tau(W_k x_t)        f_t = sigmoid(W_f x_t)
        h_t = f_t * h_{t-1} + z_t
        y_t = W_out h_t

    As in the draft, there is no bias. The draft does not define tau, and writes the logistic function with
    another letter. It compares the layer with that of Martin and Cundy (2018), where tau is the activation
    of the state's input. The default is tanh: as tanh is bounded, a state with f = 1 grows no faster than
    the sequence.

    If `bidirectional`, the second half of the channels runs in reverse on the context.

    Attributes:
        features: the width D of input and output.
        state: the recurrent channels N, even.
        input_activation: tau, one of `INPUT_ACTIVATIONS`.
        bidirectional: whether the second half of the state runs in reverse on the context.
        dtype: the type of the matrix products.
        scan_dtype: the type of f, z and h in memory; the carry is float32.
        scan_implementation: the implementation of `gated_scan`; None = the best one for the platform.
        output_scale: the factor of the initial size of W_out.
    """  # noqa: D400, D415

    features: int
    state: int
    input_activation: str
    bidirectional: bool
    dtype: jnp.dtype
    scan_dtype: jnp.dtype
    scan_implementation: str | None = None
    output_scale: float = 1.0

    @classmethod
    def from_config(
        cls, config: ModelConfig, *, output_scale: float, **module: Unpack[ModuleFields]
    ) -> "BirdieSSM":
        """Return the mixer of `config`; see `registry.Mixer`."""
        return cls(
            input_activation=config.section(BirdieSSMConfig).input_activation,
            output_scale=output_scale,
            **recurrent_attributes(config),
            **module,
        )

    @nn.compact
    def __call__(
        self, x: Activations, layout: Layout, cache: RecurrentCache | None = None
    ) -> tuple[Activations, RecurrentCache | None]:
        """Mix along the sequence; arguments and results are as in `GatedSSM`."""
        tau = INPUT_ACTIVATIONS[self.input_activation]
        z = tau(projection(self.state, "input", self.dtype)(x))
        w_f_x = projection(self.state, "forget_gate", self.dtype)(x)
        h, last = recurrent_layer(
            self,
            BIRDIE_SSM,
            (z, w_f_x),
            None,
            (),
            layout=layout,
            initial=None if cache is None else cache.state,
            settings=ScanSettings(self.bidirectional, self.scan_dtype, self.scan_implementation),
        )
        y = output_projection(self.features, "out", self.dtype, self.output_scale)(h)
        return y, None if cache is None else cache.updated(last, cache.conv_tail)

    def empty_cache(self, rows: int, length: int | None = None) -> RecurrentCache:
        """Return the cache for `rows` new samples; its size does not depend on `length`."""
        del length
        channels = self.state // 2 if self.bidirectional else self.state
        return empty_recurrent_cache(rows, channels, (0, self.features), self.dtype)


register_model("birdie_ssm", mixer=BirdieSSM, config=BirdieSSMConfig)
