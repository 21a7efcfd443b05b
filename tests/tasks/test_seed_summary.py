"""Mean and deviation of scores over runs, at their newest checkpoints."""

import json
import re
import statistics

import pytest

from birdie_jax.config import to_dict
from birdie_jax.errors import ConfigError
from birdie_jax.evaluation_record import FORMAT_VERSION
from birdie_jax.tasks.evaluation_table import summarise_seeds
from tests.forked_verbs import run_commands
from tests.trained_workdirs import micro_config

SCORES = {"accuracy": (0.5, 0.625, 0.75), "f1": (0.25, 0.5, 0.25)}


def record(name, metrics, step, path="x", answers=3):
    return {
        "format_version": FORMAT_VERSION,
        "name": name,
        "task": "glue",
        "settings": {"path": path},
        "main_metric": "accuracy",
        "model": {
            **{"origin": "runs/x", "step": step, "prompt_format": "masked_lm"},
            **{"config_sha256": "0", "parameters_sha256": "0"},
        },
        "answers": answers,
        "refused": [],
        "metrics": {metric: {"mean": mean, "low": 0.0, "high": 1.0} for metric, mean in metrics.items()},
        "groups": {},
        "seconds": 1.0,
    }


def evaluated(workdir, records, step=8):
    folder = workdir / f"evaluations/{step:08d}"
    folder.mkdir(parents=True, exist_ok=True)
    for one in records:
        (folder / f"{one['name']}.json").write_text(json.dumps(one))
        (folder / f"{one['name']}.jsonl").write_text("")


@pytest.fixture
def runs(tmp_path):
    workdirs = []
    for seed in range(3):
        workdir = tmp_path / f"run_{seed}"
        for step in (4, 8):
            (workdir / f"checkpoints/{step}").mkdir(parents=True)
        (workdir / "config.json").write_text(json.dumps(to_dict(micro_config()) | {"seed": seed}))
        metrics = {metric: scores[seed] for metric, scores in SCORES.items()}
        evaluated(workdir, [record("rte", metrics, 8)])
        # An earlier checkpoint has the best scores.
        evaluated(workdir, [record("rte", {"accuracy": 1.0, "f1": 1.0}, 4)], step=4)
        workdirs.append(workdir)
    return workdirs


def test_scores_are_from_the_newest_checkpoints(runs):
    found = {one.metric: one for one in summarise_seeds([str(run) for run in runs])}
    assert found.keys() == SCORES.keys()
    for metric, scores in SCORES.items():
        assert found[metric].scores == scores
        assert found[metric].mean == pytest.approx(statistics.mean(scores))
        assert found[metric].deviation == pytest.approx(statistics.stdev(scores))


def test_predictions_are_ignored(runs):
    evaluated(runs[0], [record("test", {}, 8)])
    assert {one.evaluation for one in summarise_seeds([str(run) for run in runs])} == {"rte"}


def test_metrics_that_a_run_lacks_are_left_out(runs):
    """Older records contain the metrics that F1 is derived from."""
    for run in runs[:2]:
        evaluated(run, [record("rte", {"accuracy": 0.5, "positive": 0.25, "f1": 0.5}, 8)])
    assert [one.metric for one in summarise_seeds([str(run) for run in runs])] == ["accuracy", "f1"]


@pytest.mark.slow
def test_the_command_prints_a_table(runs):
    flags = [f"--workdir={run}" for run in runs]
    ((status, output, errors),) = run_commands([("tasks.seed_summary", *flags)])
    assert status == 0, errors
    lines = [line.split() for line in output.splitlines()]
    assert lines[0] == ["task", "metric", "mean", "deviation", "range", "runs"]
    assert lines[1] == ["rte", "accuracy", "0.6250", "0.1250", "0.5000", "..", "0.7500", "3"]


def change_config(run, **changes):
    path = run / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_an_unfinished_run_is_reported_before_missing_evaluations(runs):
    """Adding the missing evaluations would not help an unfinished run."""
    (runs[1] / "checkpoints/8").rmdir()
    evaluated(runs[0], [record("mrpc", {"f1": 0.5}, 8)])
    with pytest.raises(ConfigError, match="found the last step 4, but 8 in"):
        summarise_seeds([str(run) for run in runs])


# In the last case, the run was evaluated before its end.
REFUSED = [
    (lambda run: change_config(run, seed=0), "{1}: found seed 0, as in {0}; allowed: another seed"),
    (lambda run: change_config(run, data={}), "{1}: found another config.data than in {0}; allowed"),
    (lambda run: (run / "checkpoints/12").mkdir(), "{1}: has no evaluation of its newest checkpoint;"),
    (lambda run: evaluated(run, [record("mrpc", {"f1": 0.5}, 8)]), "{0}: has no evaluation mrpc of its"),
    (lambda run: evaluated(run, [again(path="y")]), "{1}: the evaluation rte has other settings than in"),
    (lambda run: evaluated(run, [again(answers=2)]), "{1}: the evaluation rte has 2 answers, but 3 in"),
    (lambda run: (run / "checkpoints/8").rmdir(), "{1}: found the last step 4, but 8 in {0};"),
]


def again(**fields):
    return record("rte", {"accuracy": 0.5, "f1": 0.5}, 8, **fields)


@pytest.mark.parametrize(("change", "message"), REFUSED)
def test_runs_that_differ_in_more_than_the_seed_are_refused(runs, change, message):
    change(runs[1])
    with pytest.raises(ConfigError, match=f"^{re.escape(message.format(*runs))}"):
        summarise_seeds([str(run) for run in runs])
    with pytest.raises(ConfigError, match=r"^--workdir: found 1; allowed: two or more runs$"):
        summarise_seeds([str(runs[0])])
