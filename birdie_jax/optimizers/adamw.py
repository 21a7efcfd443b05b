"""AdamW (Loshchilov and Hutter 2019), with the defaults of Mamba and the Birdie paper."""

import optax
from jaxtyping import PyTree

from birdie_jax.config_sections import OptimizerConfig
from birdie_jax.models.parameters import ParameterPolicy
from birdie_jax.optimizers.registry import register_optimizer


def adamw(config: OptimizerConfig, policies: PyTree[ParameterPolicy]) -> optax.GradientTransformation:
    """Return Adam's direction: the mean gradient divided by the root of the mean squared gradient."""
    del policies
    return optax.scale_by_adam(b1=config.beta1, b2=config.beta2, eps=config.epsilon)


register_optimizer("adamw", adamw)
