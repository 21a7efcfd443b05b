"""What the rows of a run share, as the configuration says it."""

from birdie_jax.batching import RowSettings
from birdie_jax.config import Config


def row_settings(config: Config) -> RowSettings:
    """Return what the rows of training batches share."""
    batching = config.batching
    return RowSettings(config.seed, batching.rows, batching.length, batching.spacing, batching.lookahead)
