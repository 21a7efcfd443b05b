"""Tests the steering study: settings of contenders, controls of the best policy, and the page."""

import numpy as np
import pytest

from birdie_jax.bandit import POLICIES
from birdie_jax.bandit.policies.staged import parse_stages
from birdie_jax.config import parse_config
from birdie_jax.config_flag import load_config
from birdie_jax.objectives import make_mixture
from birdie_jax.resolve import configured_mixture
from studies import steering
from studies.class_objective import stage_of
from studies.mixture_grid import FRESH_SEEDS, GRID, MixtureGrid
from studies.mixture_grid import Run as GridRun
from studies.results import read_results, write_result
from studies.steering import SEEDS, UNSTEERED, Run, Steering, class_shares
from studies.steering_policies import BEST_STEERING, STEERING

MIXTURE = make_mixture("small_models_even", 256)
DECISIONS = 24


def result(value, tilt=0.0):
    """Return a result with J = `value` at the end; the share of short copying grows by `tilt`."""
    arms = sorted(MIXTURE.names)
    groups = dict(zip(MIXTURE.names, MIXTURE.groups, strict=True))
    sizes = {group: MIXTURE.groups.count(group) for group in groups.values()}
    even = np.array([1 / 9 / sizes[groups[arm]] for arm in arms])
    short = np.array([groups[arm] == "short_copying" for arm in arms])
    rows = [even * (1 + np.where(short, tilt * number, 0.0)) for number in range(DECISIONS)]
    return {
        "arms": arms,
        "steps": [16 * number for number in range(DECISIONS + 1)],
        "validation_loss": [[value + 1] * len(arms)] * DECISIONS + [[value] * len(arms)],
        "probability": [(row / row.sum()).tolist() for row in rows],
    }


def write(study, run, found):
    described = {"study": study.name, "run": run._asdict(), "circumstances": {"seconds": {"training": 600}}}
    write_result(study.result_file(run), described, found)


@pytest.fixture
def study(tmp_path, monkeypatch):
    monkeypatch.setattr(steering, "GRID_RESULTS", tmp_path / "grid")
    return Steering(Steering.scales["small"], tmp_path / "results", tmp_path / "workdirs", "stdlib")


def settings_of(study, run):
    config = load_config("configs/tiny.py")
    config.update_from_flattened_dict(study.settings(run))
    parsed = parse_config(config)
    assert configured_mixture(parsed).arms and parsed.seed == run.seed
    return parsed


def test_every_contender_starts_from_equal_shares(study):
    runs = [run for run in study.runs() if run.seed == SEEDS[0]]
    assert {run.contender for run in runs} == {*UNSTEERED, *STEERING} - {"best_fixed"}
    for run in runs:
        config = settings_of(study, run)
        assert config.objectives.mixture == "small_models_even" and config.bandit.policy in POLICIES
    members = np.array(list(dict.fromkeys(MIXTURE.groups)))[:, None] == np.array(MIXTURE.groups)
    shares = members @ np.array(MIXTURE.weights)
    np.testing.assert_allclose(shares / shares.sum(), 1 / 9)


def test_the_published_policy_has_the_critic_of_the_paper(study):
    published = settings_of(study, Run("small", "published", 5))
    standardised = settings_of(study, Run("small", "standardised", 5))
    for bandit in (published.bandit, standardised.bandit):
        assert (bandit.critic_layers, bandit.critic_features, bandit.critic_state) == (4, 256, 512)
        assert bandit.candidates == 4096
    assert (published.bandit.candidate_prior, published.eval.batches_per_arm) == ("arms", 2)
    assert (standardised.bandit.candidate_prior, standardised.eval.batches_per_arm) == ("classes", 1)


def test_the_best_fixed_mixture_comes_from_the_grid(study, tmp_path):
    grid = MixtureGrid(MixtureGrid.scales["small"], tmp_path / "grid", tmp_path, "stdlib")
    for number, mixture in enumerate(GRID):
        write(grid, GridRun("small", *mixture, 0), result(2 + number / 10))
    assert study.best_stage() is None
    for number, mixture in enumerate(GRID[:4]):
        for seed in FRESH_SEEDS:
            write(grid, GridRun("small", *mixture, seed), result(3 - number / 10))
    run = Run("small", "best_fixed", 5)
    assert run in list(study.runs())
    assert settings_of(study, run).bandit.stages == stage_of(GRID[3])


def test_controls_use_the_shares_of_the_best_policy(study):
    assert not any(run.contender in ("yoked", "permuted") for run in study.runs())
    values = {name: 2.0 + number / 10 for number, name in enumerate(STEERING)}
    # Correcting for the second batch adds 0.2 to `published`, so `standardised` is the best.
    values |= {"uniform": 2.5, "uniform_two_batches": 2.3}
    for run in list(study.runs()):
        write(study, run, result(values[run.contender] + run.seed / 100, 0.1))
    controls = [run for run in study.runs() if run.contender in ("yoked", "permuted")]
    assert len(controls) == 2 * len(SEEDS)
    assert steering.best_steering(study.read_results()) == "standardised"
    _, shares = class_shares(result(2.0, 0.1))
    for run in controls[:2]:
        stages = parse_stages(settings_of(study, run).bandit.stages)
        found = np.array([list(weights.values()) for _, weights in stages])
        np.testing.assert_allclose(found.mean(axis=0), shares.mean(axis=0), atol=1e-3)
        assert len(stages) == (1 if run.contender == "yoked" else 12)
        write(study, run, result(2.4))
    page = study.results.parent / "page.md"
    page.write_text("<!-- begin steering.small -->\n<!-- end steering.small -->\n")
    study.write_page(page)
    text = page.read_text()
    assert "| uniform | 2.565 | 2.550, 2.560, 2.570, 2.580 |" in text
    assert "| published | 2.265 |" in text and "-0.300 (-0.300 .. -0.300)" in text
    assert "yoked" in text and "permuted" in text and "/" in text
    assert (page.parent / "page_small_shares.png").exists()


def test_predicted_and_earned_rewards_are_compared():
    one = {"predicted_reward": [1.0, 2.0, 3.0, 5.0], "earned_reward": [-1.0, -2.0, -3.0, -5.0]}
    results = {Run("small", "published", 5): one, Run("small", "pairs", 5): {"predicted_reward": None}}
    table = steering._table_of_predictions(results).splitlines()
    assert table[2:] == ["| published | 5 | -1.00 | +4.00 | -4.00 |"]
    assert steering._table_of_predictions({Run("small", "pairs", 5): {}}) == ""


def test_the_recorded_runs_determine_the_best_policy():
    recorded = steering.GRID_RESULTS.with_name("steering")
    assert steering.best_steering(read_results(recorded, "small", Run)) == BEST_STEERING
