"""A file is whole or absent, and what was there stays when a write fails."""

import json

import pytest

from birdie_jax.storage import PARTIAL_SUFFIX, is_remote, write_json, write_whole


def test_a_write_replaces_the_whole_file(tmp_path):
    path = tmp_path / "file"
    write_whole(path, b"old and long")
    write_whole(path, b"new")
    assert path.read_bytes() == b"new"
    assert [found.name for found in tmp_path.iterdir()] == ["file"]


def test_a_failed_write_keeps_the_old_contents(tmp_path):
    path = tmp_path / "file"
    write_whole(path, b"old")
    (tmp_path / ("file" + PARTIAL_SUFFIX)).mkdir()
    with pytest.raises(OSError, match="partial"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"


def test_json_is_readable(tmp_path):
    write_json(tmp_path / "a.json", {"a": [1, 2.5]})
    assert json.loads((tmp_path / "a.json").read_text()) == {"a": [1, 2.5]}


@pytest.mark.parametrize(("path", "expected"), [("gs://bucket/run", True), ("/tmp/run", False)])
def test_remote_paths_are_told_by_their_scheme(path, expected):
    assert is_remote(path) is expected
