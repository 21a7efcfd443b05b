"""Tests the regression of trajectories against runs that follow it, and the best schedule against all."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import spearmanr

from birdie_jax.mixture_search.design import Design
from birdie_jax.mixture_search.findings import Findings
from studies.class_objective import class_of_arm
from studies.mixture_trajectories import (
    Trajectory,
    best_schedule,
    early_rows,
    fit,
    fit_trajectories,
    of_contenders,
    trajectories,
)
from studies.steering import UNIFORM, Run

INTERVALS, CLASSES = 4, 2


@pytest.fixture
def law():
    """Return a law in which a low loss of the first class lets the second one fall."""
    slopes = np.array([[-0.4, 0.1], [0.1, -0.2], [-0.1, 0.0], [0.0, -0.1], [-0.05, 0.4], [0.0, -0.1]])
    return Trajectory(
        jnp.array([4.0, 5.0]), jnp.linspace(-0.1, 0.0, INTERVALS)[:, None] * jnp.ones(2), jnp.array(slopes)
    )


def run(law, shares):
    """Return the losses at each validation, [times, classes], by a loop."""
    found = [np.asarray(law.first, np.float64)]
    for intercept, of_interval in zip(np.asarray(law.intercepts, np.float64), shares, strict=True):
        logs = np.log(found[-1])
        inputs = np.concatenate([of_interval, np.sqrt(of_interval), logs])
        found.append(np.exp(logs + intercept + inputs @ np.asarray(law.slopes, np.float64)))
    return np.array(found)


DESIGN = Design(("causal_lm", "prefix_lm"), (0.3, 0.7), 1, 0)


@pytest.fixture
def proxies():
    return DESIGN.points(12)[:, 0]


@pytest.fixture
def losses(law, proxies):
    return np.array([run(law, np.tile(one, (INTERVALS, 1))) for one in proxies])


def test_the_regression_of_constant_runs_predicts_a_run_that_changes_its_shares(law, proxies, losses):
    shares = np.array([[0.9, 0.1], [0.6, 0.4], [0.3, 0.7], [0.1, 0.9]])
    predicted = fit(proxies, losses, 1e-9).final(jnp.asarray(shares))
    np.testing.assert_allclose(predicted, run(law, shares)[-1], rtol=1e-3)
    with_a_penalty = fit(proxies, losses, 1e3).final(jnp.asarray(shares))
    assert np.abs(np.asarray(with_a_penalty) - run(law, shares)[-1]).max() > 0.02


@pytest.mark.parametrize("stages", [1, 2])
def test_no_schedule_on_a_fine_grid_is_better_than_the_best(law, proxies, stages):
    weights = np.array([0.2, 0.8])
    found = best_schedule(law, proxies, 0, stages, weights)
    grid = np.linspace(proxies[:, 0].min(), proxies[:, 0].max(), 46)
    every = [
        run(law, np.repeat([[one, 1 - one] for one in each], INTERVALS // stages, axis=0))[-1] @ weights
        for each in itertools.product(grid, repeat=stages)
    ]
    assert found == pytest.approx(min(every), abs=2e-3)
    if stages == 2:
        assert found < best_schedule(law, proxies, 0, 1, weights) - 0.02


@pytest.fixture
def findings(losses):
    return Findings(
        DESIGN, DESIGN.classes, np.array([0.5, 0.5]), len(losses), np.arange(len(losses)), losses[:, -1]
    )


def test_a_search_is_described_by_its_left_out_proxies(findings, losses):
    found = fit_trajectories(findings, losses)
    assert found.rank_correlation > 0.9 and found.error < 0.02
    assert found.schedules[4] <= found.schedules[2] + 1e-3 <= found.schedules[1] + 2e-3
    by_part = [row.measured for row in early_rows(findings, losses)]
    final, early = (findings.objectives(losses[:, at]) for at in (-1, 1))
    assert by_part[0] == pytest.approx(spearmanr(early, final).statistic) and by_part[-1] == 1.0


def test_contenders_are_predicted_from_their_shares_in_each_interval(findings, losses):
    arms = sorted(class_of_arm())

    def result(causal, loss):
        shares = [{"causal_lm": one, "prefix_lm": 1 - one} for one in causal]
        return {
            "arms": arms,
            "steps": [0, 10, 15, 20, 30, 40],
            "probability": [[each.get(arm, 0.0) for arm in arms] for each in shares],
            "validation_loss": [[loss] * len(arms)],
        }

    found = fit_trajectories(findings, losses).trajectory
    runs = {
        (UNIFORM, 5): result([0.5] * 5, 3.0),
        ("pairs", 5): result([0.2, 0.5, 0.7, 0.4, 0.9], 2.5),
        ("pairs", 6): result([0.5] * 5, 2.8),
        ("published", 5): result([0.5] * 5, 9.0),
    }
    (one,) = of_contenders(findings, found, {Run("small", *name): each for name, each in runs.items()})
    assert one.measured == pytest.approx(2.65 - 3.0)
    of_intervals = [[[causal, 1 - causal] for causal in each] for each in ([0.2, 0.6, 0.4, 0.9], [0.5] * 4)]
    first, equal = (run(found, np.array(each))[-1].mean() for each in of_intervals)
    assert one.by_trajectories == pytest.approx((first - equal) / 2, abs=1e-5)
    changed, same = findings.objectives(findings.law.predict(np.array([[0.525, 0.475], [0.5, 0.5]])))
    assert one.by_law == pytest.approx((changed - same) / 2)


def test_trajectories_are_means_over_the_arms_of_a_class():
    arms = sorted(class_of_arm())
    twice = [[2.0 if arm == "copying_l17_32" else 1.0 for arm in arms], [3.0] * len(arms)]
    found = trajectories({"run": {"arms": arms, "validation_loss": twice}}, ("causal_lm", "copying"))
    assert found.tolist() == [[[1.0, 1.5], [3.0, 3.0]]]
