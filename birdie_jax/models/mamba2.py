"""Mamba-2's sequence mixer: a gated, normalised state-space dual recurrence with one matrix per head."""

from dataclasses import dataclass
from typing import Any, ClassVar, Unpack

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from birdie_jax.array_types import Activations, RowState, StateSequence
from birdie_jax.config_sections import Config, ModelConfig, Require
from birdie_jax.config_types import Heads, Width
from birdie_jax.models.gate_statistics import is_requested, sow_gate_statistics
from birdie_jax.models.influence import sow_influence
from birdie_jax.models.layers import Projection, ShortConvolution
from birdie_jax.models.layout import Layout
from birdie_jax.models.mamba import MAX_A_LOG, NO_STEP, UNIFORM_SCALE, log_uniform_steps
from birdie_jax.models.matrix_influence import MatrixArrays
from birdie_jax.models.matrix_recurrence import (
    HeadStates,
    MatrixCache,
    MatrixRecurrentConfig,
    decode,
    empty_matrix_cache,
    reads_one_token,
    state_of_all_heads,
    uniform_rates,
)
from birdie_jax.models.parameters import ParameterPolicy, parameter
from birdie_jax.models.recurrence import Recurrence, sharded_recurrence
from birdie_jax.models.registry import ModuleFields, register_model
from birdie_jax.models.sequence_parallel import RecurrenceOperands, Resets
from pallas_kernels.matrix_state.layer_token import LayerState
from pallas_kernels.ssd import ssd
from pallas_kernels.ssd.ssd import read_ssd_token

RATE_RANGE = (1.0, 16.0)
# With heads of 64 x 128 and chunks of 256, products within chunks would cost three times those with states.
CHUNK = 128

HeadSequence = Float[Array, "rows length heads P"]
Steps = Float[Array, "rows length heads"]
GroupSequence = Float[Array, "rows length groups N"]


@dataclass(frozen=True)
class Mamba2Config(MatrixRecurrentConfig):
    """`config.model.mamba2`; the inner channels E are `config.model.state`, in the paper 2 D.

    Attributes:
        head_features: the channels P of a head.
        state_size: the states N of a channel.
        groups: the groups of heads that share B and C, and of channels that are normalised together.
    """

    section: ClassVar[str] = "mamba2"
    free_fields: ClassVar[frozenset[str]] = frozenset({"state_size", "conv_width"})

    head_features: Width = 64
    state_size: Width = 128
    groups: Heads = 1

    def heads(self, model: ModelConfig) -> int:
        """Return the number of heads."""
        return model.state // self.head_features

    def check_model(self, config: Config, require: Require) -> None:
        """Check that heads divide the channels and groups the heads, and the convolutions' spacing."""
        super().check_model(config, require)
        state, section = config.model.state, f"model.{self.section}"
        whole = state % self.head_features == 0
        require(whole, f"{section}.head_features", f"a divisor of model.state = {state}")
        heads = self.heads(config.model)
        require(heads % self.groups == 0, f"{section}.groups", f"a divisor of the {heads} heads")
        if config.model.bidirectional:
            allowed = (
                f"an even number of heads: half of them runs in reverse; model.state = {state} has {heads}"
            )
            require(heads % 2 == 0, f"{section}.head_features", allowed)
            allowed = "1, or an even number: half of the heads runs in reverse"
            require(self.groups == 1 or self.groups % 2 == 0, f"{section}.groups", allowed)

    def head_counts(self, model: ModelConfig) -> dict[str, int]:
        """Return the numbers of heads that a mesh must divide; a single group is whole on every device."""
        section = f"model.{self.section}"
        counts = {f"model.state / {section}.head_features": self.heads(model)}
        return counts if self.groups == 1 else counts | {f"{section}.groups": self.groups}

    def extra_flops_per_token(self, model: ModelConfig, length: int) -> float:
        """Return the FLOPs of the recurrence: one product reads each matrix, and one writes it."""
        del length
        return 3.0 * 4 * model.state * self.state_size * model.layers


