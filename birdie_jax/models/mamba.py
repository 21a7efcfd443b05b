"""Mamba's sequence mixer: a short convolution and a gated selective scan."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Unpack

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn import silu
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from birdie_jax.array_types import Activations, Key, RowState, StateSequence
from birdie_jax.config_sections import ModelConfig, Require
from birdie_jax.config_types import ConvolutionTaps, RankOrDerived, Width
from birdie_jax.models.gate_statistics import is_requested, sow_gate_statistics
from birdie_jax.models.influence import sow_influence
from birdie_jax.models.layers import Projection, ShortConvolution
from birdie_jax.models.layout import Layout
from birdie_jax.models.parameters import ParameterPolicy, parameter
from birdie_jax.models.platforms import check_implementation
from birdie_jax.models.recurrence import (
    Recurrence,
    RecurrentCache,
    RecurrentConfig,
    sharded_recurrence,
)
from birdie_jax.models.registry import ModuleFields, register_model
from birdie_jax.models.selective_influence import SelectiveArrays
from birdie_jax.models.sequence_parallel import RecurrenceOperands, Resets
from pallas_kernels.selective_scan import (
    IMPLEMENTATIONS,
    MAX_GPU_STATES,
    max_tpu_states,
    selective_scan,
)

FEATURES_PER_RANK = 16
STEP_RANGE = (1e-3, 0.1)
MIN_STEP = 1e-4
# exp of a larger number overflows float32. A rate of exp(80) forgets everything in a single step.
MAX_A_LOG = 80.0
# The softplus of this plus any bias is 0, so the token leaves the state unchanged.
NO_STEP = -1e30
# The scale of a uniform distribution within +-1 / sqrt(inputs).
UNIFORM_SCALE = 3**-0.5


@dataclass(frozen=True)
class MambaConfig(RecurrentConfig):
    """`config.model.mamba`; the inner channels E are `config.model.state`, in the paper 2 D.

    Attributes:
        state_size: the states N of a channel.
        time_step_rank: the rank R of the map to the steps; 0 = `config.model.features` / 16, rounded up.
        conv_width: the taps of the short convolution.
    """

    section: ClassVar[str] = "mamba"
    free_fields: ClassVar[frozenset[str]] = frozenset({"state_size", "time_step_rank", "conv_width"})

    state_size: Width = 16
    time_step_rank: RankOrDerived = 0
    conv_width: ConvolutionTaps = 4

    @property
    def has_linear_scan(self) -> bool:
        """False: a channel has several numbers of state."""
        return False

    def conv_taps(self, model: ModelConfig) -> int:
        """Return the taps of the short convolution in a model."""
        del model
        return self.conv_width

    def check_platform(self, model: ModelConfig, platform: str, require: Require) -> None:
        """Check that `selective_scan` has the implementation, and that it is available for the platform."""
        chosen = model.scan_implementation
        check_implementation(require, "model.scan_implementation", chosen, IMPLEMENTATIONS, platform)
        limits = {"pallas_gpu": MAX_GPU_STATES, "pallas_tpu": max_tpu_states(model.dtype)}
        most = limits.get(chosen, self.state_size)
        allowed = f"xla, or empty, with a model.mamba.state_size of more than {most} in {model.dtype}"
        require(self.state_size <= most, "model.scan_implementation", allowed)


def real_s4d(key: Key, shape: tuple[int, ...], dtype: DTypeLike = jnp.float32) -> Array:
    """Return log(1 .. N) for every channel, the logarithm of S4D-Real's rates (Gu et al. 2022)."""
    del key
    return jnp.broadcast_to(jnp.log(jnp.arange(1, shape[-1] + 1, dtype=dtype)), shape)


def log_uniform_steps(key: Key, shape: tuple[int, ...], dtype: DTypeLike = jnp.float32) -> Array:
    """Return biases whose softplus is log-uniform on `STEP_RANGE` (Gu and Dao 2023, section 3.6)."""
    low, high = map(math.log, STEP_RANGE)
    steps = jnp.maximum(jnp.exp(jax.random.uniform(key, shape, dtype, low, high)), MIN_STEP)
    return steps + jnp.log(-jnp.expm1(-steps))


