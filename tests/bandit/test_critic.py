from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birdie_jax.bandit import candidate_scores, observe, propose
from birdie_jax.bandit.critic import critic_inputs, decayed_parameters, make_critic
from birdie_jax.bandit.policies.birdie import critic_loss
from birdie_jax.bandit.transformer_critic import sinusoids

CRITICS = ("gated_ssm", "transformer")


@cache
def compiled_prediction(config):
    """Return the critic's predict(parameters, steps, used) for 6 arms, compiled once for all tests."""
    critic = make_critic(config, 6)
    return jax.jit(lambda parameters, steps, used: critic.apply({"params": parameters}, steps, used))


@cache
def compiled_loss(config):
    """Return a function that computes the critic's error and its gradient for 6 arms."""
    return jax.jit(jax.value_and_grad(partial(critic_loss, make_critic(config, 6))))


def some_candidates(state, count=3):
    uniform = np.random.default_rng(7).uniform(size=(2 * count, state.arms))
    return jnp.asarray(uniform / uniform.sum(axis=1, keepdims=True), jnp.float32)


def scores_by_reading_everything(state, candidates):
    """Score each candidate with a full pass over the known part of the history."""
    now = int(state.count) - 1
    critic = make_critic(state.config, state.arms)

    @jax.jit
    def score(candidate):
        actions = jnp.concatenate([state.actions[:now], candidate[None]])
        steps = critic_inputs(state.losses[: now + 1], actions)
        return critic.apply({"params": state.policy_state.parameters}, steps, jnp.int32(now + 1))[now].sum()

    return jnp.stack([score(candidate) for candidate in candidates])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("critic", CRITICS)
@pytest.mark.parametrize("decisions", [0, 5])
def test_scores_from_the_cache_match_the_whole_sequence(small, after, critic, decisions):
    state = after(small(critic=critic), decisions)
    candidates = some_candidates(state)
    scores = candidate_scores(state, candidates)
    np.testing.assert_allclose(
        scores, scores_by_reading_everything(state, candidates), rtol=1e-4, atol=1e-6
    )
    # The published critic gave every candidate the same score.
    assert np.ptp(scores) > 1e-3


@pytest.mark.parametrize("critic", CRITICS)
def test_scores_depend_on_the_history(small, after, critic):
    state = after(small(critic=critic), 3)
    candidates = some_candidates(state)
    other = state.replace(actions=state.actions.at[1].set(state.actions[1][::-1]))
    difference = candidate_scores(state, candidates) - candidate_scores(other, candidates)
    assert np.abs(difference).max() > 1e-4


@pytest.mark.parametrize("critic", CRITICS)
def test_the_unused_part_of_the_buffer_has_no_effect(small, after, critic):
    state = after(small(critic=critic), 2)

    def spoil(rows, first):
        junk = jnp.where(jnp.arange(rows.shape[1]) % 2 == 0, jnp.nan, 1e6)
        return jnp.where((jnp.arange(rows.shape[0]) >= first)[:, None], junk, rows)

    # Two actions are complete. The action of the third observation is not chosen yet.
    spoilt = state.replace(
        losses=spoil(state.losses, 3), actions=spoil(state.actions, 3), rewards=spoil(state.rewards, 3)
    )
    candidates = some_candidates(state)
    np.testing.assert_array_equal(candidate_scores(state, candidates), candidate_scores(spoilt, candidates))
    losses = jnp.full(6, 1.5)
    clean_next, spoilt_next = (observe(propose(s), losses) for s in (state, spoilt))
    np.testing.assert_array_equal(clean_next.mixture, spoilt_next.mixture)
    jax.tree.map(
        np.testing.assert_array_equal,
        clean_next.policy_state.parameters,
        spoilt_next.policy_state.parameters,
    )


