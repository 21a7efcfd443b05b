"""Token shards in a bucket equal those on a disk, read in place or from copies."""

import fcntl
import json
import multiprocessing
import os
import re
import time
from pathlib import Path

import numpy as np
import pytest

from birdie_jax.errors import DataError
from birdie_jax.storage import read_bytes, remove, write_whole
from birdie_jax.text import (
    Tokenizer,
    TokenShards,
    load_manifest,
    load_tokenizer,
    remote_records,
    shard_mirror,
)
from birdie_jax.text.locations import locate
from tests.gcs_server import BUCKET
from tests.text.prepared_folders import contents, message_after_outage, read_manifest, rows


@pytest.fixture
def url(prepared, upload, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return upload(prepared)


def tokens(shards, indices):
    return [shards[index].tokens.tolist() for index in indices]


def copies(tmp_path):
    return sorted(path.name for path in (tmp_path / "cache").rglob("*.arrayrecord"))


def wait_until(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_manifest_and_tokenizer_load_from_a_url(prepared, url):
    assert load_manifest(locate(url)) == load_manifest(prepared)
    assert load_tokenizer(url).sha256 == Tokenizer(f"{url}/tokenizer.model").sha256


@pytest.mark.parametrize("split", ["train", "validation"])
def test_records_are_read_in_place_without_copies(prepared, url, split, tmp_path):
    local, remote = TokenShards(prepared, split), TokenShards(url, split, mirror_gib=0)
    assert remote.not_mirrored
    order = np.random.default_rng(0).permutation(len(local))[:60]
    assert tokens(remote, order) == tokens(local, order)
    assert not copies(tmp_path)


def test_each_used_shard_is_copied_and_then_read_from_the_copy(prepared, url, gcs_server, tmp_path):
    local, remote = TokenShards(prepared, "train"), TokenShards(url, "train")
    assert remote.not_mirrored == ""
    assert tokens(remote, [0]) == tokens(local, [0])
    wait_until(lambda: copies(tmp_path) == ["train-00000.arrayrecord"])
    assert tokens(remote, range(len(local))) == tokens(local, range(len(local)))
    names = [shard.name for shard in local.manifest.train]
    wait_until(lambda: copies(tmp_path) == names)
    before = gcs_server.log.stat().st_size
    assert tokens(remote, range(len(local))) == tokens(local, range(len(local)))
    assert remote.request(3) is None
    assert gcs_server.log.stat().st_size == before
    for name in names:
        copy = next((tmp_path / "cache").rglob(name))
        assert copy.read_bytes() == (prepared / name).read_bytes()


def test_shards_are_copied_first_if_the_store_cannot_be_read_in_place(prepared, url, tmp_path, monkeypatch):
    monkeypatch.setattr(remote_records, "_is_read_in_place", lambda directory: False)
    local, remote = TokenShards(prepared, "train"), TokenShards(url, "train")
    order = [len(local) - 1, 0]
    assert tokens(remote, order) == tokens(local, order)
    assert copies(tmp_path) == [local.manifest.train[0].name, local.manifest.train[-1].name]
    with pytest.raises(DataError, match=re.escape(url) + r": records of such.* raise data\.mirror_gib"):
        TokenShards(url, "train", mirror_gib=0)


def _read_in_process(shards, indices, connection):
    connection.send(tokens(shards, indices))
    connection.close()


def test_processes_share_the_copies(prepared, url, tmp_path):
    local, remote = TokenShards(prepared, "train"), TokenShards(url, "train")
    indices = list(range(0, len(local), 3))
    context = multiprocessing.get_context("spawn")
    readers = []
    for _ in range(2):
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_read_in_process, args=(remote, indices, sender))
        process.start()
        readers.append((process, receiver))
    for process, receiver in readers:
        assert receiver.poll(60)
        assert receiver.recv() == tokens(local, indices)
        process.join(30)
        assert process.exitcode == 0


def test_an_interrupted_copy_is_made_again(prepared, url, tmp_path):
    local, remote = TokenShards(prepared, "train"), TokenShards(url, "train")
    mirror = tmp_path / "cache" / "birdie_jax" / "shards" / local.manifest.sha256[:32]
    (mirror / "train-00000.arrayrecord.partial").write_bytes(b"x" * 10_000_000)
    tokens(remote, [0])
    wait_until(lambda: copies(tmp_path))
    copied = (mirror / "train-00000.arrayrecord").read_bytes()
    assert copied == (prepared / "train-00000.arrayrecord").read_bytes()


def test_a_failed_copy_is_reported_once_and_reading_continues(prepared, url, tmp_path, monkeypatch, caplog):
    def full(temporary, final):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shard_mirror, "publish", full)
    local, remote = TokenShards(prepared, "train"), TokenShards(url, "train")
    assert tokens(remote, range(len(local))) == tokens(local, range(len(local)))
    wait_until(lambda: "absl" in {record.name for record in caplog.records})
    time.sleep(0.2)
    (record,) = (record for record in caplog.records if record.name == "absl")
    assert re.match(
        re.escape(url) + r"/train-\d{5}\.arrayrecord: cannot be copied to .*: No space left on device; its "
        "records are read from the bucket",
        record.getMessage(),
    )
    assert not copies(tmp_path)


