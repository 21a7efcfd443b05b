"""Policy staged: the mixture at each decision, and invalid schedules."""

import jax
import numpy as np
import pytest

from birdie_jax.bandit import init_bandit, observe, propose
from birdie_jax.config import BanditConfig, default_config, parse_config
from birdie_jax.errors import ConfigError
from birdie_jax.resolve import configured_mixture

STAGES = "0: b=1; 0.25: a=1, b=3 ;0.5:c=2,b=2"
GROWING = "allowed: 0 for the first, then growing shares of the run, below 1"
TOO_FEW = (
    "to the next with none of the run's 8 decisions; allowed: stages with a decision, "
    "or a smaller bandit.every_steps"
)
CLASSES = ("a", "b", "c")


def mixtures(stages, weights, decisions=8, observations=8):
    config = BanditConfig(policy="staged", stages=stages)
    state = init_bandit(config, weights, [0, 0, 1, 2], decisions, jax.random.key(0), class_names=CLASSES)
    found = []
    for _ in range(observations):
        state = propose(observe(state, np.full(4, 2.0)))
        found.append(np.asarray(state.mixture))
    return np.array(found)


def test_a_stage_begins_at_its_first_decision():
    found = mixtures(STAGES, [3, 1, 5, 0], observations=11)
    first, second, third = [0, 0, 1, 0], [0.75 / 4, 0.25 / 4, 0.75, 0], [0, 0, 0.5, 0.5]
    np.testing.assert_allclose(found, [first] * 2 + [second] * 2 + [third] * 7, rtol=1e-6)


def test_a_start_between_two_decisions_applies_to_the_later_one():
    found = mixtures("0: a=1; 0.31: b=1; 0.9: c=1", [0, 0, 1, 1], decisions=10, observations=10)
    assert np.argmax(found, axis=1).tolist() == [0] * 4 + [2] * 5 + [3]
    # Arms of a class without own weights have equal shares.
    np.testing.assert_allclose(found[0], [0.5, 0.5, 0, 0])


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ("", "found ''; allowed: stages such as '0: causal_lm=1; 0.5: causal_lm=1, copying=2'"),
        ("a=1", "found 'a=1'; allowed: stages such as '0: causal_lm=1; 0.5: causal_lm=1, copying=2'"),
        ("0.1: a=1", f"found the start '0.1' of stage 1; {GROWING}"),
        ("0: a=1; 0.5: b=1; 0.5: c=1", f"found the start '0.5' of stage 3; {GROWING}"),
        ("0: a=1; 1: b=1", f"found the start '1' of stage 2; {GROWING}"),
        ("x: a=1", "found 'x' as the start of a stage; allowed: 0 to 1e9"),
        ("0: a=nan", "found 'nan' as a weight; allowed: 0 to 1e9"),
        ("0: a=-1", "found '-1' as a weight; allowed: 0 to 1e9"),
        ("0: a=1, a=2", "found 'a=2'; allowed: each class once, with its weight: copying=2"),
        ("0: a", "found 'a'; allowed: each class once, with its weight: copying=2"),
        ("0: a=0", "found '0: a=0'; allowed: a weight above 0"),
        ("0: d=1", "found the class 'd'; allowed: a, b, c"),
        ("0: a=1; 0.9: b=1", f"found a stage from 0.9 {TOO_FEW}"),
        ("0: a=1; 0.3: b=1; 0.35: c=1", f"found a stage from 0.3 {TOO_FEW}"),
    ],
)
def test_an_invalid_schedule_is_refused(stages, message):
    with pytest.raises(ValueError) as error:
        mixtures(stages, np.ones(4))
    assert str(error.value) == f"bandit.stages: {message}"


def test_an_invalid_configuration_is_refused_before_the_run():
    config = default_config()
    config.objectives.mixture, config.bandit.policy = "tiny", "staged"
    config.bandit.stages = "0: copying=1; 0.5: causal_lm=1"
    config.train.num_steps, config.bandit.every_steps = 100, 40
    configured_mixture(parse_config(config))
    config.bandit.stages = "0: coping=1"
    with pytest.raises(ConfigError) as error:
        configured_mixture(parse_config(config))
    assert str(error.value).startswith(
        "config.bandit.stages: found the class 'coping'; allowed: copying, causal_lm, deshuffling, "
    )


def test_each_class_requires_a_name():
    config = BanditConfig(policy="fixed")
    message = "init_bandit: class_names must be one for each of the 2 classes; found 3"
    with pytest.raises(ValueError, match=message):
        init_bandit(config, [1, 1], [0, 1], 3, jax.random.key(0), class_names=CLASSES)
