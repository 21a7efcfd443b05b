"""Policies that follow estimated gains or learning curves, on known problems."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from birdie_jax.bandit import init_bandit, observe, propose
from birdie_jax.bandit.classes import (
    class_falls,
    class_masses,
    class_means,
    over_arms,
    own_shares,
    row_decisions,
    trailing_means,
)
from birdie_jax.bandit.policies.attribution import posterior_of_effects
from birdie_jax.bandit.policies.cross_effects import LIFT, lifted_order
from birdie_jax.bandit.policies.learning_curves import fit_curve
from birdie_jax.bandit.trust_region import pair_signs, step_within
from birdie_jax.bandit_config import TrustRegionConfig
from birdie_jax.config import BanditConfig

GROUPS = np.array([0, 0, 1, 2, 2])
WEIGHTS = np.array([2.0, 1.0, 3.0, 1.0, 1.0]) / 8
OWN = np.array([3, 3, 2]) / 8
FOLLOWING = ("pairs", "attribution", "cross_effects", "gradients")
STEERING = (*FOLLOWING, "learning_curves", "progress")
DECISIONS = 48


def start(policy, weights=WEIGHTS, decisions=DECISIONS, **settings):
    config = BanditConfig(policy=policy, trust_region=TrustRegionConfig(**settings))
    return init_bandit(config, weights, GROUPS, decisions, jax.random.key(0))


@jax.jit
def decide(state, losses, accuracies, gains):
    return propose(observe(state, losses, accuracies, gains))


def run(state, decisions=DECISIONS, teacher=1, noise=0.0):
    """Simulate training where only class `teacher` lowers the losses; return state and mixtures."""
    rng = np.random.default_rng(3)
    losses, mixtures = np.array([4.0, 3.0, 2.0, 3.0, 5.0]), []
    for _ in range(decisions):
        gains = losses * (teacher == GROUPS)
        measured = losses * (1 + noise * rng.normal(size=5))
        state = decide(state, *(np.float32(each) for each in (measured, np.zeros(5), gains)))
        mixtures.append(np.asarray(state.mixture, np.float64))
        losses = losses * (1 - 0.1 * mixtures[-1][teacher == GROUPS].sum())
    return state, np.array(mixtures)


@pytest.mark.parametrize("policy", STEERING)
def test_every_mixture_sums_to_one_and_keeps_the_shares_within_a_class(policy):
    state, mixtures = run(start(policy), decisions=12, noise=0.02)
    np.testing.assert_allclose(mixtures.sum(axis=1), 1, rtol=1e-5)
    assert mixtures.min() > 0
    np.testing.assert_allclose(mixtures[:, 0], 2 * mixtures[:, 1], rtol=1e-4)
    np.testing.assert_allclose(state.actions[:12], mixtures, rtol=1e-6)


@pytest.mark.parametrize("policy", FOLLOWING)
def test_the_most_useful_class_gets_most_of_the_mixture(policy):
    state, _ = run(start(policy), noise=0.001)
    shares = class_masses(state.policy_state, state.groups, state.classes)
    # After so few decisions the posterior is wide, so a draw from it moves the shares less.
    assert shares[1] > (0.4 if policy == "attribution" else 0.6) and shares[1] == shares.max()


@pytest.mark.parametrize("policy", STEERING)
def test_a_class_without_weight_is_not_trained_on(policy):
    _, mixtures = run(start(policy, weights=[0.0, 0.0, 1.0, 1.0, 2.0]), decisions=16, teacher=0, noise=0.01)
    assert np.all(mixtures[:, :2] == 0) and np.isfinite(mixtures).all()


@pytest.mark.parametrize("policy", STEERING)
def test_values_that_are_not_finite_have_no_effect(policy):
    state = start(policy)
    for losses in (np.full(5, 3.0), np.array([np.nan, 2, np.inf, 2, 2]), *[np.full(5, 1.5)] * 9):
        bad = np.where(np.isfinite(losses), 0.5, np.nan)
        state = decide(state, *(np.float32(each) for each in (losses, bad, bad)))
        assert np.isfinite(state.mixture).all()
        np.testing.assert_allclose(np.sum(state.mixture), 1, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("policy", STEERING)
def test_decisions_continue_beyond_the_plan(policy):
    _, mixtures = run(start(policy, decisions=6), decisions=20, noise=0.01)
    np.testing.assert_allclose(mixtures.sum(axis=1), 1, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("policy", FOLLOWING)
def test_no_decision_leaves_the_trust_region(policy):
    state, before = start(policy, step=50.0, floor=0.0, kl_limit=0.01), None
    for number in range(24):
        gains = np.float32([0, 0, 1, 0, 0])
        state = decide(state, np.float32(np.full(5, 3.0) * 0.97**number), np.zeros(5), gains)
        after = np.asarray(state.policy_state, np.float64)
        if before is not None:
            ratio = np.maximum(after, 1e-12) / np.maximum(before, 1e-12)
            assert np.sum(after * np.log(ratio)) <= 0.01 * 1.01
        before = after


shares = st.lists(st.floats(0.01, 1), min_size=4, max_size=4).map(lambda w: np.array(w) / np.sum(w))


@given(
    before=shares, direction=st.lists(st.floats(-9, 9), min_size=4, max_size=4), limit=st.floats(1e-3, 1)
)
def test_a_step_is_the_longest_within_the_limit(before, direction, limit):
    direction = np.array(direction)
    after = np.asarray(step_within(jnp.float32(before), jnp.float32(direction), limit), np.float64)

    def moved(size):
        grown = before * np.exp(size * direction)
        return grown / grown.sum()

    def divergence(at):
        return np.sum(at * np.log(at / before))

    np.testing.assert_allclose(after.sum(), 1, rtol=1e-5)
    sizes = np.linspace(0, 1, 4001)
    allowed = max(size for size in sizes if divergence(moved(size)) <= limit)
    np.testing.assert_allclose(after, moved(allowed), atol=5e-3)


def test_a_pair_tries_a_change_and_its_opposite():
    state, mixtures = run(start("pairs", step=0.0, floor=0.0, perturbation=0.5), decisions=12)
    ratio = np.log([[m[:2].sum(), m[2], m[3:].sum()] for m in mixtures] / OWN)
    from_mean = ratio - ratio.mean(axis=1, keepdims=True)
    np.testing.assert_allclose(from_mean[::2], -from_mean[1::2], atol=1e-5)
    signs = np.asarray(pair_signs(state, jnp.arange(12)))
    assert np.all(np.abs(signs) == 1) and np.all(signs[::2] == -signs[1::2])
    assert len({tuple(row) for row in signs[::2]}) > 1
    np.testing.assert_allclose(np.ptp(ratio, axis=1), np.ptp(signs, axis=1) * np.log(1.5), atol=1e-5)


def test_a_cycle_lifts_every_class_once():
    _, mixtures = run(start("cross_effects", step=0.0, floor=0.0), decisions=12)
    masses = np.array([[m[:2].sum(), m[2], m[3:].sum()] for m in mixtures])
    for first in (0, 6):
        lifted = np.argmax(masses[first : first + 3] - OWN, axis=1)
        assert sorted(lifted) == [0, 1, 2]
        expected = (1 - LIFT) * OWN + LIFT * np.eye(3)[lifted]
        np.testing.assert_allclose(masses[first : first + 3], expected, rtol=1e-5)
        np.testing.assert_allclose(masses[first + 3 : first + 6], np.tile(OWN, (3, 1)), rtol=1e-5)
    state = start("cross_effects").replace(count=jnp.int32(1))
    assert sorted(np.asarray(lifted_order(state))) == [0, 1, 2]


@pytest.mark.parametrize("policy", STEERING)
def test_a_run_may_have_fewer_decisions_than_classes(policy):
    _, mixtures = run(start(policy, decisions=1), decisions=2)
    np.testing.assert_allclose(mixtures.sum(axis=1), 1, rtol=1e-5)


def test_attribution_recovers_the_effects_of_shares():
    """A class gets credit for the falls that its past shares cause, even two decisions later."""
    rng = np.random.default_rng(0)
    effects = np.array([[1.0, 0.2, 0.0], [0.1, 0.8, 0.1], [0.0, 1.5, 0.3]])
    state = start("attribution", memory=1000, decisions=200)
    actions = rng.dirichlet(np.ones(3), 201)
    by_arm = np.asarray(jax.vmap(lambda share: over_arms(state, share))(jnp.float32(actions)))
    filled = state.replace(actions=jnp.asarray(by_arm), count=jnp.int32(200))
    recent = np.asarray(trailing_means(filled, jnp.float32(actions), 4.0), np.float64)
    falls = recent @ effects.T * 0.01
    losses = 9.0 - np.concatenate([np.zeros((1, 3)), np.cumsum(falls, axis=0)[:-1]])
    filled = filled.replace(losses=jnp.asarray(losses[:, GROUPS], jnp.float32))
    found = posterior_of_effects(filled)
    estimated = np.asarray(found.usual[:, None] * found.mean[:, :3], np.float64)
    # Shares sum to 1, so the effects on a class are known up to a common constant.
    expected = 0.01 * (effects - effects.mean(axis=1, keepdims=True))
    estimated = estimated - estimated.mean(axis=1, keepdims=True)
    np.testing.assert_allclose(estimated, expected, atol=0.004)


@given(end=st.floats(0.2, 2), height=st.floats(0.5, 5), exponent=st.floats(0.1, 1.5))
def test_fit_curve_recovers_a_power_law(end, height, exponent):
    numbers = np.arange(1, 41, dtype=np.float32)
    losses = np.float32(end + height * numbers**-exponent)
    found = fit_curve(jnp.asarray(losses), jnp.asarray(numbers), jnp.ones(40, bool))
    fitted = np.asarray(found.end + found.height * numbers**-found.exponent)
    # The fit uses a grid of ends and exponents, with the best height for each pair.
    np.testing.assert_allclose(fitted, losses, rtol=0.1)


def test_learning_curves_favour_the_steeper_curve():
    state = start("learning_curves", weights=np.array([1, 1, 2, 1, 1]) / 6)
    for number in range(24):
        losses = np.float32([2, 2, 1 + 4 * (number + 1) ** -0.5, 2, 2])
        state = decide(state, losses, np.zeros(5), np.zeros(5))
    masses = np.asarray(class_masses(state.mixture, state.groups, 3))
    assert masses[1] > 0.6 and masses[[0, 2]].min() > 0.009


def test_progress_stops_training_on_a_learned_class():
    state, losses = start("progress"), np.full(5, 3.0)
    for _ in range(6):
        state = decide(state, np.float32(losses), np.float32([0.2, 0.2, 1.0, 0.2, 0.2]), np.zeros(5))
        losses = losses * 0.9
    masses = np.asarray(class_masses(state.mixture, state.groups, 3))
    np.testing.assert_allclose(masses, 0.2 * OWN + 0.8 * np.array([0.5, 0, 0.5]), rtol=1e-4)


def test_class_falls_and_trailing_means_match_a_plain_computation():
    state, _ = run(start("pairs"), decisions=7, noise=0.1)
    losses = np.asarray(state.losses, np.float64)[:7]
    means = np.stack([losses[:, group == GROUPS].mean(axis=1) for group in range(3)], axis=1)
    np.testing.assert_allclose(class_means(state, state.losses)[:7], means, rtol=1e-5)
    falls = np.asarray(class_falls(state))
    np.testing.assert_allclose(falls[:6], means[:-1] - means[1:], atol=1e-5)
    np.testing.assert_array_equal(falls[6:], 0)
    weights = 0.5 ** (np.arange(4)[::-1] / 2)
    expected = (weights[:, None] * means[:4]).sum(axis=0) / weights.sum()
    found = trailing_means(state, jnp.asarray(means, jnp.float32)[jnp.minimum(jnp.arange(49), 6)], 2.0)
    np.testing.assert_allclose(found[3], expected, rtol=1e-5)
    np.testing.assert_allclose(own_shares(state), OWN, rtol=1e-6)
    np.testing.assert_array_equal(row_decisions(state), np.arange(DECISIONS + 1))


@pytest.mark.parametrize(("policy", "name"), [("progress", "accuracies"), ("gradients", "gains")])
def test_a_policy_requires_its_inputs(policy, name):
    state = start(policy)
    with pytest.raises(ValueError, match=f"observe: policy '{policy}' requires {name}; found None"):
        observe(state, np.ones(5))
    with pytest.raises(ValueError, match=rf"observe: {name} must have shape \(5,\); found \(3,\)"):
        observe(state, np.ones(5), np.ones(3), np.ones(3))
    assert getattr(start("fixed"), name) is None
