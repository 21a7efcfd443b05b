"""Language models as functional linen modules: language_model.py is the whole, block.py one layer of it.

Each mixer is a file that registers the models it makes; importing it, here, is what makes them known.
"""

from birdie_jax.config_sections import ModelConfig
from birdie_jax.models import attention, birdie_ssm, gated_ssm, hawk  # noqa: F401 - they register models
from birdie_jax.models.language_model import LanguageModel
from birdie_jax.models.registry import model_names, register_model


def build_model(config: ModelConfig, vocab_size: int) -> LanguageModel:
    """Return the language model of `config` for an embedding table of `vocab_size` rows.

    `model.init(key, batch)` makes the variables, `model.apply(variables, batch)` gives float32 logits
    [rows, length, vocab] for a `birdie_jax.batch.Batch`.

    Args:
        config: the architecture.
        vocab_size: the number of rows of the embedding table.
    """
    return LanguageModel(config, vocab_size)


__all__ = ["LanguageModel", "build_model", "model_names", "register_model"]
