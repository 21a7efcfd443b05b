"""The manifest: its identity is equal only if the batches are equal; damage is detected."""

import hashlib
import json
import shutil
from dataclasses import replace

import pytest
from array_record.python.array_record_module import ArrayRecordReader

from birdie_jax.errors import DataError
from birdie_jax.text import TokenShards, load_manifest, manifest_start
from birdie_jax.text.manifest_guard import ManifestGuard
from tests.text.prepared_folders import contents as contents_of
from tests.text.prepared_folders import read_manifest


@pytest.fixture
def settings(settings):
    return settings | {"record_tokens": 64}


@pytest.fixture
def corpus(tmp_path, make_texts, make_json_lines):
    return make_json_lines(tmp_path / "corpus.jsonl", make_texts(120))


def test_the_same_text_prepared_twice_has_the_same_identity(run, corpus, tmp_path):
    one = load_manifest(run(corpus, tmp_path / "one")).sha256
    (tmp_path / "elsewhere").mkdir()
    moved = shutil.copy(corpus, tmp_path / "elsewhere" / "other name.jsonl")
    two = load_manifest(run(moved, tmp_path / "two", workers=2))
    assert one == two.sha256
    assert len(one) == 64
    copied = shutil.copytree(tmp_path / "two", tmp_path / "three")
    assert TokenShards(copied, "train").manifest.sha256 == one


@pytest.mark.parametrize(
    "changes",
    [{"record_tokens": 32}, {"validation_fraction": 0.3}, {"tokenizer_model": "", "vocab_size": 330}],
)
def test_settings_that_change_batches_change_the_identity(run, corpus, tmp_path, changes):
    one = load_manifest(run(corpus, tmp_path / "one"))
    other = load_manifest(run(corpus, tmp_path / "other", **changes))
    assert one.sha256 != other.sha256


def test_another_text_of_the_same_sizes_has_another_identity(run, corpus, tmp_path):
    one = load_manifest(run(corpus, tmp_path / "one"))
    text = corpus.read_text()
    corpus.write_text(text.replace("# 7\\n", "# 8\\n", 1))
    assert len(corpus.read_text()) == len(text)
    other = load_manifest(run(corpus, tmp_path / "other"))
    sizes = [
        [replace(shard, sha256="") for split in ("train", "validation") for shard in manifest.shards(split)]
        for manifest in (one, other)
    ]
    assert sizes[0] == sizes[1]
    assert one.sha256 != other.sha256


def test_the_identity_covers_every_part_and_every_record(run, corpus, tmp_path):
    folder = run(corpus, tmp_path / "out")
    manifest = load_manifest(folder)
    first, *others = manifest.train
    variants = [
        replace(manifest, tokenizer=replace(manifest.tokenizer, sha256="0" * 64)),
        replace(manifest, train=(replace(first, sha256="0" * 64), *others)),
        replace(manifest, train=(*others, first)),
        replace(manifest, train=tuple(others)),
        replace(manifest, train=manifest.validation, validation=manifest.train),
    ]
    assert len({manifest.sha256, *(variant.sha256 for variant in variants)}) == 1 + len(variants)
    for shard in (*manifest.train, *manifest.validation):
        records = ArrayRecordReader(str(folder / shard.name)).read_all()
        assert hashlib.sha256(b"".join(records)).hexdigest() == shard.sha256


def _as_version_1(folder):
    path = folder / "manifest.json"
    contents = read_manifest(folder)
    contents["format_version"] = 1
    for split in ("train", "validation"):
        for shard in contents[split]:
            del shard["sha256"]
    path.write_text(json.dumps(contents))
    return contents


def test_a_folder_of_version_1_is_read_and_has_an_identity(run, corpus, tmp_path):
    folder = run(corpus, tmp_path / "out")
    expected = [record.tokens.tolist() for record in TokenShards(folder, "train")]
    contents = _as_version_1(folder)
    shards = TokenShards(folder, "train")
    assert [record.tokens.tolist() for record in shards] == expected
    identities = {shards.manifest.sha256, load_manifest(folder).sha256}
    assert len(identities) == 1
    for change in ({"source_sha256": "0"}, {"train": contents["train"][:1]}):
        (folder / "manifest.json").write_text(json.dumps(contents | change))
        identities.add(load_manifest(folder).sha256)
    assert len(identities) == 3


def test_a_preparation_of_version_2_resumes(run, corpus, tmp_path, stopped):
    expected = contents_of(run(corpus, tmp_path / "whole"))
    path = stopped / "manifest.json"
    found = read_manifest(path.parent)
    assert found["train"]
    assert not found["complete"]
    for name in ("source_commit", "filtered_documents", "duplicate_documents"):
        del found[name]
    for name in ("document_separator", "document_filter", "deduplicate", "units"):
        del found["settings"][name]
    path.write_text(json.dumps(found | {"format_version": 2}))
    assert contents_of(run(corpus, stopped)) == expected


@pytest.fixture
def stopped(run, corpus, tmp_path, monkeypatch):
    """The folder of a preparation that was stopped after some shards."""
    with monkeypatch.context() as patch:
        patch.setattr(ManifestGuard, "save", _stop_after(5, ManifestGuard.save))
        with pytest.raises(KeyboardInterrupt):
            run(corpus, tmp_path / "out")
    return tmp_path / "out"


def test_a_changed_number_in_the_manifest_is_detected(run, corpus, stopped):
    path = stopped / "manifest.json"
    text = path.read_text()
    count = json.loads(text)["source_bytes"]
    path.write_text(text.replace(f'"source_bytes": {count}', f'"source_bytes": {count + 2}'))
    with pytest.raises(DataError, match=r"manifest\.json: is damaged: its checksum is '"):
        run(corpus, stopped)
    path.write_text(text)
    run(corpus, stopped)


def test_a_changed_finished_shard_is_detected(run, corpus, stopped, monkeypatch, capsys):
    path = stopped / json.loads((stopped / "manifest.json").read_text())["train"][0]["name"]
    whole = path.read_bytes()
    (record, *_) = ArrayRecordReader(str(path)).read_all()
    place = whole.index(record)
    path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    with pytest.raises(DataError, match=f"{path.name}: is corrupt"):
        run(corpus, stopped)
    path.write_bytes(whole)
    monkeypatch.setattr(manifest_start, "_LONG_BYTES", 0)
    run(corpus, stopped)
    assert f"{stopped}: checking " in capsys.readouterr().err


def _stop_after(times, save):
    def stop(self, manifest):
        nonlocal times
        times -= 1
        if times < 0:
            raise KeyboardInterrupt
        save(self, manifest)

    return stop


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ("[" * 100_000, "is not readable JSON: is nested too deeply"),
        ("1" * 5000, "is not readable JSON: Exceeds the limit"),
        ('{"complete": true, "complete": false}', "has the field 'complete' twice; allowed: once"),
    ],
)
def test_json_that_python_cannot_parse_is_refused(tmp_path, contents, message):
    """A case from benchmarks/fuzz.py."""
    (tmp_path / "manifest.json").write_text(contents)
    with pytest.raises(DataError, match=message):
        load_manifest(tmp_path)