class Mamba(nn.Module):
    """Mamba's block (Gu and Dao 2023, sections 3.2 and 3.4, algorithm 2) for a normalised input x_t:

        u_t = SiLU(conv(W_in x)_t + b)           z_t = W_z x_t
        [r_t, B_t, C_t] = W_x u_t                s_t = softplus(W_s r_t + b_s)
        h_t = exp(s_t A) h_{t-1} + s_t B_t u_t   A = -exp(A_log)
        y_t = W_out((C_t . h_t + D u_t) * SiLU(z_t))

    h_t has N numbers for each of E channels. As in the authors' code, B_t is multiplied by the step (Euler)
    instead of discretised with a zero-order hold. Initial values are also the authors': maps uniform within
    +-1 / sqrt(inputs), W_out smaller by `output_scale`, A_log = log(1 .. N), D = 1.

    If `bidirectional`, the second half of the channels runs in reverse on the context; both halves share B
    and C. Parameters and computation stay the same as in the causal model.

    Attributes:
        features: the width D of input and output.
        state: the inner channels E, even.
        state_size: the states N of a channel.
        rank: the rank R of the map to the steps.
        conv_width: the taps of the convolution.
        bidirectional: whether the second half of the channels runs in reverse.
        dtype: the type of the matrix products; steps, states and their gates are float32.
        scan_implementation: the implementation of `selective_scan`; None = the best one for the platform.
        output_scale: the factor of the initial size of W_out.
    """  # noqa: D400, D415

    features: int
    state: int
    state_size: int
    rank: int
    conv_width: int
    bidirectional: bool
    dtype: jnp.dtype
    scan_implementation: str | None = None
    output_scale: float = 1.0

    @classmethod
    def from_config(
        cls, config: ModelConfig, *, output_scale: float, **module: Unpack[ModuleFields]
    ) -> "Mamba":
        """Return the mixer of `config`; see `registry.Mixer`."""
        section = config.section(MambaConfig)
        return cls(
            features=config.features,
            state=config.state,
            state_size=section.state_size,
            rank=section.time_step_rank or math.ceil(config.features / FEATURES_PER_RANK),
            conv_width=section.conv_width,
            bidirectional=config.bidirectional,
            dtype=jnp.dtype(config.dtype),
            scan_implementation=config.scan_implementation or None,
            output_scale=output_scale,
            **module,
        )

    @nn.compact
    def __call__(
        self, x: Activations, layout: Layout, cache: RecurrentCache | None = None
    ) -> tuple[Activations, RecurrentCache | None]:
        """Mix along the sequence; arguments and results are as in `GatedSSM`."""
        z = self._project("output_gate", self.state, ("features", "inner"))(x)
        u = self._project("input", self.state, ("features", "inner"))(x)
        initial, tail = (None, None) if cache is None else cache
        uniform = nn.initializers.uniform(2 * self.conv_width**-0.5)

        def centred(*arguments: Any) -> Array:
            return uniform(*arguments) - self.conv_width**-0.5

        u, tail = ShortConvolution(
            self.conv_width, self.dtype, "inner", kernel_init=centred, bias_init=centred, name="convolution"
        )(u, layout, tail)
        u = silu(u)
        selected = self._project("selection", self.rank + 2 * self.state_size, ("inner", None))(u)
        r, B, C = jnp.split(selected, [self.rank, self.rank + self.state_size], axis=-1)
        steps = self._project("step", self.state, (None, "inner"))(r)
        if layout.skipped is not None:
            steps = jnp.where(layout.skipped[..., None], jnp.asarray(NO_STEP, steps.dtype), steps)
        y, last = self._scan((u, steps, z), (B, C), layout, initial)
        y = self._project("out", self.features, ("inner", "features"), self.output_scale)(y)
        return y, None if cache is None else cache.updated(last, tail)

    def _project(
        self, name: str, features: int, axes: tuple[str | None, str | None], scale: float = 1.0
    ) -> Projection:
        return Projection(features, axes, self.dtype, scale * UNIFORM_SCALE, "uniform", name=name)

    def _scan(
        self,
        sequences: tuple[StateSequence, StateSequence, StateSequence],
        weights: tuple[Float[Array, "rows length N"], Float[Array, "rows length N"]],
        layout: Layout,
        initial: Float[Array, "rows N forward"] | None,
    ) -> tuple[StateSequence, RowState]:
        """Return the gated output, and each channel's state after the last token it read.

        Args:
            sequences: u, the steps before their bias, and z.
            weights: B and C.
            layout: the resets.
            initial: the state of the forward channels before the first token; zero if None.
        """
        policy = ParameterPolicy(("inner",), weight_decay=False)
        rates_policy = ParameterPolicy(("inner", None), weight_decay=False)
        A_log = parameter(self, "A_log", real_s4d, (self.state, self.state_size), rates_policy)
        D = parameter(self, "D", nn.initializers.ones_init(), (self.state,), policy)
        bias = parameter(self, "step_bias", log_uniform_steps, (self.state,), policy)
        A = -jnp.exp(jnp.minimum(A_log, MAX_A_LOG))
        resets = (layout.forward_reset,)
        if self.bidirectional:
            resets = (layout.forward_reset, layout.reverse_reset)
        if layout.influence is not None:
            u, steps, _ = sequences
            taken = jax.nn.softplus(steps.astype(jnp.float32) + bias)
            sow_influence(self, layout.influence, SelectiveArrays(taken, u, A, *weights), resets)
        rows = sequences[0].shape[0]
        h0 = jnp.zeros((rows, self.state_size, self.state), jnp.float32)
        if initial is not None:
            # The tokens after the last one are not known yet, so reverse channels start from zero.
            h0 = h0.at[..., : initial.shape[-1]].set(initial)
        y, last = sharded_recurrence(
            make_recurrence(self.scan_implementation),
            RecurrenceOperands(sequences, (A, D, bias), weights),
            h0,
            resets,
            bidirectional=self.bidirectional,
        )
        if is_requested(self):
            taken = jax.nn.softplus(sequences[1].astype(jnp.float32) + bias)
            sow_gate_statistics(self, jnp.exp(taken[..., None] * A), last, layout)
        return y, last

    def empty_cache(self, rows: int, length: int | None = None) -> RecurrentCache:
        """Return the cache for `rows` new samples; its size does not depend on `length`."""
        del length
        channels = self.state // 2 if self.bidirectional else self.state
        return RecurrentCache(
            state=jnp.zeros((rows, self.state_size, channels), jnp.float32),
            conv_tail=jnp.zeros((rows, self.conv_width - 1, self.state), self.dtype),
        )


