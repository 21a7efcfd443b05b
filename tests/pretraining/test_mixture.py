"""An unusable mixture is refused before anything is compiled."""

import pytest

from birdie_jax.config import default_config, parse_config
from birdie_jax.errors import ConfigError
from birdie_jax.resolve import configured_mixture


def refusal(**objectives):
    config = default_config().unlock()
    config.objectives.update(objectives)
    with pytest.raises(ConfigError) as error:
        configured_mixture(parse_config(config))
    return str(error.value)


def test_presets_and_custom_arms_are_resolved():
    assert len(configured_mixture(parse_config(default_config())).arms) == 104
    config = default_config().unlock()
    config.objectives.arms = {
        "short": {"objective": "copying", "max_length": 64, "weight": 3.0},
        "text": {"objective": "causal_lm"},
    }
    mixture = configured_mixture(parse_config(config))
    assert mixture.names == ("short", "text")
    assert mixture.weights.tolist() == [0.75, 0.25]


def test_an_unknown_mixture_is_refused():
    assert refusal(mixture="birdy").startswith("config.objectives.mixture: found 'birdy'; allowed: ")


@pytest.mark.parametrize(
    ("arms", "parts"),
    [
        ({"a": {"weight": 1.0}}, ("config.objectives.arms: arm 'a': objective: found None", "causal_lm")),
        (
            {"a": {"objective": "copying", "weight": 0.0}},
            ("config.objectives.arms: mixture: the weights add up to 0",),
        ),
        (
            {"a": {"objective": "copying", "min_length": 2000}},
            ("arm 'a' needs 2000 tokens of text, and a row of batching.length = 2048 holds 1023",),
        ),
    ],
)
def test_unusable_arms_are_refused(arms, parts):
    message = refusal(arms=arms)
    for part in parts:
        assert part in message
