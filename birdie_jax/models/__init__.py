"""Language models and bidirectional encoders as functional linen modules.

language_model.py has the whole model and layer_stacks.py its blocks. encoder.py has both for encoders.

Each mixer and each head for fine-tuning is a module that registers itself. This package imports them all.
"""

from birdie_jax.config_sections import ModelConfig
from birdie_jax.models import (  # noqa: F401 - they register models and heads
    attention,
    bigs,
    birdie_ssm,
    choice_head,
    classification_head,
    gated_attention,
    gated_deltanet,
    gated_ssm,
    griffin,
    hawk,
    mamba,
    mamba2,
    regression_head,
    span_head,
    stack_attention,
    stack_ssm,
)
from birdie_jax.models.encoder import Encoder
from birdie_jax.models.language_model import LanguageModel
from birdie_jax.models.registry import (
    architecture_of,
    encoder_names,
    language_model_names,
    model_names,
    register_model,
)


def build_model(config: ModelConfig, vocab_size: int) -> LanguageModel:
    """Return the model of `config` for an embedding table of `vocab_size` rows; an encoder is an `Encoder`.

    `model.init(key, batch)` creates the variables. `model.apply(variables, batch)` returns float32 logits
    [rows, length, vocab] for a `birdie_jax.batch.Batch`.

    Args:
        config: the architecture.
        vocab_size: the number of rows of the embedding table.
    """
    kind = Encoder if architecture_of(config).encoder else LanguageModel
    return kind(config, vocab_size)


__all__ = [
    "Encoder",
    "LanguageModel",
    "build_model",
    "encoder_names",
    "language_model_names",
    "model_names",
    "register_model",
]
