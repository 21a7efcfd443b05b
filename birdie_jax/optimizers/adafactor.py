"""Adafactor (Shazeer and Stern 2018): second moments by rows and columns, and no first moment.

Its state is a few thousandths of AdamW's. As with AdamW, the learning rate comes from the schedule and is
not multiplied by the size of a parameter.
"""

import optax
from jaxtyping import PyTree

from birdie_jax.config_sections import OptimizerConfig
from birdie_jax.models.parameters import ParameterPolicy
from birdie_jax.optimizers.registry import register_optimizer

# The maximum root mean square of a parameter's direction (section 6 of the paper).
_MAX_SIZE = 1.0


def adafactor(config: OptimizerConfig, policies: PyTree[ParameterPolicy]) -> optax.GradientTransformation:
    """Return Adafactor's direction.

    The decay of the second moments grows with the steps (section 7.2), so `config.beta1`, `beta2` and
    `epsilon` have no effect. Matrices smaller than 128 by 128 keep all their second moments.
    """
    del config, policies
    return optax.chain(optax.scale_by_factored_rms(), optax.clip_by_block_rms(_MAX_SIZE))


register_optimizer("adafactor", adafactor)
