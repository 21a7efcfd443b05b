"""The critic of RL-MoD, a small causal Transformer (early draft, section 4.1: two layers)."""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from birdie_jax.array_types import ArmVector
from birdie_jax.models.layers import GatedMLP, RMSNorm, output_projection, projection
from birdie_jax.models.parameters import ParameterPolicy, parameter

HEAD_WIDTH = 64
_FLOAT32 = jnp.dtype("float32")


class RewardHead(nn.Module):
    """Linear map to one reward per arm, with bias.

    Rewards are within [-1, 1] and mostly near 0, and a score sums about a hundred of them. The weights
    start at a tenth of the usual size, because the noise of an untrained head would hide the first things
    that the critic learns. They do not start at 0, because all candidates would then have the same score.

    Attributes:
        arms: the number of rewards.
    """

    arms: int

    @nn.compact
    def __call__(self, x: Float[Array, "*batch features"]) -> Float[Array, "*batch arms"]:
        """Map each step to its rewards."""
        init = nn.initializers.variance_scaling(0.01, "fan_in", "normal")
        kernel_policy = ParameterPolicy((None, None), weight_decay=True)
        kernel = parameter(self, "kernel", init, (x.shape[-1], self.arms), kernel_policy)
        bias_policy = ParameterPolicy((None,), weight_decay=False)
        bias = parameter(self, "bias", nn.initializers.zeros_init(), (self.arms,), bias_policy)
        return x @ kernel + bias


class KeysAndValues(NamedTuple):
    """The cache of one attention layer after reading a history.

    Attributes:
        keys: the keys of each step, by head.
        values: the values of each step, by head.
    """

    keys: Float[Array, "length heads width"]
    values: Float[Array, "length heads width"]


class AttentionCriticCache(NamedTuple):
    """The cache of the Transformer critic after reading a history.

    Attributes:
        used: int32, the number of steps read. Attention must ignore keys and values from `used` on.
        layers: the keys and values of each layer.
    """

    used: Int[Array, ""]
    layers: tuple[KeysAndValues, ...]


class AttentionLayer(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)).

    Heads are 64 wide. A model narrower than 64 has one head of its own width.

    Attributes:
        features: the width of the residual stream.
        output_scale: a factor on the initial weights of the two output projections.
    """

    features: int
    output_scale: float

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "length features"],
        before: KeysAndValues | None,
        visible: Bool[Array, "length attended"],
    ) -> tuple[Float[Array, "length features"], KeysAndValues]:
        """Apply the layer. `visible` covers the keys of `before`, if any, followed by the keys of `x`."""
        width = min(HEAD_WIDTH, self.features)
        heads = max(1, self.features // HEAD_WIDTH)
        normalised = RMSNorm(name="attention_norm")(x)
        query, key, value = (
            projection(heads * width, name, _FLOAT32)(normalised).reshape(-1, heads, width)
            for name in ("query", "key", "value")
        )
        own = KeysAndValues(key, value)
        attended = own
        if before is not None:
            attended = jax.tree.map(lambda *parts: jnp.concatenate(parts), before, own)
        mixed = jax.nn.dot_product_attention(query, attended.keys, attended.values, mask=visible[None])
        out = output_projection(self.features, "out", _FLOAT32, self.output_scale)
        x = x + out(mixed.reshape(-1, heads * width))
        normalised = RMSNorm(name="mlp_norm")(x)
        mlp = GatedMLP(3 * self.features, _FLOAT32, self.output_scale, name="mlp")
        return x + mlp(normalised[None])[0], own


class TransformerCritic(nn.Module):
    """Pre-norm causal Transformer with sinusoidal positions. `critic.py` describes its methods.

    Attributes:
        arms: the number of rewards in a prediction.
        layers: the number of attention layers.
        features: the width of the residual stream.
    """

    arms: int
    layers: int
    features: int

    def setup(self) -> None:
        """Create the entry, the layers, the final norm and the head."""
        self.entry = projection(self.features, "entry", _FLOAT32)
        scale = (2 * self.layers) ** -0.5
        self.blocks = [AttentionLayer(self.features, scale) for _ in range(self.layers)]
        self.final_norm = RMSNorm()
        self.head = RewardHead(self.arms)

    def __call__(
        self, steps: Float[Array, "length inputs"], used: Int[Array, ""]
    ) -> Float[Array, "length arms"]:
        """Predict the rewards of each of the first `used` steps from that step and all earlier ones."""
        x, _ = self._read(steps, used)
        return self.head(self.final_norm(x))

    def prefill(self, steps: Float[Array, "length inputs"], used: Int[Array, ""]) -> AttentionCriticCache:
        """Read the first `used` steps."""
        _, layers = self._read(steps, used)
        return AttentionCriticCache(used, layers)

    def predict_next(self, cache: AttentionCriticCache, step: Float[Array, " inputs"]) -> ArmVector:
        """Predict the rewards of `step`, which follows the steps in `cache`."""
        x = self._embed(step[None], cache.used[None])
        length = cache.layers[0].keys.shape[0]
        # The keys of the history, followed by the key of the step.
        index = jnp.arange(length + 1)
        visible = (index < cache.used) | (index == length)
        for block, before in zip(self.blocks, cache.layers, strict=True):
            x, _ = block(x, before, visible[None])
        return self.head(self.final_norm(x))[0]

    def _read(
        self, steps: Float[Array, "length inputs"], used: Int[Array, ""]
    ) -> tuple[Float[Array, "length features"], tuple[KeysAndValues, ...]]:
        index = jnp.arange(steps.shape[0])
        x = self._embed(steps, index)
        # Even an unused step sees itself, because a row without keys would be NaN.
        visible = (index <= index[:, None]) & ((index < used) | (index == index[:, None]))
        layers = []
        for block in self.blocks:
            x, own = block(x, None, visible)
            layers.append(own)
        return x, tuple(layers)

    def _embed(
        self, steps: Float[Array, "length inputs"], index: Int[Array, " length"]
    ) -> Float[Array, "length features"]:
        return self.entry(steps) + sinusoids(index, self.features)


def sinusoids(index: Int[Array, " length"], features: int) -> Float[Array, "length features"]:
    """Return sines, then cosines, of each position for wavelengths from 2 pi (Vaswani et al. 2017)."""
    half = (features + 1) // 2
    rate = 10_000.0 ** (-jnp.arange(half) / half)
    angle = index[:, None].astype(jnp.float32) * rate
    return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=-1)[:, :features]