def make_recurrence(implementation: str | None) -> Recurrence:
    """Return the recurrence with the operands ((u, steps, z), (A, D, bias of the steps), (B, C))."""

    def scan(
        direction: str, inputs: RecurrenceOperands, h0: RowState | None, resets: Resets
    ) -> tuple[StateSequence, RowState]:
        (u, steps, z), (A, D, bias), (B, C) = inputs
        return selective_scan(
            *(u, steps, A, B, C, D),
            z=z,
            dt_bias=bias,
            h0=h0,
            resets=resets,
            direction=direction,
            implementation=implementation,
        )

    return Recurrence(scan, _decay_product, ("rows", None, "inner"))


def _decay_product(direction: str, inputs: RecurrenceOperands, resets: Resets) -> RowState:
    """Return exp(A sum_t s_t) [rows, N, channels], zero if a reset is among the tokens."""
    (_, steps, _), (A, _, bias), _ = inputs
    total = jnp.sum(jax.nn.softplus(steps.astype(jnp.float32) + bias), axis=1)
    product = jnp.exp(total[:, None] * A.T)
    halves = jnp.split(product, 2, axis=-1) if direction == "both" else (product,)
    cut = [
        jnp.where(jnp.any(reset, axis=1)[:, None, None], 0.0, half)
        for half, reset in zip(halves, resets, strict=True)
    ]
    return jnp.concatenate(cut, axis=-1)


register_model("mamba", mixer=Mamba, config=MambaConfig)
