"""The arrays that a selective scan reads."""

from typing import NamedTuple

import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from pallas_kernels.linear_scan.padding import crop_channels, pad_channels, pad_length, round_up

Sequence = Float[Array, "batch length channels"]
Columns = Float[Array, "batch length N"]
State = Float[Array, "batch N channels"]
Resets = tuple[Bool[Array, "batch length"], ...] | None

MAX_GPU_STATES = 40
"""The maximum number of states of a channel for "pallas_gpu"."""

# The blocks of more states do not fit the 16 MiB of a TPU v4.
_MAX_TPU_STATE_BYTES = 256


def max_tpu_states(dtype: DTypeLike) -> int:
    """Return the maximum number of states of a channel for "pallas_tpu" with sequences of `dtype`."""
    return _MAX_TPU_STATE_BYTES // jnp.dtype(dtype).itemsize


class SelectiveScanInputs(NamedTuple):
    """The arguments of `selective_scan` in the layout of its implementations.

    Attributes:
        u: the input.
        dt: the step size before its bias and softplus; without `dt_bias`, the step size itself.
        A: the rates, negative, with the channels last.
        B: the input's weight in each of the N states, the same for all channels.
        C: the weight of each state in the output, the same for all channels.
        D: the factor of the input in the output, float32.
        z: the gate: the output is multiplied by SiLU(z); None for no gate.
        dt_bias: the bias of the step size; None if `dt` is the step size.
        h0: the state before the first step read, float32.
        resets: for each direction, True where nothing enters from the previous step; None for no resets.
    """

    u: Sequence
    dt: Sequence
    A: Float[Array, "N channels"]
    B: Columns
    C: Columns
    D: Float[Array, " channels"]
    z: Sequence | None
    dt_bias: Float[Array, " channels"] | None
    h0: State
    resets: Resets

    @property
    def dtype(self) -> jnp.dtype:
        """The common dtype of u, dt and z (`jnp.result_type`)."""
        return jnp.result_type(*(array for array in (self.u, self.dt, self.z) if array is not None))


# The softplus of this plus any bias is 0, so the step leaves the state unchanged.
NO_STEP = -1e30


class Padding:
    """Pads the arrays of a call, and removes the padding.

    Padding leaves the state unchanged, so a scan in reverse may read it first.

    Attributes:
        inputs: the arrays of the call.
        states: the padded number of states of a channel.
    """

    def __init__(
        self,
        inputs: SelectiveScanInputs,
        direction: str,
        *,
        length_unit: int,
        lanes: int,
        states_unit: int,
    ) -> None:
        """Store the arrays and the units of padding.

        Args:
            inputs: the arrays of the call.
            direction: "forward", "reverse" or "both".
            length_unit: the length is padded to a multiple of this.
            lanes: the channels of each direction are padded to a multiple of this.
            states_unit: the states of a channel are padded to a multiple of this.
        """
        self.inputs = inputs
        self.states = round_up(inputs.A.shape[0], states_unit)
        self._halves = 2 if direction == "both" else 1
        self._length_unit, self._lanes = length_unit, lanes

    def sequence(
        self, array: Sequence, fill: float = 0.0
    ) -> Float[Array, "batch padded_length padded_channels"]:
        """Pad the channels of a sequence, and its end."""
        return pad_length(self.channels(array), self._length_unit, fill)

    def steps(self, dt: Sequence) -> Float[Array, "batch padded_length padded_channels"]:
        """Pad the channels and the end of dt, with steps that leave the state unchanged."""
        return self.sequence(dt, 0.0 if self.inputs.dt_bias is None else NO_STEP)

    def state(
        self, array: Float[Array, "batch N channels"]
    ) -> Float[Array, "batch padded_N padded_channels"]:
        """Pad states or rates, in float32."""
        missing = self.states - array.shape[1]
        return jnp.pad(self.channels(array.astype(jnp.float32)), ((0, 0), (0, missing), (0, 0)))

    def channels(self, array: Float[Array, "*axes channels"]) -> Float[Array, "*axes padded_channels"]:
        """Pad the channels of each direction, on the last axis."""
        return pad_channels(array, self._halves, self._lanes)

    def crop(self, array: Float[Array, "batch padded_length padded_channels"]) -> Sequence:
        """Undo `sequence`."""
        return self.crop_channels(array[:, : self.inputs.u.shape[1]])

    def crop_state(
        self, array: Float[Array, "batch padded_N padded_channels"]
    ) -> Float[Array, "batch N channels"]:
        """Undo `state`."""
        return self.crop_channels(array[:, : self.inputs.A.shape[0]])

    def crop_channels(self, array: Float[Array, "*axes padded_channels"]) -> Float[Array, "*axes channels"]:
        """Undo `channels`."""
        return crop_channels(array, self._halves, self.inputs.u.shape[2])
