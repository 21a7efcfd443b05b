import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birdie_jax.bandit import BanditState, candidate_scores, init_bandit, observe, propose, reward


def start(config, key=None):
    weights, groups = [1.0, 1.0, 2.0, 4.0, 4.0, 4.0], [5, 9, 9, 9, 7, 7]
    return init_bandit(config, weights, groups, 8, jax.random.key(0) if key is None else key)


def losses_from(*first_four):
    return np.array([*first_four, 1.0, 1.0], np.float32)


def test_init_bandit_returns_the_first_state(small):
    state = start(small())
    assert isinstance(state, BanditState)
    np.testing.assert_allclose(state.mixture, np.array([1, 1, 2, 4, 4, 4]) / 16)
    np.testing.assert_array_equal(state.initial, state.mixture)
    np.testing.assert_array_equal(state.groups, [0, 2, 2, 2, 1, 1])
    np.testing.assert_allclose(state.class_scale, [1, 1 / 3, 1 / 3, 1 / 3, 0.5, 0.5], rtol=1e-6)
    assert state.losses.shape == state.actions.shape == state.rewards.shape == (9, 6)
    assert state.count.dtype == jnp.int32 and int(state.count) == 0
    assert state.key.dtype == jnp.uint32
    assert {leaf.dtype for leaf in jax.tree.leaves(state)} == {
        jnp.dtype(name) for name in ("float32", "int32", "uint32")
    }


@pytest.mark.slow
def test_history_holds_losses_actions_and_unscaled_rewards(small):
    state = start(small())
    measured = np.array(
        [losses_from(4, 3, 2, 1), losses_from(3.8, 3.1, 1, 1), losses_from(3.7, 3, 1, 0.95)]
    )
    mixtures = []
    for losses in measured:
        state = propose(observe(state, losses))
        mixtures.append(np.asarray(state.mixture))
    assert int(state.count) == 3
    np.testing.assert_array_equal(state.losses[:3], measured)
    np.testing.assert_array_equal(state.actions[:3], mixtures)
    np.testing.assert_allclose(state.rewards[:2], reward(measured[:-1], measured[1:]), rtol=1e-6)
    np.testing.assert_array_equal(state.rewards[2:], 0)
    assert np.ptp(np.stack(mixtures), axis=0).max() > 0.1


def test_without_a_proposal_the_mixture_stays_the_same(small):
    state = observe(observe(start(small()), np.full(6, 3.0)), np.full(6, 2.0))
    np.testing.assert_array_equal(state.actions[:2], np.tile(state.initial, (2, 1)))


def test_losses_that_are_not_finite_do_not_spread(small):
    state = start(small())
    bad = np.array([np.nan, np.inf, -np.inf, 1.8, 1.0, 1.0], np.float32)
    fine = losses_from(2, 2, 2, 2)
    for losses in (fine, bad, fine, bad * np.nan, fine, bad):
        state = propose(observe(state, losses))
    np.testing.assert_array_equal(state.rewards[:2, :3], 0)
    expected = reward(np.array([2.0, 1.8]), np.array([1.8, 2.0]))
    np.testing.assert_allclose(state.rewards[:2, 3], expected, rtol=1e-5)
    np.testing.assert_array_equal(state.rewards[2:4], 0)
    np.testing.assert_array_equal(state.losses[1], bad)
    for leaf in jax.tree.leaves((state.policy_state, state.mixture, state.rewards)):
        assert np.isfinite(leaf).all()
    scores = candidate_scores(state, jnp.eye(6))
    assert np.isfinite(scores).all() and np.ptp(scores) > 1e-3
    np.testing.assert_allclose(state.mixture.sum(), 1, rtol=1e-5)


def test_a_full_history_drops_its_oldest_row(small):
    state = start(small())
    measured = np.array([[4.0 * 0.93**k] * 6 for k in range(12)], np.float32)
    for losses in measured:
        state = propose(observe(state, losses))
    assert int(state.count) == 12
    np.testing.assert_array_equal(state.losses, measured[3:])
    np.testing.assert_allclose(state.rewards[:8], reward(measured[3:11], measured[4:12]), rtol=1e-6)
    np.testing.assert_array_equal(state.actions[8], state.mixture)


