"""A resumed run removes the metrics after its checkpoint."""

import json
import struct
from types import SimpleNamespace

import pytest
from tensorboardX.proto.event_pb2 import Event

from birdie_jax.engine import Workdir
from birdie_jax.engine.metrics_file import STEP_LINE_KEY, MetricsFile

CLOCK = {STEP_LINE_KEY: 0.1}


def log_steps(tmp_path, *steps):
    file = MetricsFile(Workdir(tmp_path), 0)
    for step in steps:
        file.write(step, {"loss": float(step), "tokens_seen": 10.0 * step, **CLOCK})
    file.close()


def test_lines_of_repeated_steps_are_removed(tmp_path, caplog):
    (tmp_path / "metrics.jsonl").write_text('{"step": 3}\n')
    log_steps(tmp_path, 0, 2, 4, 6)
    with (tmp_path / "metrics.jsonl").open("a") as damaged:
        damaged.write('{"step": 8, "lo')
    file = MetricsFile(Workdir(tmp_path), 4)
    assert file.kept["tokens_seen"] == 40
    file.write(6, {"loss": 7.0, "recall": float("nan")})
    assert f"{file.path}: step 6: recall is nan, and is left out" in caplog.text
    file.write(8, {"loss": 7.0, "recall": float("inf")})
    assert caplog.text.count("recall") == 1
    file.close()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 2, 4, 6, 8]
    assert lines[-1] == {"step": 8, "loss": 7.0}
    assert list((tmp_path / "tensorboard").iterdir())


@pytest.mark.parametrize(
    "garbage",
    [
        *("", "null", "[]", "3", '"step"', "{", '{"loss": 1.0}', '{"step": "two"}'),
        *('{"step": 3, "loss": {}}', "\0" * 50, "[" * 100_000, '{"step": ' + "9" * 5000 + "}"),
    ],
    ids=lambda garbage: garbage[:20],
)
def test_a_damaged_line_loses_only_that_line(tmp_path, garbage, caplog):
    log_steps(tmp_path, 2, 4, 6, 8)
    path = tmp_path / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([lines[0], garbage + "\n", *lines[1:]]))
    file = MetricsFile(Workdir(tmp_path), 6)
    file.close()
    assert path.read_text() == "".join(lines[:3])
    assert file.kept["tokens_seen"] == 60
    assert f"{path}: 1 lines are not metrics, and are ignored: line 2" in caplog.text


def test_a_full_disk_is_an_error_that_names_the_file(tmp_path, monkeypatch):
    file = MetricsFile(Workdir(tmp_path), 0)

    def full(*_):
        raise OSError(28, "No space left on device")

    own = file._lines._file
    monkeypatch.setattr(file._lines, "_file", SimpleNamespace(write=full, close=own.close))
    with pytest.raises(OSError, match=f"No space left on device: '{tmp_path}/metrics.jsonl'"):
        file.write(1, {"loss": 1.0})
    file.close()


def test_a_full_disk_is_an_error_that_names_the_folder_of_the_events(tmp_path, monkeypatch):
    def full(self):
        raise OSError(28, "No space left on device")

    file = MetricsFile(Workdir(tmp_path), 0)
    with monkeypatch.context() as patch:
        patch.setattr("tensorboardX.event_file_writer.EventsWriter.flush", full)
        with pytest.raises(OSError, match=f"No space left on device: '{tmp_path}/tensorboard'"):
            file.flush()
    file.close()


def test_events_are_what_tensorboard_reads(tmp_path):
    for first_step, steps in ((0, (1, 2, 3)), (2, (3, 4))):
        file = MetricsFile(Workdir(tmp_path), first_step)
        for step in steps:
            file.write(step, {"loss": first_step + step / 10})
        file.close()
    read = []
    for path in sorted((tmp_path / "tensorboard").iterdir(), key=lambda path: path.stat().st_mtime_ns):
        contents = path.read_bytes()
        while contents:
            (length,) = struct.unpack("<Q", contents[:8])
            event = Event.FromString(contents[12 : 12 + length])
            contents = contents[16 + length :]
            if event.HasField("session_log"):
                read = [value for value in read if value[0] < event.step]
            read += [(event.step, value.tag, value.simple_value) for value in event.summary.value]
    assert [step for step, _, _ in read] == [1, 2, 3, 4]
    assert [value for _, _, value in read] == pytest.approx([0.1, 0.2, 2.3, 2.4])


@pytest.mark.parametrize("again", [True, False])
@pytest.mark.parametrize("name", ["arm/a/validation_loss", "task/phonebook/exact_match"])
def test_repeated_measurements_of_a_hook_are_removed(tmp_path, again, name):
    file = MetricsFile(Workdir(tmp_path), 0)
    file.write(4, {"loss": 1.0, **CLOCK})
    file.write(4, {name: 2.0})
    file.close()
    MetricsFile(Workdir(tmp_path), 4, hooks_run_again=again).close()
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == (1 if again else 2)
