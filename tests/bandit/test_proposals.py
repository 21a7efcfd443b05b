import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birdie_jax.bandit import candidate_scores, init_bandit, observe, propose
from birdie_jax.bandit.classes import class_masses
from birdie_jax.bandit.policies.birdie import explore_probability
from birdie_jax.bandit.proposals import best_action, exploring_action, random_candidates
from birdie_jax.config import BanditConfig


def probabilities(config, num_decisions):
    return np.asarray(
        [explore_probability(config, jnp.int32(k), num_decisions) for k in range(num_decisions)]
    )


def test_the_exploration_schedule_follows_its_formula():
    found = probabilities(BanditConfig(), 100)
    expected = [
        1.0 if k < 5 else 0.25 + 0.125 * (1 + math.cos(math.pi * min((k - 5) / 45, 1))) for k in range(100)
    ]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert found[5] == 0.5 and found[50] == 0.25


def test_the_exploration_schedule_without_a_decay_is_a_step():
    found = probabilities(BanditConfig(explore_first=0.5, explore_decay=0.0, explore_to=0.1), 10)
    np.testing.assert_allclose(found[[0, 4, 6, 9]], [1, 1, 0.1, 0.1], rtol=1e-6)


def test_decisions_follow_the_exploration_schedule(small, monkeypatch):
    marked = 0.125
    monkeypatch.setattr(
        "birdie_jax.bandit.policies.birdie.exploring_action",
        lambda key, groups, classes: jnp.full(6, marked),
    )
    # This test does not need the critic, and 800 searches would only take time.
    monkeypatch.setattr("birdie_jax.bandit.policies.birdie.best_action", lambda state, key: jnp.zeros(6))
    state = init_bandit(small(), np.ones(6), np.arange(6), 40, jax.random.key(0)).replace(
        count=jnp.int32(13)
    )

    def explored(key):
        return propose.__wrapped__(state.replace(key=key)).mixture[0] == marked

    share = jax.lax.map(explored, jax.random.bits(jax.random.key(1), (800, 2), jnp.uint32)).mean()
    expected = explore_probability(state.config, jnp.int32(12), 40)
    assert 0.3 < expected < 0.45
    np.testing.assert_allclose(share, expected, atol=0.06)


def test_exploring_actions_favour_one_or_two_classes():
    groups = jnp.array([0] * 5 + [1] + [2] * 3 + [3] * 2 + [4])
    keys = jax.random.split(jax.random.key(0), 400)
    actions = jax.jit(jax.vmap(lambda key: exploring_action(key, groups, 5)))(keys)
    np.testing.assert_allclose(actions.sum(axis=1), 1, rtol=1e-5)
    assert float(actions.min()) > 0
    masses = np.asarray(jax.vmap(lambda action: class_masses(action, groups, 5))(actions))
    ranked = np.sort(masses, axis=1)[:, ::-1]
    assert np.all(ranked[:, :2].sum(axis=1) > 0.79)
    only_one = ranked[:, 1] < 0.075
    assert 0.4 < only_one.mean() < 0.75
    chosen = np.bincount(masses.argmax(axis=1), minlength=5) / 400
    np.testing.assert_allclose(chosen, 0.2, atol=0.08)
    first_class = np.asarray(actions[:, :5] / actions[:, :5].sum(axis=1, keepdims=True))
    even = np.ptp(first_class, axis=1) < 1e-5
    assert 0.4 < even.mean() < 0.6
    assert first_class.max() > 0.7


@pytest.mark.parametrize("groups", [[0, 0, 0], [0, 1]])
def test_exploring_works_with_few_classes(groups):
    keys = jax.random.split(jax.random.key(0), 50)
    groups = jnp.array(groups)
    classes = len(np.unique(groups))
    actions = jax.jit(jax.vmap(lambda key: exploring_action(key, groups, classes)))(keys)
    np.testing.assert_allclose(actions.sum(axis=1), 1, rtol=1e-5)
    assert float(actions.min()) > 0


PAPER_CLASSES = np.array([26, 54, 2, 4, 16, 1, 1])


@pytest.fixture(scope="module")
def drawn():
    """Return for each prior the candidates over the 104 arms of the birdie mixture, and class masses."""
    groups = jnp.repeat(jnp.arange(7), PAPER_CLASSES)
    found = {}
    for prior in ("classes", "arms"):
        config = BanditConfig(candidates=300, candidate_prior=prior)
        candidates = jax.jit(random_candidates, static_argnums=(1, 3))(jax.random.key(0), config, groups, 7)
        found[prior] = np.asarray(candidates), np.asarray(class_masses(candidates, groups, 7))
    return found


