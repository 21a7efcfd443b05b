"""The critic predicts the reward of an action from the history of losses and actions.

A critic is a linen module with three methods. It reads a long history only once, for any number of
candidates:

- `critic(steps, used)` predicts the rewards at every step, for training;
- `critic.prefill(steps, used)` reads the first `used` steps and returns a cache;
- `critic.predict_next(cache, step)` predicts the rewards of one more step after them.

A step is [losses, action], each half divided by its root mean square. A prediction is one class-scaled
reward per arm. Steps from `used` on are unused buffer, and no prediction depends on them.
"""

from collections.abc import Callable
from typing import NamedTuple, cast

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from birdie_jax.array_types import ArmVector
from birdie_jax.bandit.transformer_critic import RewardHead, TransformerCritic
from birdie_jax.bandit_config import BanditConfig
from birdie_jax.config_sections import ModelConfig
from birdie_jax.models.layer_stacks import Block, make_mixer
from birdie_jax.models.layers import RMSNorm, projection
from birdie_jax.models.layout import Layout, packed_layout
from birdie_jax.models.parameters import SCANNED_COLLECTIONS, collect_policies
from birdie_jax.models.recurrence import RecurrentCache
from birdie_jax.registry import Registry


class CriticState(flax.struct.PyTreeNode):
    """The trainable state of a critic, which is part of a checkpoint.

    Attributes:
        parameters: the critic's parameters.
        optimizer_state: the state of `critic_optimizer`.
    """

    parameters: PyTree
    optimizer_state: PyTree


class RecurrentCriticCache(NamedTuple):
    """The cache of the Gated SSM critic after reading a history.

    Attributes:
        used: int32, the number of steps read.
        layers: the state of each layer after the last step read; undefined if `used` is 0.
    """

    used: Int[Array, ""]
    layers: RecurrentCache


class GatedSSMCritic(nn.Module):
    """A causal stack of Gated SSM blocks (Birdie, section 3.3: four layers), in float32.

    Attributes:
        arms: the number of rewards in a prediction.
        layers: the number of blocks.
        features: the width of the residual stream.
        state: the number of recurrent channels in a block.
    """

    arms: int
    layers: int
    features: int
    state: int

    def setup(self) -> None:
        """Create the entry, the scanned blocks, the final norm and the head."""
        self.entry = projection(self.features, "entry", jnp.dtype("float32"))
        self.blocks = nn.scan(
            Block,
            variable_axes=SCANNED_COLLECTIONS,  # pyright: ignore[reportArgumentType] - flax's stub is narrow
            split_rngs={"params": True},
            in_axes=(0, nn.broadcast),  # pyright: ignore[reportArgumentType] - flax's stub is narrow
            length=self.layers,
        )(self._architecture())
        self.final_norm = RMSNorm()
        self.head = RewardHead(self.arms)

    def _architecture(self) -> ModelConfig:
        return ModelConfig(
            name="gated_ssm",
            layers=self.layers,
            features=self.features,
            state=self.state,
            bidirectional=False,
            dtype="float32",
            scan_dtype="float32",
            remat="none",
            # A few dozen steps are too short for a kernel, and XLA runs the same path on every platform.
            scan_implementation="xla",
        )

    def __call__(
        self, steps: Float[Array, "length inputs"], used: Int[Array, ""]
    ) -> Float[Array, "length arms"]:
        """Predict the rewards of each of the first `used` steps from that step and all earlier ones."""
        x, _ = self.blocks(self.entry(steps)[None], None, _layout(jnp.arange(steps.shape[0]) < used))
        return self._rewards(x)[0]

    def prefill(self, steps: Float[Array, "length inputs"], used: Int[Array, ""]) -> RecurrentCriticCache:
        """Read the first `used` steps."""
        length = steps.shape[0]
        # The blocks return their state at the last position of a call, so the steps move to the end of
        # the buffer. The reset of the first step cuts off the unused part, which is now in front.
        aligned = jnp.roll(steps, length - used, axis=0)
        one = make_mixer(self._architecture(), parent=None).empty_cache(1)
        empty = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (self.layers, *leaf.shape)), one)
        layout = _layout(jnp.arange(length) >= length - used)
        _, layers = self.blocks(self.entry(aligned)[None], empty, layout)
        return RecurrentCriticCache(used=used, layers=cast(RecurrentCache, layers))

    def predict_next(self, cache: RecurrentCriticCache, step: Float[Array, " inputs"]) -> ArmVector:
        """Predict the rewards of `step`, which follows the steps in `cache`."""
        everywhere = jnp.ones((1, 1), bool)
        layout = Layout(
            segment_ids=everywhere.astype(jnp.int32),
            forward_reset=everywhere & (cache.used == 0),
            reverse_reset=everywhere,
            bidirectional=~everywhere,
        )
        x, _ = self.blocks(self.entry(step)[None, None], cache.layers, layout)
        return self._rewards(x)[0, 0]

    def _rewards(self, x: Float[Array, "rows length features"]) -> Float[Array, "rows length arms"]:
        return self.head(self.final_norm(x))


Critic = GatedSSMCritic | TransformerCritic


def _gated_ssm(config: BanditConfig, arms: int) -> Critic:
    return GatedSSMCritic(arms, config.critic_layers, config.critic_features, config.critic_state)


def _transformer(config: BanditConfig, arms: int) -> Critic:
    return TransformerCritic(arms, config.critic_layers, config.critic_features)


CRITICS: Registry[Callable[[BanditConfig, int], Critic]] = Registry(
    "bandit.critic", gated_ssm=_gated_ssm, transformer=_transformer
)


def make_critic(config: BanditConfig, arms: int) -> Critic:
    """Return the critic that `config.critic` names, for `arms` rewards.

    Raises:
        ValueError: the name is unknown.
    """
    return CRITICS.find(config.critic)(config, arms)


def critic_inputs(
    losses: Float[Array, "*steps arms"], actions: Float[Array, "*steps arms"]
) -> Float[Array, "*steps inputs"]:
    """Return the critic's steps: losses and actions, each with unit root mean square over the arms.

    A loss or action that is not finite counts as 0, so the result is always finite.
    """
    return jnp.concatenate([_scale_to_unit_rms(losses), _scale_to_unit_rms(actions)], axis=-1)


def decayed_parameters(critic: Critic) -> PyTree[bool]:
    """Return for each parameter of a critic whether its policy applies weight decay."""
    step = jax.ShapeDtypeStruct((1, 2 * critic.arms), jnp.float32)
    policies = collect_policies(critic, step, jax.ShapeDtypeStruct((), jnp.int32))
    return jax.tree.map(lambda policy: policy.weight_decay, policies)


def _scale_to_unit_rms(x: Float[Array, "*steps arms"]) -> Float[Array, "*steps arms"]:
    x = jnp.where(jnp.isfinite(x), x, 0.0)
    # Divide by the largest first, because the square of a diverged loss can overflow float32. The small
    # constants keep a row of zeros at zero.
    x = x / (jnp.max(jnp.abs(x), axis=-1, keepdims=True) + 1e-30)
    return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + 1e-12)


def _layout(is_used: Bool[Array, " length"]) -> Layout:
    segment_ids = is_used.astype(jnp.int32)[None]
    return packed_layout(segment_ids, jnp.zeros_like(segment_ids, bool))
