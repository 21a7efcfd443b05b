"""Text in an S3 bucket: prepared there in two starts, and read from copies of its shards."""

import re

import numpy as np
import pytest

from birdie_jax.errors import DataError
from birdie_jax.storage import exists, read_bytes, remove, upload
from birdie_jax.text import TokenShards, load_manifest, open_source, prepare, shard_pipeline
from birdie_jax.text.locations import locate
from tests.text.prepared_folders import contents, rows


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_text_prepared_in_two_starts_equals_text_on_a_disk(corpus, settings, s3_url, tmp_path, monkeypatch):
    local = prepare(str(corpus), tmp_path / "local", **settings)
    commit, commits = shard_pipeline._ShardOutput.commit, 0

    def stopped(self, *arguments, **keywords):
        nonlocal commits
        commits += 1
        if commits == 3:
            raise KeyboardInterrupt
        return commit(self, *arguments, **keywords)

    with monkeypatch.context() as patch:
        patch.setattr(shard_pipeline._ShardOutput, "commit", stopped)
        with pytest.raises(KeyboardInterrupt):
            prepare(str(corpus), s3_url, **settings)
    assert not load_manifest(locate(s3_url)).complete
    prepare(str(corpus), s3_url, **settings)
    assert contents(s3_url) == contents(local)
    expected, state = rows(TokenShards(local, "train"))
    found, remote_state = rows(TokenShards(s3_url, "train"))
    assert found == expected
    np.testing.assert_array_equal(remote_state, state)
    assert rows(TokenShards(s3_url, "train"), state)[0] == rows(TokenShards(local, "train"), state)[0]
    with pytest.raises(DataError, match=re.escape(s3_url) + r": records of such.* raise data\.mirror_gib"):
        TokenShards(s3_url, "train", mirror_gib=0)


def test_a_source_in_a_bucket_equals_one_on_a_disk(corpus, settings, s3_url, tmp_path):
    upload(corpus, locate(f"{s3_url}/text/corpus.jsonl"))
    prepare(f"{s3_url}/text/*.jsonl", tmp_path / "there", **settings)
    prepare(str(corpus), tmp_path / "here", **settings)
    there, here = (load_manifest(tmp_path / name) for name in ("there", "here"))
    assert there.sha256 == here.sha256
    with pytest.raises(DataError, match="cannot be listed: there is no bucket no-such-bucket-1"):
        open_source("s3://no-such-bucket-1/*.jsonl")


def test_a_lost_shard_is_named(corpus, settings, s3_url):
    prepare(str(corpus), s3_url, **settings)
    remove(f"{s3_url}/train-00001.arrayrecord")
    assert not exists(f"{s3_url}/train-00001.arrayrecord") and read_bytes(f"{s3_url}/manifest.json")
    with pytest.raises(
        DataError, match=r"/train-00001\.arrayrecord: the shard cannot be read: No such file"
    ):
        TokenShards(s3_url, "train")
