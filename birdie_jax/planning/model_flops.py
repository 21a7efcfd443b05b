"""Model FLOPs, without recomputation, as MFU counts them (Chowdhery et al. 2022, appendix B).

A train step takes 6 FLOPs for each parameter and token: 2 forward, 4 backward. The embedding table counts
if it is also the head; a lookup does not count. In masked LM the head, with the encoders' transform before
it, counts for the tokens with loss. With a fine-tuning head the table is only a lookup; the head itself
counts if it scores every token, not if it reads a sample once.

A mixer declares its further FLOPs (`MixerConfig.extra_flops_per_token`), as attention does. The recurrences
themselves, a few FLOPs for each channel and token, do not count. Recomputation to save memory does not
count either.
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
        other: the bytes of the rest: the bandit's state, the step.
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


# The parameters of an encoder's head in addition to its table.
_HEAD = ("head_transform", "head_norm", "scores_bias")


def model_flops_per_token(
    config: ModelConfig, vocab_size: int, length: int, loss_positions: int | None = None
) -> float:
    """Return the FLOPs of a train step for each token.

    Args:
        config: the architecture.
        vocab_size: the rows of the embedding table.
        length: the tokens of a row.
        loss_positions: the maximum number of tokens of a row with loss, which need the head; None: all.
            Ignored for a model with a fine-tuning head.
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
