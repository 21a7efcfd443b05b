"""A run may be made longer or shorter while its learning rate does not depend on the end."""

import re
from contextlib import nullcontext

import jax
import numpy as np
import pytest

from birdie_jax.config import parse_config, to_dict
from birdie_jax.config_sections import OptimizerConfig
from birdie_jax.engine.checkpoint_format import nested
from birdie_jax.engine.run_end import END_FIELDS, movable_fields
from birdie_jax.errors import ConfigError
from birdie_jax.optimizers import learning_rate_schedule
from birdie_jax.storage.workdir import FREE_FIELDS, Workdir, flat
from tests.micro_config import get_config
from tests.whole_runs import REPOSITORY

PEAK, FINAL = 1e-2, 1e-4


def rates(num_steps, **fields):
    rates = {"learning_rate": PEAK, "final_learning_rate": FINAL}
    config = OptimizerConfig(**rates, warmup_steps=10, schedule="wsd", **fields)
    return jax.vmap(learning_rate_schedule(config, num_steps))(np.arange(num_steps + 5))


@pytest.mark.parametrize(
    ("shape", "middle"), [("linear", 0.5), ("cosine", 0.5), ("one_minus_sqrt", 1 - 0.5**0.5)]
)
def test_the_rate_warms_up_stays_and_falls(shape, middle):
    found = rates(100, decay_steps=20, decay_shape=shape)
    np.testing.assert_allclose(found[:11], PEAK * np.linspace(1 / 11, 1, 11), rtol=1e-5)
    np.testing.assert_allclose(found[10:81], PEAK, rtol=1e-6)
    np.testing.assert_allclose(found[90], FINAL + middle * (PEAK - FINAL), rtol=1e-5)
    np.testing.assert_allclose(found[100:], FINAL, rtol=1e-5)
    assert np.all(np.diff(found[80:101]) < 0)


def test_without_a_decay_the_rate_stays():
    np.testing.assert_allclose(rates(100)[10:], PEAK, rtol=1e-6)


def test_rates_before_the_decay_are_the_same_whatever_the_end():
    np.testing.assert_array_equal(rates(100, decay_steps=20)[:81], rates(500, decay_steps=300)[:81])


def fields(**given):
    config = flat(to_dict(parse_config(get_config())))
    return config | {"optimizer.schedule": "wsd", "train.num_steps": 100, **given}


def test_the_end_moves_until_the_decay_begins():
    decaying = {"optimizer.decay_steps": 30}
    assert movable_fields(70, fields(**decaying), fields(**{"train.num_steps": 200})) == END_FIELDS
    assert not movable_fields(71, fields(**decaying), fields()), "it has begun"
    assert not movable_fields(71, fields(), fields(**decaying)), "it would have begun"
    assert movable_fields(100, fields(), fields(**{"train.num_steps": 200}))
    assert not movable_fields(100, fields(), fields(**{"train.num_steps": 90})), "steps were done"
    for schedule in ("cosine", "linear"):
        other = {"optimizer.schedule": schedule}
        assert not movable_fields(0, fields(**other), fields(**other))


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"schedule": "steps"}, "optimizer.schedule"),
        ({"decay_shape": "root"}, "optimizer.decay_shape"),
        ({"decay_steps": 2}, "optimizer.decay_steps: found 2; allowed: 0 without"),
        (
            {"schedule": "wsd", "decay_steps": 10**6},
            "optimizer.decay_steps: found 1000000; allowed: at most",
        ),
    ],
)
def test_an_invalid_decay_is_refused(given, named):
    config = get_config()
    config.optimizer.update(given)
    with pytest.raises(ConfigError, match=f"config.{named}"):
        parse_config(config)


def test_the_page_names_the_fields_that_may_change():
    page = (REPOSITORY / "docs" / "operate.md").read_text()
    table = page.split("## What may change")[1].split("\n## ")[0]
    assert set(re.findall(r"`([a-z_]+(?:\.[a-z_]+)?)`", table)) - {"optimizer.schedule"} == (
        FREE_FIELDS | END_FIELDS
    )


@pytest.mark.parametrize("name", sorted(FREE_FIELDS | END_FIELDS | {"seed", "optimizer.learning_rate"}))
def test_a_run_resumes_with_another_value_of_a_field_that_may_change(tmp_path, name):
    before = fields()
    Workdir(tmp_path).claim(as_sections(before), as_sections(before))
    changed = as_sections(before | {name: ["another value"]})
    allowed = name in FREE_FIELDS | END_FIELDS
    with nullcontext() if allowed else pytest.raises(ConfigError, match=f"config.{name}: the run has"):
        Workdir(tmp_path).claim(changed, as_sections(before), movable=lambda *_: END_FIELDS)


def as_sections(config):
    return nested({name.replace(".", "/"): value for name, value in config.items()})
