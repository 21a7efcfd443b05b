"""The metrics of a killed run are taken back to its checkpoint, as if it had never gone beyond."""

import json

import pytest

from birdie_jax.engine import Workdir
from birdie_jax.engine.metrics_file import STEP_LINE_KEY, MetricsFile

CLOCK = {STEP_LINE_KEY: 0.1}


def test_file_takes_back_what_is_run_again(tmp_path):
    file = MetricsFile(Workdir(tmp_path), 0)
    for step in (0, 2, 4, 6):
        file.write(step, {"loss": float(step), "tokens_seen": 10.0 * step, **CLOCK})
    file.close()
    with (tmp_path / "metrics.jsonl").open("a") as damaged:
        damaged.write('{"step": 8, "lo')
    file = MetricsFile(Workdir(tmp_path), 4)
    assert file.kept["tokens_seen"] == 40
    file.write(6, {"loss": 7.0, "grad_norm": float("nan")})
    file.close()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 2, 4, 6]
    assert lines[-1] == {"step": 6, "loss": 7.0}
    assert list((tmp_path / "tensorboard").iterdir())


@pytest.mark.parametrize("again", [True, False])
@pytest.mark.parametrize("name", ["arm/a/validation_loss", "task/phonebook/exact_match"])
def test_what_a_hook_measures_once_more_is_taken_back(tmp_path, again, name):
    file = MetricsFile(Workdir(tmp_path), 0)
    file.write(4, {"loss": 1.0, **CLOCK})
    file.write(4, {name: 2.0})
    file.close()
    MetricsFile(Workdir(tmp_path), 4, hooks_run_again=again).close()
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == (1 if again else 2)


def test_a_run_from_the_start_begins_anew(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 3}\n')
    MetricsFile(Workdir(tmp_path), 0).close()
    assert (tmp_path / "metrics.jsonl").read_text() == ""