class Mamba2(nn.Module):
    """Mamba-2's block (Dao and Gu 2024, section 7). For a normalised input x_t and each head of P channels

        u_t = SiLU(conv(W_in x)_t + b)     z_t = W_z x_t
        B_t = SiLU(conv(W_B x)_t + b_B)    C_t = SiLU(conv(W_C x)_t + b_C)
        s_t = softplus(W_s x_t + b_s)      A = -exp(A_log)
        h_t = exp(s_t A) h_{t-1} + s_t u_t B_t^T
        y_t = W_out(RMSNorm((h_t C_t + D u_t) * SiLU(z_t)))

    h_t is a matrix of P x N; A, D and s_t are one number per head. The heads of a group share B and C, and
    the channels of a group are normalised together. Initial values are the authors': exp(A_log) uniform
    from 1 to 16, softplus(b_s) log-uniform from 0.001 to 0.1, D = 1, maps and convolutions uniform within
    +-1 / sqrt(inputs), W_out smaller by `output_scale`.

    If `bidirectional`, the second half of the heads runs in reverse on the context; both halves share the B
    and C of a single group. Parameters and computation stay the same as in the causal model.

    Attributes:
        features: the width D of input and output.
        state: the inner channels E.
        head_features: the channels P of a head.
        state_size: the states N of a channel.
        groups: the groups of heads that share B and C.
        conv_width: the taps of the convolutions.
        norm_epsilon: the number added to the mean square of a group.
        bidirectional: whether the second half of the heads runs in reverse.
        dtype: the type of the matrix products; steps, decays and states are float32.
        scan_implementation: the implementation of `ssd`; None = the best one for the platform.
        output_scale: the factor of the initial size of W_out.
    """  # noqa: D400, D415

    features: int
    state: int
    head_features: int
    state_size: int
    groups: int
    conv_width: int
    norm_epsilon: float
    bidirectional: bool
    dtype: jnp.dtype
    scan_implementation: str | None = None
    output_scale: float = 1.0

    @classmethod
    def from_config(
        cls, config: ModelConfig, *, output_scale: float, **module: Unpack[ModuleFields]
    ) -> "Mamba2":
        """Return the mixer of `config`; see `registry.Mixer`."""
        section = config.section(Mamba2Config)
        return cls(
            features=config.features,
            state=config.state,
            head_features=section.head_features,
            state_size=section.state_size,
            groups=section.groups,
            conv_width=section.conv_width,
            norm_epsilon=config.norm_epsilon,
            bidirectional=config.bidirectional,
            dtype=jnp.dtype(config.dtype),
            scan_implementation=config.scan_implementation or None,
            output_scale=output_scale,
            **module,
        )

    @property
    def heads(self) -> int:
        """The number of heads."""
        return self.state // self.head_features

    @nn.compact
    def __call__(
        self, x: Activations, layout: Layout, cache: MatrixCache | None = None
    ) -> tuple[Activations, MatrixCache | None]:
        """Mix along the sequence; arguments and results are as in `GatedSSM`."""
        # A single group is whole on every device.
        of_groups = self.groups * self.state_size, "inner" if self.groups > 1 else None
        cached, tails = (None, (None, None, None)) if cache is None else cache
        z = self._project("output_gate", self.state, ("features", "inner"))(x)
        u, u_tail = self._convolved("input", (self.state, "inner"), x, layout, tails[0])
        B, B_tail = self._convolved("input_weights", of_groups, x, layout, tails[1])
        C, C_tail = self._convolved("output_weights", of_groups, x, layout, tails[2])
        steps = self._project("step", self.heads, ("features", "inner"))(x)
        if layout.skipped is not None:
            steps = jnp.where(layout.skipped[..., None], jnp.asarray(NO_STEP, steps.dtype), steps)
        u = u.reshape(*u.shape[:2], self.heads, self.head_features)
        B, C = (array.reshape(*array.shape[:2], self.groups, self.state_size) for array in (B, C))
        y, last = self._scan((u, steps), (B, C), layout, cached)
        y = self._normalise(y.reshape(z.shape) * jax.nn.silu(z))
        y = self._project("out", self.features, ("inner", "features"), self.output_scale)(y)
        return y, None if cache is None else cache.updated(last, (u_tail, B_tail, C_tail))

    def _project(
        self, name: str, features: int, axes: tuple[str | None, str | None], scale: float = 1.0
    ) -> Projection:
        return Projection(features, axes, self.dtype, scale * UNIFORM_SCALE, "uniform", name=name)

    def _convolved(
        self,
        name: str,
        width: tuple[int, str | None],
        x: Activations,
        layout: Layout,
        tail: Float[Array, "rows tail state"] | None,
    ) -> tuple[StateSequence, Float[Array, "rows tail state"]]:
        """Return SiLU(conv(W x) + b) and the new tail; `width` is the channels and their logical axis."""
        channels, axis = width
        uniform = nn.initializers.uniform(2 * self.conv_width**-0.5)

        def centred(*arguments: Any) -> Array:
            return uniform(*arguments) - self.conv_width**-0.5

        mapped = self._project(name, channels, ("features", axis))(x)
        convolved, tail = ShortConvolution(
            *(self.conv_width, self.dtype, axis),
            kernel_init=centred,
            bias_init=centred,
            name=f"{name}_convolution",
        )(mapped, layout, tail)
        return jax.nn.silu(convolved), tail

    def _normalise(self, y: StateSequence) -> StateSequence:
        """Return y with a mean square of one in each group, times a learned scale."""
        policy = ParameterPolicy(("inner",), weight_decay=False)
        scale = parameter(self, "norm_scale", nn.initializers.ones_init(), (self.state,), policy)
        groups = y.astype(jnp.float32).reshape(*y.shape[:2], self.groups, -1)
        inverse = jax.lax.rsqrt(jnp.mean(jnp.square(groups), axis=-1, keepdims=True) + self.norm_epsilon)
        return ((groups * inverse).reshape(y.shape) * scale).astype(y.dtype)

    def _scan(
        self,
        sequences: tuple[HeadSequence, Steps],
        weights: tuple[GroupSequence, GroupSequence],
        layout: Layout,
        cached: HeadStates | None,
    ) -> tuple[HeadSequence, Float[Array, "rows states P N"] | LayerState]:
        """Return y before its gate, and each head's state after the last token it read.

        Args:
            sequences: u, and the steps before their bias.
            weights: B and C.
            layout: the resets.
            cached: the state of the forward heads before the first token; zero if None.
        """
        policy = ParameterPolicy(("inner",), weight_decay=False)
        A_log = parameter(self, "A_log", uniform_rates(*RATE_RANGE), (self.heads,), policy)
        D = parameter(self, "D", nn.initializers.ones_init(), (self.heads,), policy)
        bias = parameter(self, "step_bias", log_uniform_steps, (self.heads,), policy)
        A = -jnp.exp(jnp.minimum(A_log, MAX_A_LOG))
        resets = (layout.forward_reset,)
        if self.bidirectional:
            resets = (layout.forward_reset, layout.reverse_reset)
        if layout.influence is not None:
            u, steps = sequences
            taken = jax.nn.softplus(steps.astype(jnp.float32) + bias)
            sow_influence(self, layout.influence, MatrixArrays(taken, u, A, *weights), resets)
        if cached is not None and reads_one_token(sequences[0].shape[1]):
            vectors = (jnp.broadcast_to(vector, sequences[1].shape) for vector in (A, D, bias))
            arrays = (*sequences, *weights, *vectors)
            return decode(
                *(self._read_token, arrays, cached, layout.forward_reset), bidirectional=self.bidirectional
            )
        shape = (sequences[0].shape[0], self.heads, self.head_features, self.state_size)
        # A single group is whole on every device that holds some of the heads.
        operands = RecurrenceOperands(sequences, (A, D, bias), weights)
        if self.groups > 1:
            operands = RecurrenceOperands((*sequences, *weights), (A, D, bias), ())
        y, last = sharded_recurrence(
            make_recurrence(self.scan_implementation),
            operands,
            state_of_all_heads(cached, shape),
            resets,
            bidirectional=self.bidirectional,
        )
        if is_requested(self):
            taken = jax.nn.softplus(sequences[1].astype(jnp.float32) + bias)
            sow_gate_statistics(self, jnp.exp(taken * A), last, layout)
        return y, last

    def _read_token(
        self, arrays: tuple[Array, ...], state: HeadStates | None, resets: Resets | None
    ) -> tuple[Array, HeadStates]:
        u, steps, B, C, *vectors = arrays
        A, D, bias = (vector[0, 0] for vector in vectors)
        if isinstance(state, LayerState):
            return read_ssd_token(
                *((u, steps, B, C), (A, D, bias), state),
                resets=resets,
                implementation=self.scan_implementation,
            )
        return ssd(
            *(u, steps, A, B, C, D),
            dt_bias=bias,
            initial_state=state,
            resets=resets,
            implementation=self.scan_implementation,
        )

    def empty_cache(self, rows: int, length: int | None = None) -> MatrixCache:
        """Return the cache for `rows` new samples; its size does not depend on `length`."""
        del length
        heads = self.heads // 2 if self.bidirectional else self.heads
        of_groups = self.groups * self.state_size
        tails = tuple((self.conv_width - 1, width) for width in (self.state, of_groups, of_groups))
        return empty_matrix_cache(rows, (heads, self.head_features, self.state_size), tails, self.dtype)


