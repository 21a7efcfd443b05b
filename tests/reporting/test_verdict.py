"""The first screen: the sentence about good and bad runs, and the figures below it."""

import dataclasses
import json

import numpy as np
import pytest
from synthetic_workdir import tiny_arms, write_workdir

from birdie_jax.evaluation_record import EvaluatedModel, EvaluationRecord, Interval
from birdie_jax.reporting.run_record import read_run
from birdie_jax.reporting.verdict import class_accuracies, first_figures, verdict


@pytest.fixture
def run(tmp_path):
    arms = [tiny_arms()[index] for index in (1, 2, 3, 7)]
    folder = tmp_path / "run"
    summary = {"completed": True, "parameters": 5000, "unigram_entropy": 6.0}
    write_workdir(folder, arms, steps=40, log_every=10, decide_every=20, summary=summary)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        for arm, (loss, accuracy) in zip(
            arms, ((1.0, 0.2), (1.0, 0.4), (0.1, 0.97), (4.5, 0.25)), strict=True
        ):
            if f"arm/{arm['name']}/validation_loss" in line:
                share = line["step"] / 40
                line[f"arm/{arm['name']}/validation_loss"] = loss + 5 * (1 - share)
                line[f"arm/{arm['name']}/validation_accuracy"] = accuracy * share
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return read_run(folder)


def evaluation(**fields):
    model = EvaluatedModel("runs/a", 40, "c", "p", "prefix_lm")
    given = {"name": "held_out", "task": "perplexity", "main_metric": "loss", "metrics": {}} | fields
    return EvaluationRecord(
        1, settings={}, model=model, answers=64, refused=[], groups={}, seconds=1.0, **given
    )


def test_a_run_that_learned(run):
    assert verdict(run) == (
        "The loss on held-out text is 4.50 nats per token. Token frequencies alone give 6.00. The model "
        "predicts most tokens of copying (97 %), and fewer of autoencoding (30 %) and causal lm (25 %)."
    )


def test_a_run_that_did_not_learn(run):
    worse = dataclasses.replace(run, summary=run.summary | {"unigram_entropy": 4.0})
    assert "Token frequencies alone give 4.00: the model has not learned to predict text." in verdict(worse)
    values = {**run.metrics.arm_values}
    values["validation_accuracy"] = 0.1 * values["validation_accuracy"]
    poor = dataclasses.replace(run, metrics=dataclasses.replace(run.metrics, arm_values=values))
    assert verdict(poor).endswith("The model predicts most tokens of no class; the best is copying (10 %).")


def test_answers_are_counted(run):
    answered = dataclasses.replace(run, evaluations=(evaluation(name="copy_8", exact=59),))
    assert verdict(answered).endswith("Copy 8: 59 of 64 answers are exactly right.")


def test_accuracies_begin_at_the_first_validation(run):
    found = {one.name: (one.accuracy, one.first) for one in class_accuracies(run)}
    assert found["copying"] == pytest.approx((0.97, 0.0))
    assert found["autoencoding"] == pytest.approx((0.3, 0.0))


def test_measured_bits_per_byte_come_first(run):
    names = [figure.name for figure in first_figures(run)]
    assert names == ["Held-out loss", "Tokens seen", "Wall time", "Parameters"]
    metrics = {"bits_per_byte": Interval(1.25, 1.2, 1.3)}
    measured = dataclasses.replace(run, evaluations=(evaluation(metrics=metrics),))
    first = first_figures(measured)[0]
    assert (first.name, first.value, first.remark) == ("Bits per byte", "1.250", "1.200 to 1.300, held out")


def test_a_run_without_arms_has_its_loss(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 3, "loss": 2.5}) + "\n")
    run = read_run(tmp_path)
    assert verdict(run) == "" and class_accuracies(run) == []
    assert [figure.value for figure in first_figures(run)] == ["2.500"]
    assert np.isfinite(run.metrics.scalar("loss")).all()
