"""Reading a workdir: errors name the file, the place and the allowed values."""

import json
import os
import re

import numpy as np
import pytest
from synthetic_workdir import tiny_arms, write_workdir

from birdie_jax.errors import RecordError
from birdie_jax.reporting.run_record import read_run


@pytest.fixture
def workdir(tmp_path):
    return write_workdir(tmp_path / "run", tiny_arms(), steps=40, log_every=10, decide_every=20)


def replace_line(workdir, number, line):
    path = workdir / "metrics.jsonl"
    lines = path.read_text().splitlines()
    lines[number - 1] = line
    path.write_text("\n".join(lines) + "\n")


def test_predictions_of_older_encoders_are_read(workdir):
    token = {
        "token": "a",
        "shown": "[MASK]",
        "found": "b",
        "is_right": False,
        "probability": 0.5,
        "loss": 1.0,
    }
    sample = {"arm": "masked_lm", "texts": ["x", "y"], "hidden": [token]}
    path = workdir / "masked_samples.json"
    path.write_text(json.dumps({"step": 3, "samples": [sample]}))
    record = read_run(workdir).predicted
    assert record.step == 3 and record.samples[0].in_place
    path.write_text(json.dumps({"step": 3, "samples": [4]}))
    with pytest.raises(RecordError, match=r"masked_samples\.json.*samples\[0\]"):
        read_run(workdir)


def test_columns_and_missing_values(workdir):
    run = read_run(workdir)
    assert run.metrics.steps.tolist() == [0, 10, 20, 30, 40]
    assert np.isnan(run.metrics.scalar("loss")[0])
    assert np.isfinite(run.metrics.scalar("loss")[1:]).all()
    assert np.isnan(run.metrics.scalar("never_logged")).all()
    measured = np.isfinite(run.metrics.arm_values["validation_loss"])
    assert measured.all(axis=1).tolist() == [True, False, True, False, True]
    assert run.groups["autoencoding"] == [1, 2]
    assert run.setting("train.num_steps", int) == 40
    assert run.summary == {}
    assert run.metrics.notices == ()


def test_arm_names_may_contain_slashes(workdir):
    for name in ("arms.json", "metrics.jsonl"):
        path = workdir / name
        path.write_text(path.read_text().replace("prefix_lm", "mine/prefix"))
    run = read_run(workdir)
    assert np.isfinite(run.metrics.arm_values["validation_loss"][0]).all()


def test_a_damaged_last_line_is_dropped_with_a_notice(workdir):
    with open(workdir / "metrics.jsonl", "ab") as file:
        file.write(b'{"step": 50, "loss": 3.\x00\xff')
    run = read_run(workdir)
    assert run.metrics.steps[-1] == 40
    assert run.metrics.notices == (
        "The last line of metrics.jsonl (line 6) is damaged, as an interrupted write leaves it, "
        "and was left out.",
    )


def test_a_resumed_run_replaces_repeated_lines(workdir):
    with open(workdir / "metrics.jsonl", "a") as file:
        file.write('{"step": 30, "loss": 1.5}\n{"step": 40, "loss": 1.25}\n')
    run = read_run(workdir)
    assert run.metrics.steps.tolist() == [0, 10, 20, 30, 40]
    assert run.metrics.scalar("loss")[-2:].tolist() == [1.5, 1.25]
    assert run.metrics.notices == (
        "1 lines of metrics.jsonl belong to an attempt that was resumed from before them.",
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"step": 10, "lo', 'found b\'{"step": 10, "lo\' (Unterminated string'),
        ("[1]", "found [1]; allowed: a JSON object"),
        ('{"loss": 1.0}', "step: found None; allowed: an integer of at least 0"),
        ('{"step": -1}', "step: found -1; allowed: an integer of at least 0"),
        ('{"step": 10, "loss": "low"}', "loss: found 'low'; allowed: a number"),
        (
            '{"step": 10, "arm/nobody/loss": 1}',
            "arm/nobody/loss: found arm 'nobody'; allowed: arm/<name>/<quantity> of an arm in arms.json",
        ),
    ],
)
def test_damaged_line_is_named(workdir, line, message):
    replace_line(workdir, 2, line)
    with pytest.raises(RecordError, match=re.escape(f"{workdir / 'metrics.jsonl'}:2: {message}")):
        read_run(workdir)


