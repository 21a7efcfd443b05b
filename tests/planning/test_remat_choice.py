"""The choice of `model.remat`: the first level that fits, chosen once and kept on resume."""

import jax
import pytest

from birdie_jax.config import parse_config
from birdie_jax.engine import Workdir
from birdie_jax.engine.coordination import Processes
from birdie_jax.errors import ConfigError
from birdie_jax.models.rematerialisation import LEVELS
from birdie_jax.planning.remat_choice import choose_level, keep_remat, plan_chosen
from birdie_jax.planning.topology import make_topology
from birdie_jax.resolve import resolve_run
from tests.micro_config import get_config

NEEDS = dict(zip(LEVELS, (16.0, 12.0, 9.0, 6.0, 3.0, 2.0), strict=True))


@pytest.fixture(scope="module")
def run():
    config = get_config("fixed")
    config.model.remat = "auto"
    return resolve_run(parse_config(config), 300, jax.devices()[:1])


def try_within(gibibytes):
    return lambda run: (NEEDS[run.config.model.remat] * 2**30, gibibytes * 2**30)


@pytest.mark.parametrize(
    ("gibibytes", "level"), [(17, "recurrences"), (12, "dots"), (7, "mixer"), (3.5, "full"), (1, "offload")]
)
def test_the_first_level_that_fits_is_chosen(run, gibibytes, level):
    found, tried = choose_level(run, try_within(gibibytes))
    assert found == level
    assert tried.startswith("recurrences 12.0 GiB") and tried.endswith(f"a device has {gibibytes:.1f} GiB")


def test_every_process_uses_the_same_answers(run):
    """A process stops at the agreed level, even if an earlier level fits its own device."""
    agreed = []

    def agree(level, fits):
        agreed.append((level, fits))
        return level == "mixer"

    assert choose_level(run, try_within(100), agree)[0] == "mixer"
    assert agreed == [("recurrences", True), ("dots", True), ("mixer", True)]


def test_the_choice_is_recorded_and_kept(run, tmp_path):
    workdir = Workdir(tmp_path / "run")
    workdir.make()
    (first,) = keep_remat([run], workdir, Processes())
    assert first.config.model.remat == first.model.config.remat == "none"
    assert "model.remat = none (a CPU has the memory of the machine)" in first.explanation
    workdir.write(workdir.remat, {"remat": "dots", "tried": "what it was"})
    (again,) = keep_remat([run], workdir, Processes())
    assert again.model.config.remat == "dots" and "what it was" in again.explanation
    workdir.write(workdir.remat, {"remat": "some", "tried": ""})
    with pytest.raises(ConfigError, match=r"remat\.json: remat: found 'some'; allowed: none, recurrences"):
        keep_remat([run], workdir, Processes())


def test_a_named_level_is_kept(run, tmp_path):
    named = run.with_model(remat="mixer")
    assert keep_remat([named], Workdir(tmp_path / "none"), Processes()) == (named,)


@pytest.mark.slow
def test_a_plan_makes_the_choice_for_its_topology(run):
    chosen, plan = plan_chosen(run, make_topology("cpu"))
    assert chosen.config.model.remat == "none" and plan.fits
    assert "model.remat = none (a CPU has" in chosen.explanation
