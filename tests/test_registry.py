"""Registries: repeated and unknown names."""

import re

import pytest

from birdie_jax.bandit import POLICIES, REWARDS, Policy, init_bandit, register_policy, register_reward
from birdie_jax.bandit.critic import CRITICS, make_critic
from birdie_jax.bandit_config import BanditConfig
from birdie_jax.config_sections import ModelConfig, OptimizerConfig
from birdie_jax.engine.hook_registry import register_hook
from birdie_jax.errors import ConfigError
from birdie_jax.generation.prompt_formats import prompt_format
from birdie_jax.models.registry import ARCHITECTURES, architecture_of, register_model
from birdie_jax.models.task_head import HEADS, register_head
from birdie_jax.objectives import MIXTURES, OBJECTIVES, make_mixture, make_objective, register_objective
from birdie_jax.optimizers import OPTIMIZERS, make_optimizer, register_optimizer
from birdie_jax.pruning import POLICIES as PRUNING_POLICIES
from birdie_jax.pruning import register_policy as register_pruning_policy
from birdie_jax.registry import Registry
from birdie_jax.tasks import TASKS, make_task, register_task


def bandit(**names):
    return init_bandit(BanditConfig(**names), [1, 1], [0, 1], 3, 0)


# By the field in the message: another thing with a registered name.
SECONDS = {
    "objective": lambda: register_objective(type("Copying", (OBJECTIVES["copying"],), {})),
    "task": lambda: register_task(type("Phonebook", (TASKS["phonebook"],), {})),
    "bandit.policy": lambda: register_policy("birdie", Policy()),
    "bandit.reward": lambda: register_reward("published", REWARDS["running_scale"]),
    "model.name": lambda: register_model("hawk", mixer=None, config=ARCHITECTURES["hawk"].config),
    "model.head": lambda: register_head("spans", HEADS["choice"]),
    "config.train.hooks": lambda: register_hook("parameter_average", lambda parts: None),
    "optimizer.name": lambda: register_optimizer("adamw", OPTIMIZERS["muon"]),
    "policy": lambda: register_pruning_policy("uniform", PRUNING_POLICIES["random"]),
    "objective of a prompt": lambda: prompt_format("copying")(lambda *_: None),
}
# By the field: the registry, and a look-up of an unknown name.
UNKNOWN = {
    "objective": (OBJECTIVES, lambda: make_objective("x")),
    "mixture": (MIXTURES, lambda: make_mixture("x", 64)),
    "--task=x: task": (TASKS, lambda: make_task("x", {}, "--task=x")),
    "bandit.policy": (POLICIES, lambda: bandit(policy="x")),
    "bandit.reward": (REWARDS, lambda: bandit(reward="x")),
    "bandit.critic": (CRITICS, lambda: make_critic(BanditConfig(critic="x"), 2)),
    "optimizer.name": (OPTIMIZERS, lambda: make_optimizer(OptimizerConfig(name="x"), 1, {})),
    "model.name": (ARCHITECTURES, lambda: architecture_of(ModelConfig(name="x"))),
}


@pytest.mark.parametrize("field", SECONDS)
def test_a_name_belongs_to_one_thing(field):
    expected = rf"^{re.escape(field)}: found a second '\w+' to register; allowed: a new name$"
    with pytest.raises(ValueError, match=expected):
        SECONDS[field]()


@pytest.mark.parametrize("field", UNKNOWN)
def test_an_unknown_name_lists_the_known_ones(field):
    registry, find = UNKNOWN[field]
    assert len(registry) > 1
    with pytest.raises(ConfigError) as refused:
        find()
    assert str(refused.value) == f"{field}: found 'x'; allowed: {', '.join(registry)}"


def test_a_registry_keeps_the_order_of_registration():
    registry = Registry("section.field", one=(1,))
    registry.register("two", (2,))
    registry.register("one", (1,))
    with pytest.raises(ValueError, match="found a second 'one'"):
        registry.register("one", (2,))
    assert list(registry.items()) == [("one", (1,)), ("two", (2,))]
    assert registry.find("two") == (2,)
    for unknown in ("three", None, ["one"]):
        with pytest.raises(ConfigError) as refused:
            registry.find(unknown)
        assert str(refused.value) == f"section.field: found {unknown!r}; allowed: one, two"
