"""Low-rank adaptation on merged parameters takes the same steps as explicit factors."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from birdie_jax.config_sections import Config, FinetuneConfig, FinetuneLoraConfig
from birdie_jax.errors import ConfigError
from birdie_jax.models.parameters import ParameterPolicy
from birdie_jax.optimizers import optimizer_of_run
from birdie_jax.optimizers.lora import adapt

STEPS, RANK, ALPHA = 5, 2, 6.0
POLICIES = {
    "blocks": {
        "mixer": {"kernel": ParameterPolicy((None, None), True, hidden_matrix=True)},
        "mlp": {"kernel": ParameterPolicy((None, None), True, hidden_matrix=True)},
        "norm": {"scale": ParameterPolicy((None,), False)},
    },
    "task_head": {"kernel": ParameterPolicy((None, None), True)},
}
SETTINGS = FinetuneLoraConfig(rank=RANK, alpha=ALPHA, maps="*/mixer/*")


def first_params():
    keys = jax.random.split(jax.random.key(1), 3)
    return {
        "blocks": {
            "mixer": {"kernel": jax.random.normal(keys[0], (3, 6, 5))},
            "mlp": {"kernel": jax.random.normal(keys[1], (3, 5, 5))},
            "norm": {"scale": jnp.ones((3, 5))},
        },
        "task_head": {"kernel": jax.random.normal(keys[2], (5, 4))},
    }


def loss(params, x):
    blocks = params["blocks"]
    for layer in range(3):
        x = jnp.tanh(x @ blocks["mixer"]["kernel"][layer]) * blocks["norm"]["scale"][layer]
        x = jnp.tanh(x @ blocks["mlp"]["kernel"][layer] @ jnp.ones((5, 6)) / 6)
    return jnp.sum(jnp.square(x[:, :5] @ params["task_head"]["kernel"] - 1.0))


def batches():
    return [jax.random.normal(jax.random.key(10 + step), (7, 6)) for step in range(STEPS)]


def trained(optimizer):
    params = first_params()
    state = optimizer.init(params)
    for x in batches():
        updates, state = optimizer.update(jax.grad(loss)(params, x), state, params)
        params = optax.apply_updates(params, updates)
    return params, state


def adam(policies):
    del policies
    return optax.adamw(0.05, weight_decay=0.1)


def test_lora_takes_the_steps_of_explicit_factors():
    params, state = trained(adapt(SETTINGS, POLICIES, adam))

    first, optimizer = first_params(), adam(None)
    (name,) = state.factors
    start = adapt(SETTINGS, POLICIES, adam).init(first).factors[name]
    own = {"a": start["a"], "b": start["b"], "head": first["task_head"]["kernel"]}

    def merged(own):
        kernel = first["blocks"]["mixer"]["kernel"] + ALPHA / RANK * own["a"] @ own["b"]
        return first | {
            "blocks": first["blocks"] | {"mixer": {"kernel": kernel}},
            "task_head": {"kernel": own["head"]},
        }

    kept = optimizer.init(own)
    for x in batches():
        updates, kept = optimizer.update(jax.grad(lambda own, x=x: loss(merged(own), x))(own), kept, own)
        own = optax.apply_updates(own, updates)
    for found, wanted in zip(jax.tree.leaves(params), jax.tree.leaves(merged(own)), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5)


def test_only_the_chosen_maps_change_by_a_low_rank_update():
    params, state = trained(adapt(SETTINGS, POLICIES, adam))
    first = first_params()
    for one in ("mlp", "norm"):
        for found, before in zip(
            *(jax.tree.leaves(each["blocks"][one]) for each in (params, first)), strict=True
        ):
            np.testing.assert_array_equal(found, before)
    change = params["blocks"]["mixer"]["kernel"] - first["blocks"]["mixer"]["kernel"]
    singular = np.linalg.svd(np.asarray(change, np.float64), compute_uv=False)
    assert np.all(singular[:, :RANK] > 1e-3) and np.all(singular[:, RANK:] < 1e-5)
    assert not np.array_equal(params["task_head"]["kernel"], first["task_head"]["kernel"])
    kept = sum(leaf.size for leaf in jax.tree.leaves(state))
    factors = 3 * RANK * (6 + 5)
    assert kept <= 3 * factors + 2 * 20 + 3


def test_a_pooler_is_trained_in_full():
    policies = POLICIES | {
        "task_head": {"pooler": {"kernel": ParameterPolicy((None, None), True, hidden_matrix=True)}}
    }
    params = first_params()
    params["task_head"] = {"pooler": params["task_head"]}
    optimizer = adapt(FinetuneLoraConfig(rank=RANK), policies, adam)
    state = optimizer.init(params)
    assert set(state.factors) == {"blocks/mixer/kernel", "blocks/mlp/kernel"}
    updates, _ = optimizer.update(params, state, params)
    pooler = updates["task_head"]["pooler"]["kernel"]
    assert np.linalg.matrix_rank(pooler) == min(pooler.shape) > RANK
    with pytest.raises(ConfigError, match=r"found 'task_head/\*'; allowed: .*, blocks/mlp/kernel$"):
        adapt(FinetuneLoraConfig(rank=RANK, maps="task_head/*"), policies, adam)


def test_an_unknown_map_is_refused():
    settings = FinetuneLoraConfig(rank=2, maps="*/mixer/*, *attention*")
    with pytest.raises(
        ConfigError, match=r"maps: found ' \*attention\*'; allowed: patterns of blocks/mixer/kernel, "
    ):
        adapt(settings, POLICIES, adam)


def test_runs_of_other_seeds_begin_with_other_factors():
    runs = [Config(seed=seed, finetune=FinetuneConfig(lora=SETTINGS)) for seed in (0, 0, 1)]
    first, same, other = (
        optimizer_of_run(run, POLICIES).init(first_params()).factors["blocks/mixer/kernel"]["a"]
        for run in runs
    )
    np.testing.assert_array_equal(first, same)
    assert np.abs(first - other).max() > 0.1


def test_without_a_rank_all_parameters_are_trained():
    params, _ = trained(optimizer_of_run(Config(), POLICIES))
    assert not np.array_equal(params["blocks"]["mlp"]["kernel"], first_params()["blocks"]["mlp"]["kernel"])