@pytest.mark.parametrize("critic", CRITICS)
def test_predictions_are_causal(small, after, critic):
    state = after(small(critic=critic), 0)
    steps = jax.random.normal(jax.random.key(0), (9, 12))
    changed = steps.at[4].add(1.0)
    predict = compiled_prediction(state.config)
    before, now = (
        np.asarray(predict(state.policy_state.parameters, s, jnp.int32(9))) for s in (steps, changed)
    )
    np.testing.assert_array_equal(before[:4], now[:4])
    assert np.all(np.abs(before[4:] - now[4:]).max(axis=1) > 1e-6)


def test_learning_lowers_the_error_on_the_history(small, after):
    untrained, trained = after(small(), 0), after(small(), 6)

    steps = critic_inputs(trained.losses, trained.actions)
    targets = trained.rewards * trained.class_scale

    def error(parameters):
        return compiled_loss(trained.config)(parameters, steps, targets, jnp.int32(6))[0]

    assert error(trained.policy_state.parameters) < 0.2 * error(untrained.policy_state.parameters)


def test_the_critic_learns_rewards_scaled_by_class(small, after):
    state = after(small(), 0)
    for _ in range(6):
        state = observe(state, state.losses[state.count - 1] * 0.5)
    np.testing.assert_array_equal(state.rewards[:6], 1)
    steps = critic_inputs(state.losses, state.actions)
    predicted = compiled_prediction(state.config)(state.policy_state.parameters, steps, jnp.int32(6))[:6]
    np.testing.assert_allclose(predicted, [[1 / 3, 1 / 3, 1 / 3, 1, 1 / 2, 1 / 2]] * 6, atol=0.08)


def test_the_error_covers_only_the_used_steps(small, after):
    state = after(small(), 0)
    steps = jax.random.normal(jax.random.key(0), (9, 12))
    predictions = compiled_prediction(state.config)(state.policy_state.parameters, steps, jnp.int32(2))
    targets = jnp.full((9, 6), 0.5).at[2:].set(jnp.nan)
    expected = np.square(np.asarray(predictions)[:2] - 0.5).sum(axis=1).mean()
    value, gradient = compiled_loss(state.config)(
        state.policy_state.parameters, steps, targets, jnp.int32(2)
    )
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def test_inputs_always_have_unit_size():
    losses = jnp.array([[2.0, 4.0, 6.0], [jnp.nan, jnp.inf, 3.0], [jnp.nan] * 3, [1e30, 0.0, 1e30]])
    actions = jnp.array([[0.5, 0.5, 0.0]] * 4)
    steps = np.asarray(critic_inputs(losses, actions))
    assert steps.shape == (4, 6) and np.isfinite(steps).all()
    np.testing.assert_allclose(np.square(steps).mean(axis=1), [1, 1, 0.5, 1], rtol=1e-5)
    np.testing.assert_allclose(steps[0, :3], np.array([2, 4, 6]) / np.sqrt(56 / 3), rtol=1e-5)


@pytest.mark.parametrize("critic", CRITICS)
def test_only_matrices_have_weight_decay(small, after, critic):
    flags = decayed_parameters(make_critic(small(critic=critic), 3))
    trained = after(small(critic=critic), 0).policy_state.parameters
    assert jax.tree.structure(flags) == jax.tree.structure(trained)
    flags = jax.tree_util.tree_leaves_with_path(flags)
    decays = {path[-1].key: flag for path, flag in flags}
    assert all(decays[name] == (name == "kernel") for name in decays)
    assert {"kernel", "bias", "scale"} <= set(decays)


def test_sinusoids_support_odd_widths():
    positions = sinusoids(jnp.arange(50), 5)
    assert positions.shape == (50, 5)
    assert len(np.unique(np.asarray(positions).round(4), axis=0)) == 50


def test_an_unknown_critic_is_refused(small):
    with pytest.raises(ValueError, match=r"found 'oracle'; allowed: gated_ssm, transformer"):
        make_critic(small(critic="oracle"), 3)