def test_unused_copies_are_removed_to_make_room(prepared, url, tmp_path):
    root = tmp_path / "cache" / "birdie_jax" / "shards"
    for name in ("unused", "used"):
        (root / name).mkdir(parents=True)
        with (root / name / "train-00000.arrayrecord").open("wb") as file:
            file.truncate(1 << 30)
    with (root / "used" / "in_use").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        TokenShards(url, "train", mirror_gib=1)
    assert not (root / "unused").exists()
    assert (root / "used").exists()


def test_files_that_other_processes_remove_are_no_obstacle_to_copies(prepared, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "cache" / "birdie_jax" / "shards" / "other").mkdir(parents=True)
    listed = Path.iterdir

    def list_with_removed(folder):
        yield from listed(folder)
        yield folder / "train-00000.arrayrecord.partial"

    monkeypatch.setattr(Path, "iterdir", list_with_removed)
    assert shard_mirror.find_obstacle(load_manifest(prepared), 1 << 30) == ""


@pytest.mark.parametrize("mirror_gib", [0, 1])
def test_rows_and_resumed_rows_equal_those_on_a_disk(prepared, url, mirror_gib):
    local, remote = TokenShards(prepared, "train"), TokenShards(url, "train", mirror_gib=mirror_gib)
    first, state = rows(local)
    found, remote_state = rows(remote)
    assert found == first
    np.testing.assert_array_equal(remote_state, state)
    assert rows(remote, state, 30, (0.1, 0.9))[0] == rows(local, state, 30, (0.1, 0.9))[0]


def test_next_records_are_requested_before_they_are_read(url, monkeypatch):
    remote = TokenShards(url, "train", mirror_gib=0)
    read_unasked = []
    monkeypatch.setattr(TokenShards, "__getitem__", lambda self, index: read_unasked.append(index))
    requested = []
    request = TokenShards.request
    monkeypatch.setattr(
        TokenShards, "request", lambda self, index: requested.append(index) or request(self, index)
    )
    rows(remote)
    assert not read_unasked
    assert len(set(requested)) == len(requested)


def refused(message, folder, **keywords):
    with pytest.raises(DataError, match=message):
        TokenShards(folder, "train", **keywords)


def test_shards_are_checked_with_one_listing(url, gcs_server):
    before = len(gcs_server.log.read_text().splitlines())
    TokenShards(url, "train")
    assert len(gcs_server.log.read_text().splitlines()) - before <= 3
    shard = f"{url}/train-00001.arrayrecord"
    size = len(read_bytes(shard))
    write_whole(shard, bytes(size - 1))
    refused(re.escape(shard) + f": is truncated: {size - 1} bytes; the manifest says", url)
    remove(shard)
    refused(re.escape(shard) + ": the shard cannot be read: No such file or directory; prepare", url)


def test_missing_data_is_named(gcs_server):
    none = "cannot be read: there is no bucket no-such-bucket$"
    for place, manifest, model in (
        (f"gs://{BUCKET}/nothing/here", "not found; make it with", "cannot be read: No such"),
        ("gs://no-such-bucket/x", none, none),
    ):
        refused(re.escape(f"{place}/manifest.json: ") + manifest, place)
        with pytest.raises(DataError, match=re.escape(f"{place}: the tokenizer model ") + model):
            Tokenizer(place)
    refused("found a URL that cannot be used; allowed: gs://BUCKET", "ftp://host/x")


def test_a_copy_that_differs_from_the_manifest_is_refused(url, prepared, monkeypatch):
    """Records of the same size and number, as if another preparation wrote to the same folder."""
    monkeypatch.setattr(remote_records, "_is_read_in_place", lambda directory: False)
    path = f"{url}/manifest.json"
    manifest = read_manifest(prepared)
    manifest["train"][0]["sha256"] = "0" * 64
    write_whole(path, json.dumps(manifest).encode())
    with pytest.raises(DataError, match=r"train-00000\.arrayrecord: its records differ from the manifest"):
        TokenShards(url, "train")[0]
    shard = f"{url}/train-00000.arrayrecord"
    write_whole(shard, os.urandom(len(read_bytes(shard))))
    with pytest.raises(DataError, match=r"train-00000\.arrayrecord: is corrupt: "):
        TokenShards(url, "train")[0]


_READ = """
from birdie_jax.text import TokenShards
text = TokenShards("gs://bucket/x", "train", mirror_gib=0)
text[0]
wait()
text[len(text) - 1]
"""


@pytest.mark.slow
def test_an_outage_raises_an_error_that_names_the_shard(prepared, tmp_path):
    files = {f"x/{name}": data for name, data in contents(prepared).items()}
    last = load_manifest(prepared).train[-1].name
    message = message_after_outage(tmp_path, _READ, files=files)
    assert re.match(re.escape(f"gs://bucket/x/{last}") + ": record .* did not arrive within 3 s", message)