@pytest.mark.parametrize("prior", ["classes", "arms"])
def test_candidates_are_mixtures_uniform_and_sharpened(drawn, prior):
    candidates, masses = drawn[prior]
    assert candidates.shape == (600, 104) and candidates.min() > 0
    np.testing.assert_allclose(candidates.sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(masses.sum(axis=1), 1, rtol=1e-5)
    # The largest arm's share of a class of 54: about 1 / 27 for uniform numbers, 1 / 11 for fourth powers.
    largest = candidates[:, 26:80].max(axis=1) / masses[:, 1]
    np.testing.assert_allclose(largest[:300].mean(), 1 / 27, rtol=0.1)
    np.testing.assert_allclose(largest[300:].mean(), 1 / 11, rtol=0.1)


def test_only_the_classes_prior_spreads_the_masses_of_classes(drawn):
    (_, by_class), (_, by_arm) = drawn["classes"], drawn["arms"]
    np.testing.assert_allclose(by_arm.mean(axis=0), PAPER_CLASSES / 104, atol=0.01)
    np.testing.assert_allclose(by_class.mean(axis=0), 1 / 7, atol=0.025)
    assert np.all(by_class.std(axis=0) > 2.5 * by_arm.std(axis=0))
    # Every class, even of one arm, gets most of the mass of one candidate and almost none of another.
    assert np.all(by_class.max(axis=0) > 0.6) and np.all(by_class.min(axis=0) < 0.01)
    assert np.all(by_arm.max(axis=0)[[2, 3, 5, 6]] < 0.15)


def test_proposal_is_the_mean_of_the_best_candidates(small, after):
    state = after(small(), 4)
    key = jax.random.key(3)
    candidates = random_candidates(key, state.config, state.groups, state.classes)
    # In groups of six, because other tests compile the same shape.
    scores = np.concatenate([candidate_scores(state, six) for six in candidates.reshape(-1, 6, 6)])
    expected = np.asarray(candidates)[np.argsort(scores)[-4:]].mean(axis=0)
    np.testing.assert_allclose(jax.jit(best_action)(state, key), expected / expected.sum(), rtol=1e-5)


def test_top_arms_have_equal_shares(small, after):
    state = after(small(), 4)
    never = {"explore_first": 0.0, "explore_from": 0.0, "explore_to": 0.0}
    state = state.replace(config=small(selection="top_arms", **never))
    order = np.argsort(np.asarray(candidate_scores(state, jnp.eye(6))))
    expected = np.zeros(6)
    expected[order[-2:]] = 0.5
    np.testing.assert_array_equal(propose(state).mixture, expected)


def test_chunks_do_not_change_scores(small, after, monkeypatch):
    state = after(small(), 3)
    candidates = random_candidates(jax.random.key(0), small(candidates=3), state.groups, state.classes)
    whole = candidate_scores(state, candidates)
    monkeypatch.setattr("birdie_jax.bandit.proposals.CHUNK", 4)
    np.testing.assert_allclose(
        jax.jit(candidate_scores.__wrapped__)(state, candidates), whole, rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize(("policy", "share"), [("fixed", [0.1, 0.2, 0.7]), ("uniform", [1 / 3] * 3)])
def test_fixed_and_uniform_never_change(small, policy, share):
    state = init_bandit(small(policy=policy), [1, 2, 7], [0, 0, 1], 5, jax.random.key(0))
    np.testing.assert_allclose(state.mixture, share, rtol=1e-6)
    first = state.mixture
    for k in range(7):
        state = propose(observe(state, np.full(3, 3.0 * 0.9**k, np.float32)))
        np.testing.assert_array_equal(state.mixture, first)
    np.testing.assert_array_equal(state.actions, np.tile(first, (6, 1)))
    assert np.all(state.rewards[:5] > 0)
    assert not state.policy_state


def test_proposing_twice_returns_the_same_mixture(small, after):
    once = propose(after(small(), 2))
    jax.tree.map(np.testing.assert_array_equal, once, propose(once))


def test_scores_require_a_critic_and_complete_candidates(small, after):
    with pytest.raises(ValueError, match="candidate_scores: policy 'fixed' has no critic"):
        candidate_scores(after(small(policy="fixed"), 1), jnp.ones((2, 6)))
    with pytest.raises(ValueError, match=r"candidates must be \[candidates, 6\]; found \(2, 5\)"):
        candidate_scores(after(small(), 1), jnp.ones((2, 5)))
