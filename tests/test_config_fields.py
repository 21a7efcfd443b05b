"""Every field of a configuration with impossible values: refused in one line, or harmless."""

import dataclasses
import typing
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birdie_jax.bandit.policies.birdie import explore_probability
from birdie_jax.batching import DecisionSchedule
from birdie_jax.batching.stream_state import StreamLayout
from birdie_jax.config import Config, default_config, parse_config
from birdie_jax.config_sections import ModelConfig
from birdie_jax.config_types import RequiredName
from birdie_jax.engine.automatic_sizes import count_parameters
from birdie_jax.errors import ConfigError
from birdie_jax.models import model_names
from birdie_jax.optimizers import learning_rate_schedule
from birdie_jax.resolve import configured_mixture
from birdie_jax.storage import Bounds, Rule
from tests.config_fields import FIELDS, HOSTILE, SECTIONS, changed


def refusal_of(path: str, value: object) -> str | None:
    """Return the message that refuses a value, and check that it is readable; None if allowed."""
    try:
        config = parse_config(changed(path, value))
        if path.startswith("objectives"):
            configured_mixture(config)
    except ConfigError as error:
        message = str(error)
    else:
        return None
    assert len(message.splitlines()) == 1 and message.isprintable()
    # The found value is shortened; for a section all fields are named.
    assert len(message.partition("allowed")[0]) < 500
    assert len(message) < 700
    assert message.startswith("config.")
    assert path in message or path.rpartition(".")[0] in message
    assert "; allowed: " in message or ": missing" in message or "unknown" in message
    return message


@pytest.mark.parametrize("path", [path for path, kind in FIELDS.items() if kind is not bool])
def test_a_field_has_a_type_with_its_bounds(path):
    if path not in {"data.corpora", "objectives.arms", "finetune.stages", "eval.tasks", "imports"}:
        kind, *rules = typing.get_args(FIELDS[path])
        assert typing.get_origin(FIELDS[path]) is Annotated and kind in (int, float, str)
        assert any(isinstance(rule, Rule) for rule in rules)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("path", FIELDS)
def test_a_hostile_value_is_refused_in_one_line_or_works(path):
    kind = FIELDS[path]
    plain = typing.get_args(kind)[0] if typing.get_origin(kind) is Annotated else kind
    fits = {int: int, float: (int, float), str: str, bool: bool, dict[str, Any]: dict}
    fits = (fits | {tuple[RequiredName, ...]: (tuple, list)})[plain]
    # A field gets a quarter of the values; other fields of its type get the rest.
    for name, value in list(HOSTILE.items())[list(FIELDS).index(path) % 4 :: 4]:
        refused = refusal_of(path, value)
        is_of_type = isinstance(value, fits) and (type(value) is not bool or fits is bool)
        is_number = isinstance(value, int | float)
        if not is_of_type or (is_number and not abs(value) < (2**63 if fits is int else 1e100)):
            assert refused is not None, name


@pytest.mark.parametrize("path", SECTIONS)
def test_an_invalid_section_is_refused_in_one_line(path):
    for value in (3, "x" * 100_000, {1: 2}, {"a\nb": 1}):
        assert refusal_of(path, value) is not None


def extremes():
    """Yield each numeric field with both ends of its interval."""
    for path, kind in FIELDS.items():
        for rule in typing.get_args(kind)[1:]:
            if isinstance(rule, Bounds):
                ends = (rule.at_least, rule.at_most, *rule.special)
                yield from ((path, end) for end in ends if end is not None)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("path", "value"), [*extremes()])
def test_bounds_include_their_ends_and_exclude_values_beyond(path, value):
    """Other fields may exclude a value; that message is also one line."""
    rule = bounds_of(path)
    assert rule.allowed_instead(value) is None
    refusal_of(path, value)
    if value == rule.at_most:
        assert refusal_of(path, value + max(1, abs(value) * 1e-6)) is not None


def bounds_of(path: str) -> Bounds:
    (rule,) = [rule for rule in typing.get_args(FIELDS[path])[1:] if isinstance(rule, Bounds)]
    return rule


def largest(path: str):
    return bounds_of(path).at_most


