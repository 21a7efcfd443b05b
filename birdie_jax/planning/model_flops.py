"""FLOPs that a model asks for, however it is computed: what MFU counts (Chowdhery et al. 2022, appendix B).

A train step takes 6 FLOPs for each parameter and token: 2 forward, 4 backward. The embedding table counts
where it is the head too, and not where it is only looked up. In masked LM the head, with the transform
that encoders have in front of it, counts for the tokens that bear loss. With a head of fine-tuning the
table is only looked up; the head itself counts where it scores every token, not where it reads a sample
once.
What else counts of a mixer, it says itself (`MixerConfig.extra_flops_per_token`): attention does. The
recurrences themselves, a few FLOPs for each channel and token, and all that is computed twice to save
memory do not count.
"""

from math import prod
from typing import Any, NamedTuple

import jax

from birdie_jax.config import ModelConfig
from birdie_jax.engine.state import TrainState
from birdie_jax.models import build_model
from birdie_jax.models.language_model import parameter_shapes
from birdie_jax.models.registry import mixer_config
from birdie_jax.models.task_head import TASK_HEAD, head_type


class StateBytes(NamedTuple):
    """The bytes of the train state on one device.

    Attributes:
        parameters: the bytes of the model's parameters.
        optimizer: the bytes of the optimizer's state.
        other: the bytes of everything else: the bandit's state, the step.
    """

    parameters: int
    optimizer: int
    other: int


def state_bytes(state: TrainState) -> StateBytes:
    """Return the bytes on one device of a state of arrays, or of their shapes with shardings."""
    parameters, optimizer = _shard_bytes(state.params), _shard_bytes(state.optimizer)
    return StateBytes(parameters, optimizer, _shard_bytes(state) - parameters - optimizer)


def _shard_bytes(tree: Any) -> int:
    """Return the bytes of a pytree's arrays, or of their shapes with shardings, on one device."""
    return sum(
        prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree)
    )


# What an encoder's head has beside its table.
_HEAD = ("head_transform", "head_norm", "scores_bias")


def model_flops_per_token(
    config: ModelConfig, vocab_size: int, length: int, loss_positions: int | None = None
) -> float:
    """Return the FLOPs of a train step for each token.

    Args:
        config: the architecture.
        vocab_size: the rows of the embedding table.
        length: the tokens of a row.
        loss_positions: the most tokens of a row that bear loss, for which alone the head is needed; None:
            all of them. Not read of a model with a head of fine-tuning.
    """
    shapes = parameter_shapes(build_model(config, vocab_size))
    if config.head:
        loss_positions = 0
        if not head_type(config).per_token:
            shapes = {name: leaf for name, leaf in shapes.items() if name != TASK_HEAD}
    parameters = sum(prod(leaf.shape) for leaf in jax.tree.leaves(shapes))
    if not config.tie_embeddings:
        parameters -= prod(shapes["embedding"].shape)
    if loss_positions is not None:
        head = vocab_size * config.features
        head += sum(prod(leaf.shape) for leaf in jax.tree.leaves([shapes.get(name) for name in _HEAD]))
        parameters -= head * (1 - loss_positions / length)
    return 6.0 * parameters + mixer_config(config).extra_flops_per_token(config, length)