def make_recurrence(implementation: str | None) -> Recurrence:
    """Return the recurrence with the operands ((u, steps, and B, C of several groups), (A, D, b_s))."""

    def scan(
        direction: str, inputs: RecurrenceOperands, h0: RowState | None, resets: Resets
    ) -> tuple[Array, Array]:
        u, steps, B, C = (*inputs.sequences, *inputs.shared)
        A, D, bias = inputs.vectors
        return ssd(
            *(u, steps, A, B, C, D),
            dt_bias=bias,
            initial_state=h0,
            resets=resets,
            direction=direction,
            chunk_size=CHUNK,
            implementation=implementation,
        )

    return Recurrence(scan, _decay_product, ("rows", "inner", None, None))


def _decay_product(direction: str, inputs: RecurrenceOperands, resets: Resets) -> Array:
    """Return exp(A sum_t s_t) [rows, heads, 1, 1], zero if a reset is among the tokens."""
    A, _, bias = inputs.vectors
    total = jnp.sum(jax.nn.softplus(inputs.sequences[1].astype(jnp.float32) + bias), axis=1)
    product = jnp.exp(total * A)
    halves = jnp.split(product, 2, axis=1) if direction == "both" else (product,)
    cut = [
        jnp.where(jnp.any(reset, axis=1)[:, None], 0.0, half)
        for half, reset in zip(halves, resets, strict=True)
    ]
    return jnp.concatenate(cut, axis=1)[..., None, None]


register_model("mamba2", mixer=Mamba2, config=Mamba2Config)