@pytest.mark.parametrize("content", ["", '{"step": 0, "lo'])
def test_metrics_without_a_readable_line_are_refused(workdir, content):
    (workdir / "metrics.jsonl").write_text(content)
    with pytest.raises(
        RecordError, match=r"metrics\.jsonl: found [01] lines, none readable; allowed: at least one"
    ):
        read_run(workdir)


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl"])
def test_missing_file_is_named(workdir, name):
    (workdir / name).unlink()
    with pytest.raises(
        RecordError, match=re.escape(f"{workdir / name}: missing; allowed: the file that train writes")
    ):
        read_run(workdir)
    with pytest.raises(RecordError, match="nowhere: found no such directory; allowed: the --workdir of"):
        read_run(workdir / "nowhere")


def test_a_run_without_arms_keeps_all_scalars(workdir):
    (workdir / "arms.json").unlink()
    run = read_run(workdir)
    assert run.arms == ()
    assert np.isfinite(run.metrics.scalar("arm/prefix_lm/validation_loss")[0])
    assert run.metrics.notices == (
        "The workdir has no arms.json: the scalars of arms are shown as they were logged.",
    )
    (workdir / "config.json").unlink()
    assert read_run(workdir).config == {}
    (workdir / "metrics.jsonl").unlink()
    with pytest.raises(RecordError, match=r"metrics\.jsonl: missing; allowed: the file that train writes"):
        read_run(workdir)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda arms: arms[1].pop("weight"), "record 2.weight: missing"),
        (
            lambda arms: arms[1].update(weight=-1),
            "record 2.weight: found -1.0; allowed: a finite number of at least 0",
        ),
        (lambda arms: arms[1].update(weight=True), "record 2.weight: found True"),
        (lambda arms: arms[1].update(group=3), "record 2.group: found 3"),
        (
            lambda arms: arms[1].update(name="prefix_lm"),
            "record 7.name: found 'prefix_lm' a second time; allowed",
        ),
        (lambda arms: arms[0].update(examples=[{"context": "a"}]), "record 1.examples[0].target: missing"),
        (lambda arms: arms.__setitem__(2, "arm"), "record 3: found 'arm'; allowed: "),
        (lambda arms: arms.clear(), "found list; allowed: a list of at least one arm"),
        (
            lambda arms: [arm.update(weight=0) for arm in arms],
            "weight: found 0 for every arm; allowed: at least one",
        ),
    ],
)
def test_damaged_arm_is_named(workdir, change, message):
    path = workdir / "arms.json"
    arms = json.loads(path.read_text())
    change(arms)
    path.write_text(json.dumps(arms))
    with pytest.raises(RecordError, match=re.escape(f"{path}: {message}")):
        read_run(workdir)


def test_a_missing_setting_is_named(workdir):
    (workdir / "config.json").write_text('{"train": {}}')
    with pytest.raises(RecordError, match=r"config\.json: train\.num_steps: missing"):
        read_run(workdir).setting("train.num_steps", int)


@pytest.mark.parametrize("name", ["config.json", "arms.json", "metrics.jsonl", "summary.json"])
@pytest.mark.parametrize("kind", ["folder", "pipe", "list", "nesting", "bytes"])
def test_other_files_are_refused(workdir, name, kind):
    path = workdir / name
    path.unlink(missing_ok=True)
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.write_bytes({"list": b"[1]\n[2]", "nesting": b"[" * 100_000, "bytes": b"\xff\xfe"}[kind])
    with pytest.raises(RecordError, match=name) as caught:
        read_run(workdir)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [("step", value, "an integer") for value in (None, "1", [], {}, 2**63, 10**400)]
    + [("loss", value, "a number") for value in (True, "1", [], {}, 10**400, ["x" * 10_000])],
)
def test_a_value_of_another_type_is_refused_briefly(workdir, name, value, allowed):
    replace_line(workdir, 2, json.dumps({"step": 10, "loss": 1.0, name: value}))
    message = rf"metrics\.jsonl:2: {name}: found .{{1,120}}; allowed: {allowed}"
    with pytest.raises(RecordError, match=message):
        read_run(workdir)
