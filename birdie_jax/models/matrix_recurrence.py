"""Shared parts of mixers with one matrix per head as their state: limits, cache, rates, affine map."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from birdie_jax.array_types import Key, RowState, TokenMask
from birdie_jax.config_sections import ModelConfig, Require
from birdie_jax.config_types import ConvolutionTaps
from birdie_jax.models.axes import logical_shard_map, mesh_size, must_divide
from birdie_jax.models.layer_cache import slice_layer, update_layer
from birdie_jax.models.platforms import check_implementation
from birdie_jax.models.recurrence import RecurrentConfig
from pallas_kernels.matrix_state.layer_token import LayerState
from pallas_kernels.matrix_state.layout import IMPLEMENTATIONS

HeadMatrices = Float[Array, "rows heads d_k columns"]
HeadStates = Float[Array, "rows forward first second"] | LayerState


@dataclass(frozen=True)
class MatrixRecurrentConfig(RecurrentConfig):
    """The base section of these mixers.

    Attributes:
        conv_width: the taps of the short convolutions.
    """

    conv_width: ConvolutionTaps = 4

    @property
    def has_linear_scan(self) -> bool:
        """False: a channel has several numbers of state."""
        return False

    def conv_taps(self, model: ModelConfig) -> int:
        """Return the taps of the short convolutions in a model."""
        del model
        return self.conv_width

    def head_counts(self, model: ModelConfig) -> dict[str, int]:
        """Return the numbers of heads that a mesh must divide, by their fields below `config.model`."""
        raise NotImplementedError

    def check_platform(self, model: ModelConfig, platform: str, require: Require) -> None:
        """Check that the implementation of the recurrence is available for the platform."""
        chosen = model.scan_implementation
        check_implementation(require, "model.scan_implementation", chosen, IMPLEMENTATIONS, platform)

    def mesh_problem(self, model: ModelConfig, length: int, axis: str, size: int) -> str | None:
        """Return why an axis cannot divide the recurrence: `tensor` divides heads, `sequence` tokens."""
        if axis == "tensor":
            problem = must_divide(size, self.head_counts(model))
            if problem is not None:
                return problem
        return super().mesh_problem(model, length, axis, size)


class MatrixCache(NamedTuple):
    """The decoding cache, of constant size.

    Attributes:
        state: the float32 matrices of the heads that run forward (all of them in a causal model), after the
            last token.
        conv_tails: the last conv_width - 1 inputs of each short convolution.
    """

    state: HeadStates
    conv_tails: tuple[Float[Array, "rows tail _"], ...]

    def updated(
        self,
        last: Float[Array, "rows all_heads first second"] | LayerState,
        conv_tails: tuple[Float[Array, "rows tail _"], ...],
    ) -> "MatrixCache":
        """Return the cache after a call that ends with all heads in the state `last`."""
        if not isinstance(last, LayerState) and not isinstance(self.state, LayerState):
            last = last[:, : self.state.shape[1]]
        return MatrixCache(last, conv_tails)

    def of_layer(self, layer: Int[Array, ""]) -> "MatrixCache":
        """Return the cache of a layer for one token, if this one has all layers on its leading axis."""
        if not reads_one_token(1):
            return slice_layer(self, layer)
        states = cast(Array, self.state)
        return MatrixCache(LayerState(states, layer), slice_layer(self.conv_tails, layer))

    def with_layer(self, layer: Int[Array, ""], new: "MatrixCache") -> "MatrixCache":
        """Return the cache of all layers after `new`, which began as `of_layer`."""
        if isinstance(new.state, LayerState):
            return MatrixCache(new.state.states, update_layer(self.conv_tails, layer, new.conv_tails))
        return update_layer(self, layer, new)


def empty_matrix_cache(
    rows: int, state: tuple[int, int, int], tails: tuple[tuple[int, int], ...], dtype: jnp.dtype
) -> MatrixCache:
    """Return the cache for `rows` new samples.

    Args:
        rows: the number of samples, one per row.
        state: the number of forward heads, and the shape of their matrices.
        tails: the steps and channels of the tail of each convolution.
        dtype: the type of the tails.
    """
    return MatrixCache(
        state=jnp.zeros((rows, *state), jnp.float32),
        conv_tails=tuple(jnp.zeros((rows, *tail), dtype) for tail in tails),
    )


def state_of_all_heads(cached: HeadStates | None, shape: tuple[int, ...]) -> RowState:
    """Return the state before the first token: the cached state, and zero for reverse heads.

    The tokens after the last one are not known yet, so reverse heads start from zero.

    Raises:
        ValueError: the cache is that of a loop over layers, which read one token at a time.
    """
    if isinstance(cached, LayerState):
        raise ValueError("cache: found several tokens of a row in a loop over layers; allowed: one")
    state = jnp.zeros(shape, jnp.float32)
    return state if cached is None else state.at[:, : cached.shape[1]].set(cached)


def reads_one_token(length: int) -> bool:
    """Return whether a call with a cache decodes one token on devices that each have all heads.

    Reverse heads begin with their own token. They then need no state, and none is created.
    """
    return length == 1 and mesh_size("tensor") == 1


def decode(
    read: Callable[..., tuple[Array, HeadStates]],
    sequences: tuple[Array, ...],
    cached: HeadStates,
    reset: TokenMask,
    *,
    bidirectional: bool,
) -> tuple[Float[Array, "rows one heads channels"], HeadStates]:
    """Return one token's outputs of forward and reverse heads, and the state of the forward heads.

    Args:
        read: (sequences, state or None, resets or None) -> (outputs, state).
        sequences: arrays with heads, or a single head for all, on the third axis.
        cached: the state of the forward heads.
        reset: the forward reset.
        bidirectional: whether the second half of the heads runs in reverse.
    """
    states, *layer = cached if isinstance(cached, LayerState) else (cached,)

    def read_rows(sequences, states, layer, reset):
        state = LayerState(states, *layer) if layer else states
        if bidirectional:
            halves = [[one, one] if one.shape[2] == 1 else jnp.split(one, 2, axis=2) for one in sequences]
            sequences, reverse = zip(*halves, strict=True)
        y, state = read(sequences, state, (reset,))
        if bidirectional:
            y = jnp.concatenate([y, read(reverse, None, None)[0]], axis=2)
        return y, state.states if isinstance(state, LayerState) else state

    of_states = (None, "rows") if layer else ("rows",)
    arguments = (sequences, states, layer, reset)
    mapped = logical_shard_map(
        read_rows,
        arguments,
        in_axes=[("rows",), of_states, (), ("rows",)],
        out_axes=[("rows",), of_states],
    )
    y, states = mapped(*arguments)
    return y, LayerState(states, *layer) if layer else states


def uniform_rates(least: float, greatest: float) -> Callable[..., Array]:
    """Return the initialiser of A_log = log A, A uniform from `least` to `greatest`."""

    def init(key: Key, shape: tuple[int, ...], dtype: DTypeLike = jnp.float32) -> Array:
        return jnp.log(jax.random.uniform(key, shape, dtype, least, greatest))

    return init


def apply_matrix(product: HeadMatrices, state: HeadMatrices) -> HeadMatrices:
    """Return M S for each head: the state after tokens whose affine map is S -> M S + B."""
    return jnp.einsum("rhij,rhjv->rhiv", product, state, precision="highest")


def apply_transposed_matrix(product: HeadMatrices, cotangent: HeadMatrices) -> HeadMatrices:
    """Return M^T dS for each head."""
    return jnp.einsum("rhji,rhjv->rhiv", product, cotangent, precision="highest")
