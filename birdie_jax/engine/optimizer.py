"""AdamW as Mamba and the Birdie paper train: warm-up, cosine, clipping, decay on matrices only."""

import jax
import optax

from birdie_jax.config_sections import OptimizerConfig


def learning_rate_schedule(config: OptimizerConfig, num_steps: int) -> optax.Schedule:
    """Return step -> learning rate: linear warm-up to the peak, then a cosine down to the final rate.

    The first step already moves: it has 1 / (warmup_steps + 1) of the peak.
    """
    warmup = min(config.warmup_steps, max(num_steps - 1, 0))
    return optax.warmup_cosine_decay_schedule(
        init_value=config.learning_rate / (warmup + 1),
        peak_value=config.learning_rate,
        warmup_steps=warmup,
        decay_steps=max(num_steps, warmup + 1),
        end_value=config.final_learning_rate,
    )


def make_optimizer(config: OptimizerConfig, num_steps: int) -> optax.GradientTransformation:
    """Return clipping by global norm followed by AdamW; vectors and RG-LRUs have no weight decay.

    Vectors are told by their names, since those of scanned layers are stacked to matrices. Nothing of an
    RG-LRU is decayed, its gates included (Birdie paper, appendix A.1: Hawk's official settings).
    """

    def decayed(params):
        def is_decayed(path, _):
            vector = path[-1].key.endswith(("scale", "bias"))
            return not vector and all(part.key != "rg_lru" for part in path)

        return jax.tree_util.tree_map_with_path(is_decayed, params)

    return optax.chain(
        optax.clip_by_global_norm(config.clip_norm),
        optax.adamw(
            learning_rate_schedule(config, num_steps),
            b1=config.beta1,
            b2=config.beta2,
            eps=config.epsilon,
            weight_decay=config.weight_decay,
            mask=decayed,
        ),
    )
