"""The learning-rate schedules: warm-up, followed by a cosine, a line, or a constant peak with a decay."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from absl import logging

from birdie_jax.config_sections import OptimizerConfig

DECAY_SHAPES: dict[str, Callable[[jax.Array], jax.Array]] = {
    "linear": lambda share: share,
    "cosine": lambda share: (1 - jnp.cos(jnp.pi * share)) / 2,
    # Hägele et al. 2024 (arXiv 2405.18392), section 4.
    "one_minus_sqrt": jnp.sqrt,
}
"""Shapes of the decay by name. Each maps the finished share of the decay to the share of the total fall."""


def learning_rate_schedule(config: OptimizerConfig, num_steps: int) -> optax.Schedule:
    """Return the learning rate as a function of the step: linear warm-up to the peak, then a decay.

    The rate falls to the final rate along a cosine or a line. With `wsd` (warm-up, stable, decay: MiniCPM,
    arXiv 2404.06395), it falls only in the last `decay_steps`, with the shape `decay_shape`. The rate of
    the first step is 1 / (warmup_steps + 1) of the peak. A warm-up that is not shorter than the run is cut.
    """
    warmup = _warmup_of(config, num_steps)
    peak, final = config.learning_rate, config.final_learning_rate
    rise = optax.linear_schedule(peak / (warmup + 1), peak, warmup)
    if config.schedule == "linear":
        fall = optax.linear_schedule(peak, final, max(num_steps - warmup, 1))
        return optax.join_schedules([rise, fall], [warmup])
    if config.schedule == "wsd":
        stable = optax.constant_schedule(peak)
        begin = max(num_steps - config.decay_steps, warmup)
        decay = _decay(config) if config.decay_steps else stable
        return optax.join_schedules([rise, stable, decay], [warmup, begin])
    return optax.warmup_cosine_decay_schedule(
        init_value=peak / (warmup + 1),
        peak_value=peak,
        warmup_steps=warmup,
        decay_steps=max(num_steps, warmup + 1),
        end_value=final,
    )


def warn_of_a_cut_warmup(config: OptimizerConfig, num_steps: int) -> None:
    """Log a warning if the warm-up is not shorter than a run of `num_steps` train steps.

    Its rate then rises faster, to the peak at the last step, and never falls.
    """
    warmup = _warmup_of(config, num_steps)
    if warmup < config.warmup_steps:
        logging.warning(
            "config.optimizer.warmup_steps: found %d for a run of %d steps; cut to %d, so the rate reaches "
            "its peak only at the last step",
            *(config.warmup_steps, num_steps, warmup),
        )


def _warmup_of(config: OptimizerConfig, num_steps: int) -> int:
    return min(config.warmup_steps, max(num_steps - 1, 0))


def _decay(config: OptimizerConfig) -> optax.Schedule:
    """Return the learning rate as a function of the step within the decay."""
    peak, final, shape = config.learning_rate, config.final_learning_rate, DECAY_SHAPES[config.decay_shape]

    def rate(step: jax.typing.ArrayLike) -> jax.Array:
        return peak - (peak - final) * shape(jnp.minimum(jnp.asarray(step) / config.decay_steps, 1.0))

    return rate
