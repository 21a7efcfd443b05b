"""S4D: a diagonal state-space layer (Gu et al. 2022), as in "Pretraining Without Attention"."""

from collections.abc import Mapping
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Complex, Float

from birdie_jax.array_types import Activations, Key
from birdie_jax.config_sections import ModelConfig
from birdie_jax.models.encoder_config import EncoderConfig
from birdie_jax.models.encoder_layers import dense, gelu, output_dense
from birdie_jax.models.layout import Layout
from birdie_jax.models.parameters import ParameterPolicy, parameter
from birdie_jax.models.s4d_chunked import chunked_product
from birdie_jax.models.s4d_toeplitz import toeplitz_product
from birdie_jax.models.state_space import StateSpace, discretise

_SLOW = 0.1
"""The learning-rate factor of A, dt and D."""


def choose_form(config: EncoderConfig, length: int) -> str:
    """Return the form for rows of `length` tokens, toeplitz or chunked.

    This is the configured form or, if empty, the form with fewer FLOPs. For each token and channel, the
    product with a Toeplitz matrix takes 2 L FLOPs. The chunked form takes 2 c within chunks of c tokens,
    and 8 N between chunks for N modes. So the Toeplitz form is cheaper up to L = c + 4 N.
    """
    limit = config.ssm_chunk + 4 * config.ssm_state
    return config.ssm_form or ("toeplitz" if length <= limit else "chunked")


def eigenvalues(initialisation: str, modes: int) -> Complex[np.ndarray, " modes"]:
    """Return the initial A; every real part is -1/2.

    Args:
        initialisation: "legs": the eigenvalues of A + P P^T with P_n = sqrt(n + 1/2), the normal part of
            HiPPO-LegS (Gu et al. 2022, section 3.1), half of them conjugates of the other half; "lin":
            imaginary parts pi n; "inv": imaginary parts N / pi (N / (2 n + 1) - 1).
        modes: the number N of eigenvalues.
    """
    n = np.arange(modes)
    if initialisation == "legs":
        root = np.sqrt(2 * n + 1)
        # The normal part is -1/2 I plus a skew-symmetric matrix.
        skew = np.triu(0.5 * root[:, None] * root[None, :], 1)
        imaginary = _without_last_bits(np.linalg.eigvalsh(-1j * (skew - skew.T)))
    elif initialisation == "lin":
        imaginary = np.pi * n
    else:
        imaginary = modes / np.pi * (modes / (2 * n + 1) - 1)
    return -0.5 + 1j * imaginary


def _without_last_bits(values: Float[np.ndarray, " modes"]) -> Float[np.ndarray, " modes"]:
    """Round values so all hosts start with the same ones, with any LAPACK.

    This changes values by less than 2^-40 of the largest: a thousand times the rounding of float64, and far
    less than that of float32, the type of the parameters.
    """
    unit = np.ldexp(1.0, np.frexp(np.abs(values).max())[1] - 40)
    return np.round(values / unit) * unit


