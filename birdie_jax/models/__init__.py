"""Language models as functional linen modules: language_model.py is the whole, block.py has the mixers."""

from birdie_jax.config_sections import ModelConfig
from birdie_jax.models.language_model import LanguageModel


def build_model(config: ModelConfig, vocab_size: int) -> LanguageModel:
    """Return the language model of `config` for an embedding table of `vocab_size` rows.

    `model.init(key, batch)` makes the variables, `model.apply(variables, batch)` gives float32 logits
    [rows, length, vocab] for a `birdie_jax.batch.Batch`.
    """
    return LanguageModel(config, vocab_size)


__all__ = ["LanguageModel", "build_model"]
