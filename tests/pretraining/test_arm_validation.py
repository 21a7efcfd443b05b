"""The hook that validates every arm: means over tokens, and when each mixture is published."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birdie_jax.bandit import candidate_scores
from birdie_jax.batching import DecisionSchedule
from birdie_jax.config import parse_config
from birdie_jax.engine import HookCall, TrainState
from birdie_jax.metric_names import arm_metric
from birdie_jax.models.language_model import parameter_shapes
from birdie_jax.optimizers import make_optimizer
from birdie_jax.pretraining.arm_validation import SECTION, ArmValidation
from birdie_jax.pretraining.mixture_batches import MixtureBatches
from birdie_jax.resolve import resolve_run
from birdie_jax.text import TokenShards, prepare
from tests.micro_config import get_config

STEPS = 24
PREDICTED, EARNED = "bandit/predicted_reward", "bandit/earned_reward"


class Published(MixtureBatches):
    """Batches without text that record the published mixtures."""

    def __init__(self, schedule):
        self.schedule, self.mixtures = schedule, []

    def publish(self, mixture):
        self.mixtures.append(mixture)

    def put_replicated(self, batch):
        return jax.tree.map(jnp.asarray, batch)


@pytest.fixture(scope="module")
def hook(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    letters = np.random.default_rng(0).choice(list("abcde "), (60, 600))
    lines = [json.dumps({"text": "".join(document)}) for document in letters.tolist()]
    (folder / "text.jsonl").write_text("\n".join(lines))
    options = {"vocab_size": 330, "tokenizer_type": "bpe", "validation_fraction": 0.3}
    prepared = prepare(str(folder / "text.jsonl"), folder / "out", workers=0, progress=False, **options)
    text = TokenShards(prepared, "validation")
    return make_hook(text, "exp3s")


def make_hook(text, policy):
    config = get_config("exp3s")
    config.bandit.policy = policy
    run = resolve_run(parse_config(config), text.vocab_size)
    batches = Published(DecisionSchedule(run.config.bandit.every_steps, STEPS))
    return run, batches, ArmValidation(run, text, batches), text


def measured(hook, step, *, stop=False, section=None, params=None, optimizer=()):
    """Return the hook's result and the published mixtures; the default model predicts uniformly."""
    run, batches, validation, _ = hook
    batches.mixtures.clear()
    if params is None:
        params = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), parameter_shapes(run.model))
    sections = {SECTION: validation.create_section(jax.random.key(0)) if section is None else section}
    call = HookCall(step, STEPS, True, lambda text: None, lambda: stop)
    state = TrainState(jnp.asarray(step), params, optimizer, sections)
    return validation.run(state, call), batches.mixtures


def test_a_loss_is_the_mean_of_an_arms_tokens(hook):
    result, mixtures = measured(hook, 5)
    names = hook[0].mixture.names
    losses = [result.scalars[f"arm/{name}/validation_loss"] for name in names]
    np.testing.assert_allclose(losses, math.log(hook[0].vocab_size), rtol=1e-5)
    bandit = result.state.sections[SECTION]
    assert int(bandit.count) == 1
    probabilities = [result.scalars[f"arm/{name}/probability"] for name in names]
    np.testing.assert_allclose(mixtures, [probabilities])


def test_nothing_is_published_after_the_last_step_or_while_stopping(hook):
    result, mixtures = measured(hook, STEPS)
    assert int(result.state.sections[SECTION].count) == 0, "a longer run would not have decided there"
    assert mixtures == []
    assert measured(hook, 5, stop=True) == (None, [])


def test_a_policy_that_reads_gains_gets_them(hook):
    run, *_ = found = make_hook(hook[-1], "gradients")
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: jnp.asarray(rng.normal(0, 0.1, leaf.shape), leaf.dtype), parameter_shapes(run.model)
    )
    optimizer = make_optimizer(run.config.optimizer, STEPS, run.policies).init(params)
    result, mixtures = measured(found, 0, params=params, optimizer=optimizer)
    bandit = result.state.sections[SECTION]
    assert bandit.accuracies is None and np.isfinite(bandit.gains).all() and np.ptp(bandit.gains) > 0
    np.testing.assert_allclose(np.sum(mixtures[0]), 1, rtol=1e-5)
    assert measured(found, 0, stop=True, params=params, optimizer=optimizer) == (None, [])


def test_predicted_and_earned_rewards_are_logged(hook):
    """The critic of this policy predicts the reward of the published mixture."""
    first, _ = measured(hook, 5)
    assert not {PREDICTED, EARNED} & first.scalars.keys()
    hook = make_hook(hook[-1], "birdie")
    first, _ = measured(hook, 5)
    before = first.state.sections[SECTION]
    expected = candidate_scores(before, before.mixture[None])[0]
    assert first.scalars[PREDICTED] == pytest.approx(float(expected)) and EARNED not in first.scalars
    # Raise the earlier losses, so every arm improves.
    before = before.replace(losses=before.losses.at[0].add(1.0))
    last, _ = measured(hook, STEPS, section=before)
    rewards = [last.scalars[arm_metric(name, "reward")] for name in hook[0].mixture.names]
    earned = (np.array(rewards) * before.class_scale).sum()
    assert last.scalars[EARNED] == pytest.approx(float(earned), rel=1e-5) and earned > 0
    assert PREDICTED not in last.scalars
