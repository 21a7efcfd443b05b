import json
import multiprocessing
import os
import pickle
import re
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from etils import epath

from birdie_jax.errors import DataError
from birdie_jax.text import TokenShards, load_manifest, load_tokenizer, shard_readers
from tests.text.prepared_folders import read_manifest


@pytest.fixture
def copy(prepared, tmp_path):
    return shutil.copytree(prepared, tmp_path / "copy")


def read_all(shards):
    return [(record.tokens.tolist(), record.ends_document) for record in shards]


def test_sums_agree_with_the_records(prepared):
    for split, folder in (("train", prepared), ("validation", epath.Path(prepared))):
        shards = TokenShards(folder, split)
        records = read_all(shards)
        assert len(records) == len(shards)
        assert sum(len(tokens) for tokens, _ in records) == shards.num_tokens
        assert sum(ends for _, ends in records) == shards.num_documents
        assert max(len(tokens) for tokens, _ in records) == shards.max_record_tokens <= 32
        assert len(shards.manifest.shards(split)) > 1


def test_random_access_agrees_with_iteration(prepared):
    shards = TokenShards(prepared, "train")
    records = read_all(shards)
    for index in np.random.default_rng(0).permutation(len(shards)):
        record = shards[index]
        assert (record.tokens.tolist(), record.ends_document) == records[index]
        assert record.tokens.dtype == np.int32
    assert shards[-1].tokens.tolist() == records[-1][0]
    for index in (len(shards), -len(shards) - 1):
        with pytest.raises(IndexError, match=f"record {index} of {len(shards)}"):
            shards[index]
    shards[0].tokens[0] = 1  # changes only a copy
    assert shards[0].tokens.tolist() == records[0][0]


def test_a_pickled_copy_is_read_by_threads(prepared, monkeypatch):
    monkeypatch.setattr(shard_readers, "MAX_OPEN_FILES", 1)  # drops readers while they are in use
    shards = TokenShards(prepared, "train")
    records = read_all(shards)
    copied = pickle.loads(pickle.dumps(shards))
    order = np.random.default_rng(0).integers(0, len(shards), 3000).tolist()
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(copied.__getitem__, order))
    assert [record.tokens.tolist() for record in found] == [records[index][0] for index in order]


def _send_record(shards, connection):
    connection.send(shards[7].tokens.tolist())
    connection.close()


# Other tests load JAX into this process, which warns about any fork; the child does not use JAX.
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_other_processes_open_their_own_readers(prepared, method):
    shards = TokenShards(prepared, "train")
    expected = shards[7].tokens.tolist()  # opens the reader before the other process starts
    context = multiprocessing.get_context(method)
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send_record, args=(shards, sender))
    process.start()
    assert receiver.poll(30)
    assert receiver.recv() == expected
    process.join(30)
    assert process.exitcode == 0


def test_few_files_are_open_at_once(prepared, monkeypatch):
    monkeypatch.setattr(shard_readers, "MAX_OPEN_FILES", 2)
    shards = TokenShards(prepared, "train")
    assert len(shards.manifest.train) > 3
    before = len(os.listdir("/proc/self/fd"))
    read_all(shards)
    assert len(os.listdir("/proc/self/fd")) <= before + 2


def test_the_tokenizer_of_the_shards_is_loaded(prepared, tokenizer):
    assert load_tokenizer(prepared).sha256 == tokenizer.sha256
    assert len(TokenShards(prepared, "train", tokenizer_sha256=tokenizer.sha256)) > 0


def refused(folder, message, split="train", **keywords):
    with pytest.raises(DataError, match=message):
        TokenShards(folder, split, **keywords)