def _log_uniform(low: float, high: float, key: Key, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    return jax.random.uniform(key, shape, dtype, np.log(low), np.log(high))


class S4D(nn.Module):
    """A diagonal state-space layer that mixes along the sequence, identical for all channels of a head:

        h_t = A' h_{t-1} + B' u_t        y_t = Re(C h_t) + D u_t
        A' = exp(dt A)                   B' = (A' - 1) / A

    for N complex modes: the zero-order hold of h' = A h + u. `reverse` reads from the end of the sample:
    h_t = A' h_{t+1} + B' u_t. The real part of A is min(A_re, -1e-4). As in the paper, the layer has all N
    modes without the factor 2 for conjugates, and all channels share A, C, D and dt (`heads` = 1).

    State and kernel are float32. A, dt and D have a tenth of the learning rate and no weight decay, which
    would pull dt to 1 and the real part of A to 0. The published code intends this for A and dt, but does
    not do it.

    Attributes:
        section: the initialisation, the modes, the heads and the form.
        reverse: whether to read the sequence from its end.
        dtype: the type of the products along the sequence.
    """  # noqa: D400, D415

    section: EncoderConfig
    reverse: bool
    dtype: jnp.dtype

    @classmethod
    def from_config(cls, config: ModelConfig, *, reverse: bool, name: str) -> "S4D":
        """Return the layer of `config` that reads in one direction."""
        return cls(config.section(EncoderConfig), reverse, jnp.dtype(config.dtype), name=name)

    @nn.compact
    def __call__(self, u: Activations, layout: Layout) -> Activations:
        """Mix along the sequence, within the bounds of `layout`."""
        rows, length, features = u.shape
        heads = self.section.ssm_heads
        space = self._state_space()
        reset = layout.reverse_reset if self.reverse else layout.forward_reset
        by_head = u.astype(self.dtype).reshape(rows, length, heads, features // heads)
        product = toeplitz_product
        if choose_form(self.section, length) == "chunked":
            product = partial(chunked_product, chunk=self.section.ssm_chunk)
        return product(space, by_head, reset, reverse=self.reverse).reshape(u.shape)

    def _state_space(self) -> StateSpace:
        """Create the parameters; return the discrete system."""
        section = self.section
        heads, modes = section.ssm_heads, section.ssm_state
        slow = ParameterPolicy((None, None), weight_decay=False, learning_rate_factor=_SLOW)
        start = eigenvalues(section.ssm_initialisation, modes)
        a_re = parameter(self, "A_re", _each_head(np.real(start)), (heads, modes), slow)
        a_im = parameter(self, "A_im", _each_head(np.imag(start)), (heads, modes), slow)
        # A complex normal number of variance 1.
        normal = nn.initializers.normal(0.5**0.5)
        c_policy = ParameterPolicy((None, None, None), weight_decay=True)
        c = parameter(self, "C", normal, (heads, modes, 2), c_policy)
        slow_of_head = ParameterPolicy((None,), weight_decay=False, learning_rate_factor=_SLOW)
        d = parameter(self, "D", nn.initializers.ones_init(), (heads,), slow_of_head)
        log_uniform = partial(_log_uniform, section.ssm_min_step, section.ssm_max_step)
        log_step = parameter(self, "log_step", log_uniform, (heads,), slow_of_head)
        return state_space({"A_re": a_re, "A_im": a_im, "C": c, "D": d, "log_step": log_step})


def state_space(parameters: Mapping[str, Float[Array, "..."]]) -> StateSpace:
    """Return the discrete system of a layer's named parameters."""
    a = jax.lax.complex(jnp.minimum(parameters["A_re"], -1e-4), parameters["A_im"])
    c = jax.lax.complex(parameters["C"][..., 0], parameters["C"][..., 1])
    return discretise(a, c, parameters["D"], jnp.exp(parameters["log_step"]))


def _each_head(values: Float[np.ndarray, " modes"]) -> nn.initializers.Initializer:
    """Return an initialiser that gives every head the same values."""

    def init(key: Key, shape: tuple[int, ...], dtype: DTypeLike = jnp.float32) -> Array:
        del key
        return jnp.broadcast_to(jnp.asarray(values, dtype), shape)

    return init


class BidirectionalS4D(nn.Module):
    """The forward and the backward layer, joined at the width of the residual stream:

        F = gelu(W_f x)        U_1 = W_u1 SSM_f(F)
        B = gelu(W_b x)        U_2 = W_u2 SSM_b(B)
        y = U_1 * U_2 (product), U_1 + U_2 (sum), or U_2 with B = gelu(W_b U_1) (serial)

    SSM_b reads from the end of the sample; the paper defines it as a layer between two reversals.

    Attributes:
        config: the architecture.
        combination: product, sum or serial.
    """  # noqa: D400, D415

    config: ModelConfig
    combination: str

    @nn.compact
    def __call__(self, x: Activations, layout: Layout) -> Activations:
        """Mix along the sequence, within the bounds of `layout`."""
        forward = self._one_direction("forward", x, layout)
        if self.combination == "serial":
            return self._one_direction("backward", forward, layout)
        backward = self._one_direction("backward", x, layout)
        return forward * backward if self.combination == "product" else forward + backward

    def _one_direction(self, name: str, x: Activations, layout: Layout) -> Activations:
        inputs = gelu(self.config, dense(self.config.features, f"{name}_in", self.config)(x))
        layer = S4D.from_config(self.config, reverse=name == "backward", name=f"{name}_ssm")
        return output_dense(f"{name}_out", self.config)(layer(inputs, layout))
