"""Gated DeltaNet's sequence mixer: one associative memory per head, with the delta rule and decay gates."""

from dataclasses import dataclass
from typing import Any, ClassVar, Unpack

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from birdie_jax.array_types import Activations, RowState, StateSequence
from birdie_jax.config_sections import Config, ModelConfig, Require
from birdie_jax.config_types import Heads, HeadsOrAsMany, RankOrDerived
from birdie_jax.models.gate_statistics import is_requested, sow_gate_statistics
from birdie_jax.models.layers import Projection, RMSNorm, ShortConvolution, output_projection, projection
from birdie_jax.models.layout import Layout
from birdie_jax.models.mamba import MAX_A_LOG, log_uniform_steps
from birdie_jax.models.matrix_recurrence import (
    HeadStates,
    MatrixCache,
    MatrixRecurrentConfig,
    apply_matrix,
    apply_transposed_matrix,
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
from pallas_kernels.gated_delta_rule import gated_delta_rule
from pallas_kernels.matrix_state.layer_token import LayerState, read_layer_token
from pallas_kernels.matrix_state.sequences import HeadSequences

# Initial rates are uniform on this range. It excludes zero, which has no logarithm.
RATE_RANGE = (1e-2, 16.0)
NORM_EPSILON = 1e-6
_MOVES_OTHERS = "in which a token also changes what others wrote"

ValueHeads = Float[Array, "rows length heads d_v"]
KeyHeads = Float[Array, "rows length key_heads d_k"]
HeadNumbers = Float[Array, "rows length heads"]


@dataclass(frozen=True)
class GatedDeltaNetConfig(MatrixRecurrentConfig):
    """`config.model.gated_deltanet`; the values have `config.model.state` channels, in heads.

    Attributes:
        heads: the heads of the values, each with a matrix as its state.
        key_heads: the heads of queries and keys, each shared by heads / key_heads heads; 0 = as many as
            heads.
        key_features: the width d_k of a key; 0 = half the width of a value.
        channel_decay: whether each channel of the keys has its own decay, as in Kimi Delta Attention;
            otherwise each head has one.
        negative_eigenvalues: whether a write may flip the sign of the value it replaces (beta up to 2).
    """

    section: ClassVar[str] = "gated_deltanet"
    free_fields: ClassVar[frozenset[str]] = frozenset({"conv_width", "key_features"})

    heads: Heads = 4
    key_heads: HeadsOrAsMany = 0
    key_features: RankOrDerived = 0
    channel_decay: bool = False
    negative_eigenvalues: bool = False

    def sizes(self, model: ModelConfig) -> tuple[int, int, int]:
        """Return the heads of the keys, d_k and d_v."""
        values = model.state // self.heads
        return self.key_heads or self.heads, self.key_features or values // 2, values

    def check_model(self, config: Config, require: Require) -> None:
        """Check that heads divide the channels, and the spacing for the convolutions."""
        super().check_model(config, require)
        state, section = config.model.state, f"model.{self.section}"
        require(state % self.heads == 0, f"{section}.heads", f"a divisor of model.state = {state}")
        derived = self.key_features > 0 or state // self.heads >= 2
        require(derived, f"{section}.key_features", "at least 1 where a value has a single channel")
        divides = not self.key_heads or self.heads % self.key_heads == 0
        require(divides, f"{section}.key_heads", f"a divisor of {section}.heads = {self.heads}")
        self._check_kernel(config.model, require)
        if config.model.bidirectional:
            allowed = "an even number: half of the heads runs in reverse"
            require(self.heads % 2 == 0, f"{section}.heads", allowed)
            paired = self.key_heads == 1 or self.key_heads % 2 == 0
            require(paired, f"{section}.key_heads", f"1, or {allowed}")

    def check_platform(self, model: ModelConfig, platform: str, require: Require) -> None:
        """Check that the implementation of the recurrence is available for the platform and the decays."""
        super().check_platform(model, platform, require)
        self._check_kernel(model, require)

    def _check_kernel(self, model: ModelConfig, require: Require) -> None:
        has_kernel = not self.channel_decay or model.scan_implementation in ("", "xla")
        allowed = f"xla, or empty, with model.{self.section}.channel_decay, which has no kernel"
        require(has_kernel, "model.scan_implementation", allowed)

    @property
    def influence_problem(self) -> tuple[str, str]:
        """Why tokens have no score: a write also changes what other tokens wrote."""
        return _MOVES_OTHERS, "a model whose tokens add up, as gated_ssm_plus or mamba2"

    def head_counts(self, model: ModelConfig) -> dict[str, int]:
        """Return the numbers of heads that a mesh must divide."""
        section = f"model.{self.section}"
        return {f"{section}.heads": self.heads, f"{section}.key_heads": self.sizes(model)[0]}

    def extra_flops_per_token(self, model: ModelConfig, length: int) -> float:
        """Return the FLOPs of the recurrence: one product per matrix to read, to correct and to write."""
        del length
        _, d_k, d_v = self.sizes(model)
        return 3.0 * 6 * self.heads * d_k * d_v * model.layers

    def computation(self, model: ModelConfig) -> dict[str, Any]:
        """Return the fields that define the mixer's computation, with the actual number of key heads."""
        found = super().computation(model)
        return found | {f"{self.section}.key_heads": self.sizes(model)[0]}


class GatedDeltaNet(nn.Module):
    """Gated DeltaNet (Yang et al. 2024, section 3.4). For a normalised input x_t and each head

        q_t = d_k^(-1/2) L2(SiLU(conv(W_q x)_t))    k_t = L2(SiLU(conv(W_k x)_t))
        v_t = SiLU(conv(W_v x)_t)                   beta_t = sigmoid(W_b x_t)
        g_t = -exp(A_log) softplus(W_a x_t + b_a)
        S_t = (I - beta_t k_t k_t^T) exp(g_t) S_{t-1} + beta_t k_t v_t^T
        o_t = S_t^T q_t
        y_t = W_out(RMSNorm(o_t) * SiLU(W_g x_t))

    L2(x) = x / sqrt(sum x^2 + 1e-6). With `negative_eigenvalues` beta_t is doubled (Grazzi et al. 2024).
    With `channel_decay` g_t has one number per channel of the keys, W_a has rank d_v, and b_a has one
    number per channel (Kimi Team 2025, section 4).

    Initial decays give long memories, as in the authors' code: exp(A_log) uniform up to 16, softplus(b_a)
    log-uniform from 0.001 to 0.1. The convolutions start near the identity.

    If `bidirectional`, the second half of the heads runs in reverse on the context. Parameters and
    computation stay the same as in the causal model.

    Attributes:
        features: the width of input and output.
        heads: the heads of the values.
        key_heads: the heads of queries and keys.
        key_features: the width d_k of a key.
        value_features: the width d_v of a value.
        channel_decay: whether each channel of the keys has its own decay.
        negative_eigenvalues: whether beta_t is between 0 and 2 instead of 0 and 1.
        conv_width: the taps of the convolutions.
        norm_epsilon: the number added to the mean square of o_t.
        bidirectional: whether the second half of the heads runs in reverse.
        dtype: the type of the matrix products; decays, beta and states are float32.
        scan_implementation: the implementation of `gated_delta_rule`; None = the best one for the platform.
        output_scale: the factor of the initial size of W_out.
    """  # noqa: D400, D415

    features: int
    heads: int
    key_heads: int
    key_features: int
    value_features: int
    channel_decay: bool
    negative_eigenvalues: bool
    conv_width: int
    norm_epsilon: float
    bidirectional: bool
    dtype: jnp.dtype
    scan_implementation: str | None = None
    output_scale: float = 1.0

    @classmethod
    def from_config(
        cls, config: ModelConfig, *, output_scale: float, **module: Unpack[ModuleFields]
    ) -> "GatedDeltaNet":
        """Return the mixer of `config`; see `registry.Mixer`."""
        section = config.section(GatedDeltaNetConfig)
        key_heads, key_features, value_features = section.sizes(config)
        return cls(
            features=config.features,
            heads=section.heads,
            key_heads=key_heads,
            key_features=key_features,
            value_features=value_features,
            channel_decay=section.channel_decay,
            negative_eigenvalues=section.negative_eigenvalues,
            conv_width=section.conv_width,
            norm_epsilon=config.norm_epsilon,
            bidirectional=config.bidirectional,
            dtype=jnp.dtype(config.dtype),
            scan_implementation=config.scan_implementation or None,
            output_scale=output_scale,
            **module,
        )

    @nn.compact
    def __call__(
        self, x: Activations, layout: Layout, cache: MatrixCache | None = None
    ) -> tuple[Activations, MatrixCache | None]:
        """Mix along the sequence; arguments and results are as in `GatedSSM`.

        Raises:
            ValueError: the call requests the influence of tokens, which this mixer does not define.
        """
        if layout.influence is not None:
            raise ValueError(f"influence: found a layer of gated_deltanet, {_MOVES_OTHERS}; allowed: none")
        keys, values = self.key_heads * self.key_features, self.heads * self.value_features
        state, tails = (None, (None, None, None)) if cache is None else cache
        q, q_tail = self._convolved("query", keys, x, layout, tails[0])
        k, k_tail = self._convolved("key", keys, x, layout, tails[1])
        v, v_tail = self._convolved("value", values, x, layout, tails[2])
        q, k = (self._by_head(array, self.key_heads) for array in (q, k))
        q = _unit_norm(q) * self.key_features**-0.5
        beta, g = self._gates(x, layout)
        o, last = self._read((self._by_head(v, self.heads), q, _unit_norm(k)), (g, beta), layout, state)
        o = RMSNorm(self.norm_epsilon, name="output_norm")(o)
        gate = jax.nn.silu(projection(values, "output_gate", self.dtype)(x))
        gated = o.reshape(gate.shape) * gate
        y = output_projection(self.features, "out", self.dtype, self.output_scale)(gated)
        return y, None if cache is None else cache.updated(last, (q_tail, k_tail, v_tail))

    def _convolved(
        self,
        name: str,
        channels: int,
        x: Activations,
        layout: Layout,
        tail: Float[Array, "rows tail state"] | None,
    ) -> tuple[StateSequence, Float[Array, "rows tail state"]]:
        mapped = projection(channels, name, self.dtype)(x)
        convolution = ShortConvolution(self.conv_width, self.dtype, "inner", name=f"{name}_convolution")
        convolved, tail = convolution(mapped, layout, tail)
        return jax.nn.silu(convolved), tail

    @staticmethod
    def _by_head(array: StateSequence, heads: int) -> Float[Array, "rows length heads features"]:
        return array.reshape(*array.shape[:2], heads, -1)

    def _gates(self, x: Activations, layout: Layout) -> tuple[HeadNumbers, Float[Array, "rows length ..."]]:
        """Return beta and g, float32; skipped tokens neither write nor forget."""
        beta = jax.nn.sigmoid(projection(self.heads, "beta", self.dtype)(x).astype(jnp.float32))
        if self.negative_eigenvalues:
            beta = 2 * beta
        numbers = self.heads
        steps = x
        if self.channel_decay:
            numbers *= self.key_features
            steps = Projection(self.value_features, ("features", None), self.dtype, name="decay_rank")(x)
            steps = Projection(numbers, (None, "inner"), self.dtype, name="decay")(steps)
        else:
            steps = projection(numbers, "decay", self.dtype)(steps)
        policy = ParameterPolicy(("inner",), weight_decay=False)
        A_log = parameter(self, "A_log", uniform_rates(*RATE_RANGE), (self.heads,), policy)
        bias = parameter(self, "step_bias", log_uniform_steps, (numbers,), policy)
        taken = jax.nn.softplus(steps.astype(jnp.float32) + bias)
        rates = jnp.exp(jnp.minimum(A_log, MAX_A_LOG))
        if self.channel_decay:
            taken, rates = self._by_head(taken, self.heads), rates[:, None]
        g = -rates * taken
        if layout.skipped is not None:
            skipped = layout.skipped[..., None]
            beta = jnp.where(skipped, 0.0, beta)
            g = jnp.where(skipped[..., None] if self.channel_decay else skipped, 0.0, g)
        return beta, g

    def _read(
        self,
        sequences: tuple[ValueHeads, KeyHeads, KeyHeads],
        gates: tuple[Float[Array, "rows length ..."], HeadNumbers],
        layout: Layout,
        cached: HeadStates | None,
    ) -> tuple[ValueHeads, Float[Array, "rows states d_k d_v"] | LayerState]:
        """Return the tokens' outputs, and each head's state after the last token it read.

        Args:
            sequences: v, q and k.
            gates: g and beta.
            layout: the resets.
            cached: the state of the forward heads before the first token; zero if None.
        """
        resets = (layout.forward_reset,)
        if self.bidirectional:
            resets = (layout.forward_reset, layout.reverse_reset)
        if cached is not None and reads_one_token(sequences[0].shape[1]):
            return decode(
                *(self._read_token, (*sequences, *gates), cached, layout.forward_reset),
                bidirectional=self.bidirectional,
            )
        shape = (sequences[0].shape[0], self.heads, self.key_features, self.value_features)
        y, last = sharded_recurrence(
            make_recurrence(self.scan_implementation),
            RecurrenceOperands((*sequences, *gates), ()),
            state_of_all_heads(cached, shape),
            resets,
            bidirectional=self.bidirectional,
        )
        if is_requested(self):
            sow_gate_statistics(self, jnp.exp(gates[0]), last, layout)
        return y, last

    def _read_token(
        self, arrays: tuple[Array, ...], state: HeadStates | None, resets: Resets | None
    ) -> tuple[Array, HeadStates]:
        v, q, k, g, beta = arrays
        if isinstance(state, LayerState):
            sequences = HeadSequences(q, k, v, g, beta, resets)
            return read_layer_token(sequences, state, implementation=self.scan_implementation)
        return gated_delta_rule(
            *(q, k, v, g, beta),
            initial_state=state,
            resets=resets,
            implementation=self.scan_implementation,
        )

    def empty_cache(self, rows: int, length: int | None = None) -> MatrixCache:
        """Return the cache for `rows` new samples; its size does not depend on `length`."""
        del length
        heads = self.heads // 2 if self.bidirectional else self.heads
        tail, keys = self.conv_width - 1, self.key_heads * self.key_features
        widths = (keys, keys, self.heads * self.value_features)
        tails = tuple((tail, width) for width in widths)
        return empty_matrix_cache(rows, (heads, self.key_features, self.value_features), tails, self.dtype)


def _unit_norm(x: KeyHeads) -> KeyHeads:
    """Return x / sqrt(sum x^2 + 1e-6) of each head, computed in float32."""
    wide = x.astype(jnp.float32)
    norm = jax.lax.rsqrt(jnp.sum(jnp.square(wide), axis=-1, keepdims=True) + NORM_EPSILON)
    return (wide * norm).astype(x.dtype)


def make_recurrence(implementation: str | None) -> Recurrence:
    """Return the recurrence with the operands (v, q, k, g, beta)."""

    def scan(
        direction: str, inputs: RecurrenceOperands, h0: RowState | None, resets: Resets
    ) -> tuple[Array, Array]:
        v, q, k, g, beta = inputs.sequences
        return gated_delta_rule(
            *(q, k, v, g, beta),
            initial_state=h0,
            resets=resets,
            direction=direction,
            implementation=implementation,
        )

    def product(direction: str, inputs: RecurrenceOperands, resets: Resets) -> Array:
        """Return M of the affine map S -> M S + B of all tokens: the identity's image if none writes."""
        v, q, k, g, beta = inputs.sequences
        rows, length, heads, _ = v.shape
        d_k = k.shape[-1]
        nothing = jnp.zeros((rows, length, heads, d_k), v.dtype)
        identity = jnp.broadcast_to(jnp.eye(d_k), (rows, heads, d_k, d_k))
        silent = RecurrenceOperands((nothing, q, k, g, beta), ())
        return scan(direction, silent, identity, resets)[1]

    return Recurrence(scan, product, ("rows", "inner", None, None), apply_matrix, apply_transposed_matrix)


register_model("gated_deltanet", mixer=GatedDeltaNet, config=GatedDeltaNetConfig, has_mlp=True)