def test_another_tokenizer_is_refused_with_both_hashes(copy, tokenizer):
    other = "0" * 64
    message = f"manifest.json: .* SHA-256 {tokenizer.sha256} .*tokenizer.model.*in use has {other}"
    refused(copy, message, tokenizer_sha256=other)
    (copy / "tokenizer.model").write_bytes(tokenizer.model_bytes + b"\x00")
    with pytest.raises(DataError, match=r"tokenizer\.model: (has SHA-256|is not a SentencePiece model)"):
        load_tokenizer(copy)


def test_a_shard_that_differs_from_the_manifest_is_refused(copy):
    def first_record_refused(message):
        with pytest.raises(DataError, match=message):
            TokenShards(copy, "train")[0]

    path = copy / "train-00000.arrayrecord"
    size = path.stat().st_size
    path.write_bytes(os.urandom(size))
    first_record_refused(re.escape(f"{path}: has 0 readable records"))
    os.truncate(path, size - 1000)
    refused(copy, re.escape(f"{path}: is truncated: {size - 1000} bytes; the manifest says {size}"))
    path.write_bytes(b"\0" * (size + 1))
    refused(copy, re.escape(f"{path}: is changed: {size + 1} bytes"))
    path.unlink()
    refused(copy, re.escape(f"{path}: the shard cannot be read: No such file"))


def test_a_shard_with_another_number_of_records_is_refused(copy):
    shard, *others = read_manifest(copy)["train"]
    edited(copy, train=[shard | {"records": shard["records"] + 1}, *others])
    with pytest.raises(DataError, match=r"train-00000\.arrayrecord: has \d+ readable records; the"):
        TokenShards(copy, "train")[0]


def test_a_corrupt_record_is_named_and_its_neighbours_are_read(copy):
    shards = TokenShards(copy, "train")
    records = read_all(shards)
    path = copy / "train-00001.arrayrecord"
    first = shards.manifest.train[0].records
    contents = bytearray(path.read_bytes())
    payload = np.array(records[first + 5][0], np.uint16).tobytes()
    contents[contents.index(payload) + 3] ^= 0x40
    path.write_bytes(contents)
    damaged = TokenShards(copy, "train")
    with pytest.raises(DataError, match=re.escape(f"{path}: record 5 is corrupt: ") + ".*hash mismatch"):
        damaged[first + 5]
    assert damaged[first + 4].tokens.tolist() == records[first + 4][0]
    assert damaged[first + 6].tokens.tolist() == records[first + 6][0]


def test_a_missing_folder_or_split_is_named(tmp_path, prepared):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path, tmp_path / "file"):
        refused(folder, r"manifest\.json: not found; make it with python -m birdie_jax\.prepare_data")
    with pytest.raises(ValueError, match="split 'test' is none of train, validation"):
        TokenShards(prepared, "test")


def edited(folder, **changes):
    (folder / "manifest.json").write_text(json.dumps(read_manifest(folder) | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"complete": False}, r"manifest\.json: the preparation was stopped before its end; run the same"),
        ({"format_version": 99}, r"manifest\.json: format_version is 99; this program reads 1"),
        ({"complete": "yes"}, r"manifest\.complete: found 'yes' \(str\); allowed: bool"),
        ({"train": {}}, r"manifest\.train: found \{\} \(dict\); allowed: a list of sections with fields"),
        ({"train": [{"name": "x"}]}, r"manifest\.train\[0\]\.records: missing"),
        ({"more": 1}, r"manifest\.more: unknown field; allowed: format_version, complete"),
    ],
)
def test_an_unusable_manifest_names_the_field(copy, changes, message):
    edited(copy, **changes)
    refused(copy, message)


@pytest.mark.parametrize("text", ["", "{", "[]", "\udcff"])
def test_an_unreadable_manifest_is_named(copy, text):
    (copy / "manifest.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    refused(copy, r"manifest\.json: (is not readable JSON|format_version is None)")


def test_a_manifest_round_trips(prepared, tmp_path):
    manifest = load_manifest(prepared)
    manifest.save(tmp_path)
    assert load_manifest(tmp_path) == manifest