def test_the_largest_seed_reaches_numpy_and_jax():
    seed = largest("seed")
    np.random.Philox(key=[seed, 0], counter=[0, 0, 1, 1])
    np.random.SeedSequence((seed, 3)).generate_state(1)
    assert np.asarray(jax.random.key_data(jax.random.key(seed))).any()


@pytest.mark.slow
def test_the_maximum_number_of_steps_fits_int32():
    steps = largest("train.num_steps")
    assert jnp.int32(steps) + jnp.int32(1) > 0
    for warmup in (0, steps):
        config = dataclasses.replace(Config().optimizer, warmup_steps=warmup)
        schedule = learning_rate_schedule(config, steps)
        for step in (0, 1, steps // 2, steps):
            assert np.isfinite(schedule(jnp.int32(step)))
    assert DecisionSchedule(1, steps).num_decisions == steps
    config = Config().bandit
    assert np.isfinite(explore_probability(config, jnp.int32(steps - 1), steps))


def test_bounds_of_float_fields_fit_float32():
    smallest, biggest = np.finfo(np.float32).tiny, np.finfo(np.float32).max
    for path, kind in FIELDS.items():
        if typing.get_args(kind)[:1] == (float,):
            for end in (end for other, end in extremes() if other == path):
                assert end == 0 or smallest < abs(end) < biggest


@pytest.mark.parametrize("model", model_names())
def test_the_parameters_of_the_largest_model_are_counted_quickly(model):
    sizes = {name: largest(f"model.{name}") for name in ("layers", "features", "state", "mlp_features")}
    config = ModelConfig(name=model, **sizes)
    assert count_parameters(config, largest("data.vocab_size")) > 2**50


def test_the_largest_lookahead_has_a_state_of_megabytes():
    assert StreamLayout(("",), (), largest("batching.lookahead")).initial().nbytes < 2**21


@pytest.mark.parametrize("section", ["batching", "eval"])
def test_the_tokens_of_a_batch_are_counted_in_int32(section):
    config = default_config()
    config.batching.length = config.data.record_tokens = 2**15
    config.train.accumulation_steps = 1
    config[section].rows = 2**16
    with pytest.raises(ConfigError) as error:
        parse_config(config)
    assert str(error.value) == (
        f"config.{section}.rows: found 65536; allowed: at most 65,535 of batching.length = 32768: int32 "
        "counts tokens"
    )
    config[section].rows = 65_535
    assert parse_config(config)


ARM_FIELDS = ("weight", "objective", "group", "marker", "min_length", "max_length", "spans", "query_first")


@pytest.mark.parametrize("field", ARM_FIELDS)
def test_a_hostile_field_of_an_arm_is_refused_in_one_line_or_works(field):
    for name, value in list(HOSTILE.items())[ARM_FIELDS.index(field) % 2 :: 2]:
        arm = {"objective": "selective_copying"} | {field: value}
        refused = refusal_of("objectives.arms", {"mine": arm, "other": {"objective": "copying"}})
        if isinstance(value, int | float) and not isinstance(value, bool) and not abs(value) < 2**31:
            assert refused is not None and field in refused, name


@pytest.mark.parametrize("name", ["", "a/b", "a\nb", "a\0b", "x" * 101, "x" * 100_000, "ä", 3, "\ud800"])
def test_an_invalid_name_of_an_arm_is_refused_in_one_line(name):
    assert refusal_of("objectives.arms", {name: {"objective": "copying"}}) is not None


def test_invalid_arms_are_refused_in_one_line():
    unknown = [{"objective": "copying", field: 1} for field in ("name", "a\nb", "x" * 100_000, 3)]
    for arm in (3, None, "copying", [], {}, {1: "copying"}, *unknown):
        assert refusal_of("objectives.arms", {"mine": arm}) is not None


def test_sums_of_allowed_weights_are_finite():
    arms = {f"arm_{number}": {"objective": "copying", "weight": 1e9} for number in range(300)}
    weights = configured_mixture(parse_config(changed("objectives.arms", arms))).weights
    np.testing.assert_allclose(weights, 1 / 300)
