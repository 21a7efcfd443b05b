"""Pre-training by the Birdie procedure: the parts, put together and given to the engine."""

from collections.abc import Callable, Sequence

import jax
from jaxtyping import PyTree

from birdie_jax.config import Config
from birdie_jax.engine import Outcome, Workdir, sections_of, train
from birdie_jax.engine.hook_registry import HookParts, configured_hooks
from birdie_jax.engine.lease import Lease
from birdie_jax.engine.mesh import make_mesh
from birdie_jax.engine.protocols import Hook
from birdie_jax.engine.watch import Watch
from birdie_jax.objectives import Mixture
from birdie_jax.pretraining.arm_validation import ArmValidation
from birdie_jax.pretraining.language_model_step import make_language_model_step
from birdie_jax.pretraining.mixture_batches import MixtureBatches
from birdie_jax.pretraining.mixture_shares import MixtureShares
from birdie_jax.pretraining.training_text import TrainingText


def pretrain(
    config: Config,
    workdir: Workdir,
    text: TrainingText,
    mixture: Mixture,
    watch: Watch,
    *,
    shares: MixtureShares,
    lease: Lease | None = None,
    initial_params: Callable[[PyTree[jax.ShapeDtypeStruct]], Callable[[PyTree], PyTree]] | None = None,
    more_hooks: Callable[[HookParts], Sequence[Hook]] = configured_hooks,
) -> Outcome:
    """Train until `config.train.num_steps`, or until asked to stop; see `birdie_jax.engine.train`.

    Args:
        config: the configuration of the run.
        workdir: the folder of the run.
        text: what is trained on, and what validation reads.
        mixture: the arms of the run.
        watch: notices processes that are lost or hang.
        shares: what the probabilities of the run's mixtures are shares of, the same in every process.
        lease: held on the workdir in the first process.
        initial_params: shapes and shardings of the parameters -> a function from new parameters to those
            that a new run starts with; None: the new ones. Not called where a checkpoint is resumed.
        more_hooks: makes the hooks that are called after the arms' validation.

    Raises:
        ConfigError: batch or model cannot be divided among the devices.
        DataError: the text cannot make the examples that the mixture asks for.
        TrainingDiverged: the loss, or what a hook measures, became NaN or infinite.
        CheckpointError: a checkpoint could not be written or read, or all are damaged.
    """
    mesh = make_mesh(config, text.vocab_size)
    with jax.set_mesh(mesh):
        batches = MixtureBatches(config, mixture, shares, text.train, mesh)
        hooks = [
            ArmValidation(config, mixture, text.validation, text.vocab_size, batches),
            *more_hooks(HookParts(config, workdir, mesh, text.vocab_size)),
        ]
        step = make_language_model_step(config, text.vocab_size, mixture, mesh, sections_of(hooks))
        if initial_params is not None:
            step = step.starting_from(initial_params)
        return train(
            step,
            batches,
            hooks,
            workdir=workdir,
            num_steps=config.train.num_steps,
            log_every_steps=config.train.log_every_steps,
            checkpoint=config.checkpoint,
            watch=watch,
            lease=lease,
        )
