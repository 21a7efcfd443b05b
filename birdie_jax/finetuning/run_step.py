"""The train step of a stage, from its loss and the run's settings."""

from collections.abc import Callable
from functools import partial

import jax
from jaxtyping import PyTree

from birdie_jax.engine import LossFunction, ShardedStep, make_step
from birdie_jax.engine.bad_steps import bad_step_rule
from birdie_jax.engine.mesh import state_sharding
from birdie_jax.engine.sharded_step import Sections, Summarise
from birdie_jax.models.parameters import one_token_batch
from birdie_jax.optimizers import optimizer_of_run
from birdie_jax.resolve import ResolvedRun


def make_run_step(
    run: ResolvedRun,
    loss: LossFunction | Callable[[PyTree], LossFunction],
    sections: Sections,
    *,
    summarise: Summarise,
    frozen: PyTree[jax.ShapeDtypeStruct] | None = None,
) -> ShardedStep:
    """Return the train step of a run that minimises its own loss.

    Args:
        run: the run, with the batches of the stage.
        loss: see `birdie_jax.engine.make_step`.
        sections: the functions that create the sections of the hooks, by name.
        summarise: computes the logged scalars from the sums.
        frozen: see `birdie_jax.engine.make_step`.
    """
    config = run.config
    return make_step(
        lambda key: run.model.init(key, one_token_batch())["params"],
        loss,
        optimizer_of_run(config, run.policies),
        run.mesh,
        seed=config.seed,
        sections=sections,
        summarise=summarise,
        accumulation_steps=config.train.accumulation_steps,
        rule=bad_step_rule(config.train),
        param_shardings=partial(state_sharding, run.mesh, policies=run.policies),
        frozen=frozen,
    )
