"""The metrics of the steps are summed up correctly, one step late."""

import json

import numpy as np
import pytest

from birdie_jax.engine import StepMetrics
from birdie_jax.engine.sharded_step import summarise_means
from birdie_jax.engine.step_log import OpenWindow, StepLog
from birdie_jax.errors import TrainingDiverged


def step_metrics(loss=1.0, error=2.0, grad_norm=2.0, tokens=6.0):
    sums = {"error": np.float32(error)}
    return StepMetrics(*map(np.float32, (loss, 2.0, grad_norm, tokens)), sums)


def test_summary_is_one_step_late():
    log = StepLog(summarise_means, log_every_steps=2, window=OpenWindow(100))
    assert log.add(1, step_metrics(loss=1.0, error=3.0), 0.5) is None
    assert log.add(2, step_metrics(loss=2.0, error=5.0, grad_norm=4.0), 0.1) is None
    summary = log.add(3, step_metrics(), 0.0)
    assert summary["step"] == 2
    assert summary["loss"] == pytest.approx(1.5)
    assert summary["error"] == pytest.approx((3 + 5) / (2 + 2))
    assert summary["grad_norm"] == pytest.approx(3.0)
    assert summary["tokens_seen"] == 112
    assert summary["host_wait_seconds"] == pytest.approx(0.3)
    assert log.flush() is None
    summary = log.add(4, step_metrics(loss=3.0), 0.0) or log.flush()
    assert summary["loss"] == pytest.approx(2.0)
    assert summary["tokens_seen"] == 124


def test_a_loss_of_the_step_replaces_the_mean():
    log = StepLog(lambda totals: {"loss": float(totals.sums["error"]) / totals.tokens}, 1)
    log.add(1, step_metrics(error=3.0), 0.0)
    assert log.flush()["loss"] == pytest.approx(0.5)


def test_the_totals_count_the_steps_that_were_taken():
    found = []
    log = StepLog(lambda totals: found.append((totals.num_steps, totals.taken)) or {}, log_every_steps=3)
    for step in range(1, 4):
        log.add(step, step_metrics().replace(skipped=np.bool_(step == 2)), 0.0)
    log.flush()
    assert found[-1] == (3, 2)


def test_an_array_sum_needs_its_own_summary():
    log = StepLog(summarise_means, 1)
    log.add(1, StepMetrics(*map(np.float32, (1, 1, 1, 1)), {"by_arm": np.ones(3)}), 0.0)
    with pytest.raises(ValueError, match=r"the sum 'by_arm' has shape \(3,\); allowed: a number"):
        log.flush()


@pytest.mark.parametrize("bad", [{"loss": np.nan}, {"loss": np.inf}, {"grad_norm": np.nan}])
def test_divergence_names_step_and_losses(bad):
    log = StepLog(lambda totals: {"arm/a/loss": 0.5, "accuracy": 0.1}, 10)
    log.add(41, step_metrics(**bad), 0.0)
    with pytest.raises(TrainingDiverged, match=r"step 41: the loss is .*; losses: arm/a 0\.5$"):
        log.flush()


def test_a_window_comes_back_from_json():
    log = StepLog(summarise_means, log_every_steps=10, window=OpenWindow(100))
    log.add(1, step_metrics(loss=1.5, error=3.0), 0.0)
    log.flush()
    found = json.loads(json.dumps(log.window.to_json() | {"of a later version": 1}))
    again = StepLog(summarise_means, log_every_steps=2, window=OpenWindow.from_json(found))
    again.add(2, step_metrics(loss=2.5, error=5.0), 0.0)
    summary = again.flush()
    assert (summary["loss"], summary["error"], summary["tokens_seen"]) == (2.0, 2.0, 112.0)


def test_other_sums_begin_a_new_window():
    log = StepLog(summarise_means, log_every_steps=2, window=OpenWindow(100))
    log.add(1, step_metrics(), 0.0)
    metrics = step_metrics(loss=7.0)
    log.add(2, metrics.replace(sums={"other": np.float32(4)}), 0.0)
    summary = log.flush()
    assert (summary["loss"], summary["other"], summary["tokens_seen"]) == (7.0, 2.0, 112.0)