def run(config, seed=0, decisions=5):
    state = start(config, key=jax.random.key(seed))
    for k in range(decisions):
        state = propose(observe(state, losses_from(4, 3, 2, 1) * np.float32(0.9**k)))
    return state


@pytest.mark.parametrize("critic", ["gated_ssm", "transformer"])
def test_two_runs_give_the_same_bits(small, critic):
    first, second = (run(small(critic=critic)) for _ in range(2))
    jax.tree.map(np.testing.assert_array_equal, first, second)
    other = run(small(critic=critic), seed=1)
    assert np.abs(np.asarray(other.mixture) - np.asarray(first.mixture)).max() > 1e-3


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"policy": "exp3s", "reward": "learning_progress"},
        {"policy": "thompson", "reward": "running_scale"},
        {"policy": "staged", "stages": "0: 5=1; 0.5: 7=1, 9=1"},
    ],
)
def test_state_can_be_saved_as_plain_arrays(small, fields):
    state = run(small(**fields), decisions=4)
    leaves, structure = jax.tree.flatten(state)
    restored = jax.tree.unflatten(structure, [jnp.asarray(np.array(leaf)) for leaf in leaves])
    losses = losses_from(3, 2, 1.5, 0.9)
    jax.tree.map(
        np.testing.assert_array_equal, propose(observe(state, losses)), propose(observe(restored, losses))
    )


@pytest.mark.parametrize("policy", ["birdie", "exp3s", "thompson"])
def test_the_abstract_state_is_the_same_at_every_decision(small, policy):
    config = small(policy=policy)
    abstract = jax.eval_shape(lambda key: start(config, key=key), jax.random.key(0))
    step = jax.eval_shape(lambda s: propose(observe(s, jnp.ones(6))), abstract)
    signature = [(leaf.shape, leaf.dtype, leaf.weak_type) for leaf in jax.tree.leaves(abstract)]
    assert signature == [(leaf.shape, leaf.dtype, leaf.weak_type) for leaf in jax.tree.leaves(step)]
    assert jax.tree.structure(abstract) == jax.tree.structure(step)


def test_raw_and_typed_keys_give_the_same_state(small):
    typed, raw = (start(small(), key=key) for key in (jax.random.key(3), jax.random.PRNGKey(3)))
    jax.tree.map(np.testing.assert_array_equal, typed, raw)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"weights": [[1.0, 1.0]]}, "init_bandit: weights must have shape [arms]; found (1, 2)"),
        ({"weights": []}, "init_bandit: weights must have shape [arms]; found (0,)"),
        (
            {"weights": [1.0, -1.0]},
            "init_bandit: weights must be finite, at least 0 and not all 0; found [1.0, -1.0]",
        ),
        ({"weights": [0.0, 0.0]}, "init_bandit: weights must be finite, at least 0 and not all 0"),
        ({"weights": [np.nan, 1.0]}, "init_bandit: weights must be finite"),
        ({"groups": [0]}, "init_bandit: groups must have the shape (2,) of weights; found (1,)"),
        ({"groups": [0.0, 1.0]}, "init_bandit: groups must be integers; found float64"),
        ({"num_decisions": 0}, "init_bandit: num_decisions must be at least 1; found 0"),
    ],
)
def test_unusable_arguments_are_refused_by_name(small, arguments, message):
    usable = {"weights": [1.0, 1.0], "groups": [0, 1], "num_decisions": 3, "key": jax.random.key(0)}
    with pytest.raises(ValueError, match=re.escape(message)):
        init_bandit(small(), **(usable | arguments))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"policy": "greedy"}, "bandit.policy: found 'greedy'; allowed: attribution, birdie, "),
        ({"candidate_prior": "arm"}, "bandit.candidate_prior: found 'arm'; allowed: classes, arms"),
        ({"selection": "best"}, "bandit.selection: found 'best'; allowed: candidates, top_arms"),
        ({"selection": "top_arms", "top_arms": 7}, "bandit.top_arms: found 7; allowed: at most the 6 arms"),
    ],
)
def test_unusable_settings_are_refused_by_name(small, fields, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        start(small(**fields))


def test_losses_of_a_wrong_shape_are_refused(small):
    with pytest.raises(ValueError, match=re.escape("observe: losses must have shape (6,); found (3,)")):
        observe(start(small()), np.ones(3))
