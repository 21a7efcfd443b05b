"""What mixers with a matrix a head as their state share: limits, cache, initial rates, the affine map."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from birdie_jax.array_types import Key, RowState, TokenMask
from birdie_jax.config_sections import ModelConfig, Require
from birdie_jax.config_types import ConvolutionTaps
from birdie_jax.models.axes import mesh_size, must_divide
from birdie_jax.models.platforms import check_implementation
from birdie_jax.models.recurrence import RecurrentConfig
from pallas_kernels.matrix_state.layout import IMPLEMENTATIONS

HeadMatrices = Float[Array, "rows heads d_k columns"]


@dataclass(frozen=True)
class MatrixRecurrentConfig(RecurrentConfig):
    """What the sections of these mixers have in common.

    Attributes:
        conv_width: the taps of the short convolutions.
    """

    conv_width: ConvolutionTaps = 4

    def conv_taps(self, model: ModelConfig) -> int:
        """Return the taps of the short convolutions in a model."""
        del model
        return self.conv_width

    def head_counts(self, model: ModelConfig) -> dict[str, int]:
        """Return the numbers of heads that a mesh has to divide, by their fields below `config.model`."""
        raise NotImplementedError

    def check_platform(self, model: ModelConfig, platform: str, require: Require) -> None:
        """Check that the implementation of the recurrence is one for the platform."""
        asked = model.scan_implementation
        check_implementation(require, "model.scan_implementation", asked, IMPLEMENTATIONS, platform)

    def mesh_problem(self, model: ModelConfig, length: int, axis: str, size: int) -> str | None:
        """Return why the recurrence cannot be divided: heads by `tensor`, tokens by `sequence`."""
        if axis == "tensor":
            problem = must_divide(size, self.head_counts(model))
            if problem is not None:
                return problem
        return super().mesh_problem(model, length, axis, size)


class MatrixCache(NamedTuple):
    """What decoding carries from token to token, of constant size.

    Attributes:
        state: the float32 matrices of the heads that run forward (all of them in a causal model), after the
            last token.
        conv_tails: for each short convolution its last conv_width - 1 inputs.
    """

    state: Float[Array, "rows heads first second"]
    conv_tails: tuple[Float[Array, "rows tail _"], ...]

    def updated(
        self,
        last: Float[Array, "rows all_heads first second"],
        conv_tails: tuple[Float[Array, "rows tail _"], ...],
    ) -> "MatrixCache":
        """Return the cache after a call that left all heads in the state `last`."""
        return MatrixCache(last[:, : self.state.shape[1]], conv_tails)


def empty_matrix_cache(
    rows: int, state: tuple[int, int, int], tails: tuple[tuple[int, int], ...], dtype: jnp.dtype
) -> MatrixCache:
    """Return the cache of `rows` new samples.

    Args:
        rows: the number of samples, one a row.
        state: the heads that run forward, and the sides of their matrices.
        tails: the steps and the channels of the tail of each convolution.
        dtype: the type of the tails.
    """
    return MatrixCache(
        state=jnp.zeros((rows, *state), jnp.float32),
        conv_tails=tuple(jnp.zeros((rows, *tail), dtype) for tail in tails),
    )


def state_of_all_heads(
    cached: Float[Array, "rows forward first second"] | None, shape: tuple[int, ...]
) -> RowState:
    """Return the state before the first token: that of a cache, and zero for heads that read in reverse.

    What comes after the last token is not known yet: heads in reverse start from zero.
    """
    state = jnp.zeros(shape, jnp.float32)
    return state if cached is None else state.at[:, : cached.shape[1]].set(cached)


def reads_one_token(length: int) -> bool:
    """Return whether a call with a cache decodes one token on devices that each have all heads.

    Then heads in reverse, which begin with their own token, need no state, and none is made for them.
    """
    return length == 1 and mesh_size("tensor") == 1


def decode_halves(
    read: Callable[..., tuple[Array, Array]],
    sequences: tuple[Array, ...],
    cached: Float[Array, "rows forward first second"],
    reset: TokenMask,
) -> tuple[Float[Array, "rows one heads channels"], Float[Array, "rows forward first second"]]:
    """Return what a token reads, of heads forward and heads in reverse, and the state of the former.

    Args:
        read: (sequences, state or None, resets or None) -> (outputs, state).
        sequences: arrays whose third axis is heads, or a single head for all.
        cached: the state of the forward heads, as many as those in reverse.
        reset: the forward reset.
    """
    halves = [[array, array] if array.shape[2] == 1 else jnp.split(array, 2, axis=2) for array in sequences]
    forward, reverse = zip(*halves, strict=True)
    y, state = read(forward, cached, (reset,))
    return jnp.concatenate([y, read(reverse, None, None)[0]], axis=2), state


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
