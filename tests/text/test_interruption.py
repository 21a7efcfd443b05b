"""A preparation that is killed at any time, or fills the disk, loses no finished shards."""

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from birdie_jax.errors import DataError
from birdie_jax.storage import publish
from birdie_jax.text import TokenShards, load_manifest, prepare
from birdie_jax.text.shard_writer import ShardWriter
from tests.text.prepared_folders import command, contents, is_running


class _Killed(BaseException):
    """Simulates a kill of the process; cleanup after an error is disabled."""


@pytest.mark.sampled
@pytest.mark.parametrize("renamed", [False, True])
def test_a_preparation_killed_at_each_file_ends_with_the_same_bytes(
    corpus, settings, tmp_path, monkeypatch, renamed
):
    """Die at every file in turn, just before or just after it gets its final name."""
    expected = contents(prepare(str(corpus), tmp_path / "whole", **settings))
    output = tmp_path / "killed"
    deaths = 0

    def dying(temporary, final):
        nonlocal remaining
        if remaining == 0:
            if renamed:
                publish(temporary, final)
            raise _Killed
        remaining -= 1
        publish(temporary, final)

    with monkeypatch.context() as patch:
        patch.setattr("birdie_jax.storage.files.publish", dying)
        patch.setattr("birdie_jax.text.shard_writer.publish", dying)
        patch.setattr("birdie_jax.text.shard_pipeline._ShardOutput.discard", lambda self: None)
        while True:
            # Vary the number of files that each start publishes before it dies.
            remaining = deaths % 5
            try:
                prepare(str(corpus), output, **settings)
            except _Killed:
                deaths += 1
                assert deaths < 200
            else:
                break
    assert deaths > 10
    assert contents(output) == expected


def _recorded_shards(output):
    path = output / "manifest.json"
    return len(json.loads(path.read_text())["train"]) if path.exists() else 0


@pytest.mark.slow
def test_the_same_command_resumes_after_sigkill(settings, tmp_path, make_texts, make_json_lines):
    corpus = make_json_lines(tmp_path / "corpus.jsonl", make_texts(4000))
    settings = settings | {"shard_tokens": 10_000}
    expected = contents(prepare(str(corpus), tmp_path / "whole", **settings))
    output = tmp_path / "killed"
    arguments = command(corpus, output, settings | {"workers": 1})
    generator = random.Random(time.time_ns())
    for _ in range(3):
        before = _recorded_shards(output)
        process = subprocess.Popen(arguments, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
        deadline = time.monotonic() + 60
        while _recorded_shards(output) < before + 2:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.001)
        time.sleep(generator.uniform(0, 0.02))
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        assert children
        while any(is_running(child) for child in children):
            assert time.monotonic() < deadline, "workers outlived the killed process"
            time.sleep(0.01)
        with pytest.raises(DataError, match="was stopped before its end"):
            TokenShards(output, "train")
    subprocess.run(arguments, check=True, capture_output=True, timeout=120)
    assert contents(output) == expected


@pytest.mark.slow
@pytest.mark.usefixtures("enabled_interrupts")
def test_an_interrupt_prints_one_line(settings, tmp_path, make_texts, make_json_lines):
    corpus = make_json_lines(tmp_path / "corpus.jsonl", make_texts(4000))
    output = tmp_path / "out"
    # Use many shards, so seconds remain after the first one, even on a busy machine.
    arguments = command(corpus, output, settings | {"shard_tokens": 1000})
    process = subprocess.Popen(arguments, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    while _recorded_shards(output) < 1:
        assert process.poll() is None, process.communicate()
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert (
        errors
        == "birdie_jax.prepare_data: stopped; the same command resumes from the last finished shard\n"
    )
    assert not list(output.glob("*.partial"))


@pytest.mark.slow
def test_a_full_disk_names_the_file_and_keeps_finished_shards(
    settings, tmp_path, make_texts, make_json_lines
):
    # Shards are small, but the last document exceeds the limit on the size of a file.
    documents = [*make_texts(300), "river " * 400_000]
    corpus = make_json_lines(tmp_path / "corpus.jsonl", documents)
    output = tmp_path / "out"
    arguments = command(corpus, output, settings)
    limited = ["bash", "-c", 'ulimit -f 300; exec "$@"', "bash", *arguments]
    result = subprocess.run(limited, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 1
    assert result.stderr.startswith(f"birdie_jax.prepare_data: {output}/")
    assert "File too large" in result.stderr
    assert "bytes free); finished shards are kept: make room" in result.stderr
    assert result.stderr.count("\n") == 1
    manifest = load_manifest(output)
    assert len(manifest.train) > 2
    kept = {shard.name: (output / shard.name).stat().st_mtime_ns for shard in manifest.train}
    assert not list(output.glob("*.partial"))
    subprocess.run(arguments, check=True, capture_output=True, timeout=120)
    assert {name: (output / name).stat().st_mtime_ns for name in kept} == kept
    assert contents(output) == contents(prepare(str(corpus), tmp_path / "whole", **settings))


@pytest.mark.parametrize("records", [1, 2000])
def test_a_full_device_is_reported(tmp_path, records):
    (tmp_path / "train-00000.arrayrecord.partial").symlink_to("/dev/full")
    writer = ShardWriter(tmp_path / "train-00000.arrayrecord")
    with pytest.raises(DataError, match=r"arrayrecord\.partial: cannot be written: .*No space left"):
        for _ in range(records):
            writer.add(bytes(1000), 496, True)
        writer.close()
    writer.discard()
    assert not list(tmp_path.iterdir())


def test_a_full_disk_keeps_the_previous_manifest(corpus, settings, tmp_path, monkeypatch):
    output = tmp_path / "out"
    write_bytes = Path.write_bytes
    writes = 0

    def full(self, data):
        nonlocal writes
        writes += self.name == "manifest.json.partial"
        if writes == 5:
            raise OSError(28, "No space left on device")
        return write_bytes(self, data)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        message = r"manifest\.json: \d+ bytes cannot be written: No space left on device; the previous file"
        with pytest.raises(DataError, match=message):
            prepare(str(corpus), output, **settings)
    assert len(load_manifest(output).train) == 2
    prepare(str(corpus), output, **settings)
    assert contents(output) == contents(prepare(str(corpus), tmp_path / "whole", **settings))


def test_a_truncated_finished_shard_is_reported(corpus, settings, tmp_path):
    output = prepare(str(corpus), tmp_path / "out", **settings)
    os.truncate(output / "train-00001.arrayrecord", 1000)
    with pytest.raises(DataError, match=r"train-00001\.arrayrecord: is truncated: 1000 bytes; the"):
        prepare(str(corpus), output, **settings)
