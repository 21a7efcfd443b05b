"""Writes are atomic, and a failed write keeps the old file."""

import errno
import json
import os

import pytest

from birdie_jax.storage import PARTIAL_SUFFIX, is_full, read_bytes, upload, write_json, write_whole


def test_a_write_replaces_the_whole_file(tmp_path):
    path = tmp_path / "file"
    write_whole(path, b"old and long")
    write_whole(path, b"new")
    assert path.read_bytes() == b"new"
    assert [found.name for found in tmp_path.iterdir()] == ["file"]
    write_json(path, {"a": [1, 2.5]})
    assert json.loads(path.read_text()) == {"a": [1, 2.5]}


def test_a_failed_write_keeps_the_old_contents(tmp_path):
    path = tmp_path / "file"
    write_whole(path, b"old")
    (tmp_path / ("file" + PARTIAL_SUFFIX)).mkdir()
    with pytest.raises(OSError, match="partial"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"


def test_a_failed_write_leaves_no_part(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "source").write_bytes(b"new")
    for write in (lambda path: write_whole(path, b"new"), lambda path: upload(tmp_path / "source", path)):
        with pytest.raises(IsADirectoryError):
            write(tmp_path / "folder")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "source"]


@pytest.mark.parametrize(
    ("number", "full"),
    [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EFBIG, True), (errno.EIO, False)],
)
def test_is_full_reads_the_message_of_a_library(number, full):
    assert is_full(RuntimeError(f"INTERNAL: {os.strerror(number)} while writing")) == full


def test_endless_files_are_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    pipes = dict.fromkeys((tmp_path / "pipe", tmp_path / "link"), "named pipe")
    for path, kind in (pipes | {"/dev/zero": "device"}).items():
        with pytest.raises(OSError, match=f"found a {kind}; allowed: a file"):
            read_bytes(path)
    assert read_bytes("/dev/null") == b""
    reading, writing = os.pipe()
    os.write(writing, b"of a shell")
    os.close(writing)
    assert read_bytes(f"/dev/fd/{reading}") == b"of a shell"
    os.close(reading)
