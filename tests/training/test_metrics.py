"""What the steps tell is summed up right, one step late, and survives a killed run."""

import json

import numpy as np
import pytest

from birdie_jax.training.metrics import MetricsFile, StepLog, TrainingDiverged
from birdie_jax.training.step import ArmSums, StepMetrics


def step_metrics(loss=1.0, arms=((2.0, 1.0, 4.0), (0.0, 0.0, 0.0)), grad_norm=2.0, sample_tokens=6.0):
    sums = ArmSums(*(np.array(column, np.float32) for column in zip(*arms, strict=True)))
    return StepMetrics(np.float32(loss), np.float32(grad_norm), sums, np.float32(sample_tokens))


def test_summary_is_one_step_late_and_weighted_by_tokens():
    log = StepLog(("a", "b"), log_every_steps=2, row_tokens=8, tokens_seen=100)
    assert log.add(1, step_metrics(arms=((2.0, 1.0, 4.0), (3.0, 2.0, 2.0))), 0.5) is None
    assert log.add(2, step_metrics(arms=((6.0, 3.0, 4.0), (0.0, 0.0, 0.0)), grad_norm=4.0), 0.1) is None
    summary = log.add(3, step_metrics(), 0.0)
    assert summary["step"] == 2
    assert summary["loss"] == pytest.approx(11 / 10)
    assert summary["accuracy"] == pytest.approx(6 / 10)
    assert summary["grad_norm"] == pytest.approx(3.0)
    assert summary["padding_share"] == pytest.approx(1 - 12 / 16)
    assert summary["tokens_seen"] == 112
    assert summary["host_wait_seconds"] == pytest.approx(0.3)
    assert summary["arm/a/loss"] == pytest.approx(1.0)
    assert summary["arm/b/accuracy"] == pytest.approx(1.0)
    assert log.flush() is None
    summary = log.add(4, step_metrics(), 0.0) or log.flush()
    assert summary["arm/b/tokens"] == 0
    assert "arm/b/loss" not in summary


@pytest.mark.parametrize("bad", [{"loss": np.nan}, {"loss": np.inf}, {"grad_norm": np.nan}])
def test_divergence_names_step_and_arms(bad):
    log = StepLog(("a", "b"), 10, 8, 0)
    log.add(41, step_metrics(**bad), 0.0)
    with pytest.raises(TrainingDiverged, match=r"step 41: the loss is .*; losses of the arms: a 0\.5$"):
        log.flush()


def test_file_takes_back_what_is_run_again(tmp_path):
    file = MetricsFile(tmp_path, 0)
    for step in (0, 2, 4, 6):
        file.write(step, {"loss": float(step), "tokens_seen": 10.0 * step})
    file.close()
    with (tmp_path / "metrics.jsonl").open("a") as damaged:
        damaged.write('{"step": 8, "lo')
    file = MetricsFile(tmp_path, 4)
    assert file.kept["tokens_seen"] == 40
    file.write(6, {"loss": 7.0, "grad_norm": float("nan")})
    file.close()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 2, 4, 6]
    assert lines[-1] == {"step": 6, "loss": 7.0}
    assert list((tmp_path / "tensorboard").iterdir())


@pytest.mark.parametrize("again", [True, False])
def test_a_validation_that_comes_once_more_is_taken_back(tmp_path, again):
    file = MetricsFile(tmp_path, 0)
    file.write(4, {"loss": 1.0})
    file.write(4, {"arm/a/validation_loss": 2.0})
    file.close()
    MetricsFile(tmp_path, 4, validates_again=again).close()
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == (1 if again else 2)


def test_a_run_from_the_start_begins_anew(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 3}\n')
    MetricsFile(tmp_path, 0).close()
    assert (tmp_path / "metrics.jsonl").read_text() == ""
