"""Hooks by name, which `config.train.hooks` adds to a run.

A new hook needs one file, and one line here. To add a hook from another package, call `register_hook` in a
module that the configuration file imports.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from jax.sharding import Mesh

from birdie_jax.config_sections import Config
from birdie_jax.engine.parameter_average import NAME, ParameterAverage
from birdie_jax.engine.profiler_trace import ProfilerTrace, profiled_steps
from birdie_jax.engine.protocols import Hook
from birdie_jax.models import LanguageModel
from birdie_jax.models.language_model import parameter_shapes
from birdie_jax.registry import Registry
from birdie_jax.storage.workdir import Workdir


class HookParts(NamedTuple):
    """The arguments of the function that makes a hook.

    Attributes:
        config: the configuration of the run.
        workdir: the folder of the run.
        mesh: the device mesh of the run.
        model: the model of the run.
    """

    config: Config
    workdir: Workdir
    mesh: Mesh
    model: LanguageModel


HOOKS: Registry[Callable[[HookParts], Hook]] = Registry("config.train.hooks")
"""The function that makes each hook of `config.train.hooks`, by name."""

register_hook = HOOKS.register


def hook_names(config: Config) -> list[str]:
    """Return the names in `config.train.hooks`, in order.

    Raises:
        ConfigError: a name is unknown or repeated, or `config.train.profile` is invalid.
    """
    if config.train.profile:
        profiled_steps(config.train.profile, config.train.num_steps)
    return HOOKS.names_in(config.train.hooks)


def configured_hooks(parts: HookParts) -> Sequence[Hook]:
    """Return the hooks of `config.train.hooks`, in order, and the hook of `config.train.profile`.

    Raises:
        ConfigError: see `hook_names`.
    """
    hooks = [HOOKS[name](parts) for name in hook_names(parts.config)]
    train = parts.config.train
    if train.profile:
        hooks.append(ProfilerTrace(parts.workdir, *profiled_steps(train.profile, train.num_steps)))
    return hooks


def configured_average(config: Config, model: LanguageModel) -> list[Hook]:
    """Return the hook that averages the parameters, if `config.train.hooks` has it."""
    if NAME not in hook_names(config):
        return []
    train = config.train
    return [ParameterAverage(parameter_shapes(model), train.average_decay, train.average_every_steps)]


@partial(register_hook, NAME)
def _parameter_average(parts: HookParts) -> Hook:
    (hook,) = configured_average(parts.config, parts.model)
    return hook
