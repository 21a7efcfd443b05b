import fcntl
import hashlib
import json
import os
import re
import threading

import numpy as np
import pytest

from birdie_jax.errors import DataError
from birdie_jax.text import Tokenizer, TokenShards, load_manifest
from birdie_jax.text.tokenization import Tokenization, split_of, tokenize_blocks
from tests.text.prepared_folders import contents


@pytest.fixture
def corpus(tmp_path, make_texts, make_json_lines):
    return make_json_lines(tmp_path / "corpus.jsonl", make_texts(200))


@pytest.fixture
def settings(settings):
    return settings | {"record_tokens": 64}


def documents_of(folder, split):
    """Return the token lists of a split's documents, with their records joined."""
    documents, current = [], []
    for record in TokenShards(folder, split):
        current += record.tokens.tolist()
        if record.ends_document:
            documents.append(current)
            current = []
    assert not current
    return documents


def test_shards_hold_the_tokenizers_output_in_order(run, corpus, tmp_path, tokenizer, make_texts):
    folder = run(corpus, tmp_path / "out")
    expected = {"train": [], "validation": []}
    for text in make_texts(200):
        expected[split_of(text, 0.2)].append(tokenizer.encode(text).tolist())
    for split, documents in expected.items():
        assert documents
        assert documents_of(folder, split) == documents
        manifest = load_manifest(folder)
        assert manifest.documents(split) == len(documents)
        assert manifest.tokens(split) == sum(map(len, documents))
    assert all(shard.max_record_tokens <= 64 for shard in manifest.train)
    assert all(shard.tokens >= 2000 for shard in manifest.train[:-1])
    assert (folder / "tokenizer.model").read_bytes() == tokenizer.model_bytes


def test_the_split_depends_only_on_the_text(make_texts):
    fraction = 0.1
    for text in make_texts(100):
        digest = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 11
        assert split_of(text, fraction) == ("validation" if digest < fraction * 2**53 else "train")
    shares = [split_of(str(number), fraction) == "validation" for number in range(10_000)]
    assert abs(np.mean(shares) - fraction) < 4 * (0.1 * 0.9 / 10_000) ** 0.5


def test_order_and_file_names_do_not_change_the_split(run, tmp_path, make_texts, make_json_lines):
    documents = make_texts(120)
    one = run(make_json_lines(tmp_path / "one.jsonl", documents), tmp_path / "a")
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(4):
        make_json_lines(folder / f"{9 - number}.jsonl", documents[::-1][number::4])
    many = run(folder, tmp_path / "b")
    for split in ("train", "validation"):
        assert sorted(documents_of(one, split)) == sorted(documents_of(many, split))


def test_copies_are_in_one_split(run, tmp_path, make_texts, make_json_lines):
    folder = run(make_json_lines(tmp_path / "twice.jsonl", make_texts(60) * 2), tmp_path / "out")
    train, validation = ({tuple(d) for d in documents_of(folder, s)} for s in ("train", "validation"))
    assert train.isdisjoint(validation)
    assert len(train) + len(validation) == 60


@pytest.mark.parametrize("workers", [1, 3])
def test_workers_do_not_change_a_byte(run, corpus, tmp_path, workers):
    serial = run(corpus, tmp_path / "serial")
    parallel = run(corpus, tmp_path / "parallel", workers=workers)
    assert contents(serial) == contents(parallel)


def test_a_tokenizer_is_trained_if_none_is_given(run, corpus, tmp_path):
    settings = {"tokenizer_model": "", "vocab_size": 350, "tokenizer_type": "bpe", "sample_bytes": 10_000}
    folders = [run(corpus, tmp_path / name, **settings) for name in "ab"]
    assert contents(folders[0]) == contents(folders[1])
    tokenizer = Tokenizer(folders[0] / "tokenizer.model")
    manifest = load_manifest(folders[0])
    assert tokenizer.num_pieces == 350
    assert manifest.tokenizer.sha256 == tokenizer.sha256
    assert manifest.tokenizer.vocab_size == tokenizer.vocab_size
    assert manifest.dtype == "uint16"


def test_empty_documents_are_counted(run, tmp_path, make_texts, make_json_lines):
    documents = make_texts(50)
    mixed = ["", *documents[:20], " \n", *documents[20:], ""]
    folder = run(make_json_lines(tmp_path / "c.jsonl", mixed), tmp_path / "out", shard_tokens=300)
    manifest = load_manifest(folder)
    assert manifest.empty_documents == 3
    assert manifest.documents("train") + manifest.documents("validation") == 50


def test_a_complete_folder_is_returned_at_once(run, corpus, tmp_path, monkeypatch):
    folder = run(corpus, tmp_path / "out")
    before = contents(folder)
    monkeypatch.setattr("birdie_jax.text.preparation.write_shards", None)
    assert run(corpus, tmp_path / "out") == folder
    assert contents(folder) == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"record_tokens": 65}, r"its record_tokens is 64, here it is 65"),
        ({"validation_fraction": 0.3}, r"its validation_fraction is 0\.2, here it is 0\.3"),
        ({"tokenizer_model": ""}, r"its tokenizer_model is '[0-9a-f]{64}', here it is ''"),
    ],
)
def test_other_settings_in_the_same_folder_are_refused(run, corpus, tmp_path, changes, message):
    folder = run(corpus, tmp_path / "out")
    before = contents(folder)
    with pytest.raises(DataError, match=rf"manifest\.json: .* another preparation: {message}"):
        run(corpus, tmp_path / "out", **changes)
    assert contents(folder) == before


def test_other_settings_are_allowed_after_a_failed_tokenizer(run, corpus, tmp_path):
    with pytest.raises(DataError, match="vocab_size=60000 cannot be trained"):
        run(corpus, tmp_path / "out", tokenizer_model="", vocab_size=60_000)
    assert load_manifest(run(corpus, tmp_path / "out")).complete


def test_foreign_files_are_not_changed(run, corpus, tmp_path):
    (tmp_path / "out").mkdir()
    path = tmp_path / "out" / "train-00000.arrayrecord"
    path.write_text("precious")
    with pytest.raises(DataError, match=re.escape(f"{path}: exists without a manifest.json")):
        run(corpus, tmp_path / "out")
    assert path.read_text() == "precious"


def test_a_second_preparation_of_a_folder_waits_and_reports_it(run, corpus, tmp_path, capfd):
    (tmp_path / "out").mkdir()
    descriptor = os.open(tmp_path / "out", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    other = threading.Timer(0.3, os.close, [descriptor])
    other.start()
    assert load_manifest(run(corpus, tmp_path / "out")).complete
    assert not other.is_alive()
    message = f"{tmp_path}/out: another prepare_data is writing there; waiting until it ends\n"
    assert capfd.readouterr().err == message


def test_a_prepared_folder_within_the_source_is_ignored(run, tmp_path, make_texts, make_json_lines):
    """The prepared folder also contains JSON lines."""
    source = tmp_path / "data"
    source.mkdir()
    make_json_lines(source / "z.jsonl", make_texts(100))
    expected = contents(run(source / "z.jsonl", tmp_path / "beside"))
    for spec in (source, source / "**" / "*.jsonl"):
        output = source / ("of_a_folder" if spec == source else "of_a_glob")
        for _ in range(2):
            found = contents(run(spec, output))
            assert {name: found[name] for name in found if name.endswith("arrayrecord")} == {
                name: expected[name] for name in expected if name.endswith("arrayrecord")
            }


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        (["", "  "], r"holds no text \(2 empty documents in 1 files\)"),
        (["one"] * 3, r"holds 3 document\(s\), all alike; at least 2"),
    ],
)
def test_a_source_with_too_few_texts_is_refused(run, tmp_path, make_json_lines, documents, message):
    with pytest.raises(DataError, match=message):
        run(make_json_lines(tmp_path / "c.jsonl", documents), tmp_path / "out")


@pytest.mark.parametrize(("fraction", "count"), [(1e-6, 2), (1e-6, 40), (1 - 1e-6, 5), (1 - 1e-6, 40)])
def test_the_error_of_a_tiny_source_names_a_fraction_that_works(
    run, tmp_path, make_texts, make_json_lines, *, fraction, count
):
    path = make_json_lines(tmp_path / "few.jsonl", make_texts(count))
    with pytest.raises(DataError, match=rf"all {count} documents fall into") as caught:
        run(path, tmp_path / "out", validation_fraction=fraction)
    suggested = float(re.search(r"; with validation_fraction=(\S+) both", str(caught.value))[1])
    folder = run(path, tmp_path / "out", validation_fraction=suggested)
    sides = [TokenShards(folder, split).num_documents for split in ("train", "validation")]
    assert min(sides) > 0
    assert sum(sides) == count


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"record_tokens": 0}, "record_tokens is 0; allowed: 1 to 67,108,864"),
        ({"validation_fraction": 0.0}, r"validation_fraction is 0\.0; allowed: between 0 and 1"),
        ({"validation_fraction": float("nan")}, "validation_fraction is nan; allowed"),
        ({"workers": -1}, "workers is -1; allowed: 0 to 1,024"),
        ({"tokenizer_type": "char"}, "tokenizer_type is 'char'; allowed: unigram or bpe"),
        ({"tokenizer_model": "no.model"}, r"no\.model: the tokenizer model cannot be read"),
    ],
)
def test_unusable_settings_are_refused(run, corpus, tmp_path, changes, message):
    with pytest.raises(DataError, match=message):
        run(corpus, tmp_path / "out", **changes)
    assert not (tmp_path / "out").exists()
    with pytest.raises(DataError, match=r"corpus\.jsonl: the output folder cannot be made: File exists"):
        run(corpus, corpus)


def test_a_bad_document_is_named_and_finished_shards_are_kept(
    run, tmp_path, make_texts, make_json_lines, monkeypatch
):
    monkeypatch.setattr("birdie_jax.text.shard_pipeline._BLOCK_DOCUMENTS", 8)
    folder = tmp_path / "in"
    folder.mkdir()
    documents = make_texts(200)
    make_json_lines(folder / "a.jsonl", documents[:150])
    (folder / "b.jsonl").write_text(json.dumps({"body": "x"}) + "\n")
    with pytest.raises(DataError, match=r"b\.jsonl: line 1: has no field 'text'"):
        run(folder, tmp_path / "out")
    manifest = load_manifest(tmp_path / "out")
    assert manifest.train
    assert not manifest.complete
    assert not list((tmp_path / "out").glob("*.partial"))
    # After a fix of the file, the preparation resumes, with the same result as without the fault.
    make_json_lines(folder / "b.jsonl", documents[150:])
    kept = (tmp_path / "out" / "train-00000.arrayrecord").stat().st_mtime_ns
    run(folder, tmp_path / "out")
    assert (tmp_path / "out" / "train-00000.arrayrecord").stat().st_mtime_ns == kept
    assert contents(run(folder, tmp_path / "fresh")) == contents(tmp_path / "out")


def test_a_dead_worker_is_reported(tokenizer):
    tokenization = _Suicidal(tokenizer, "uint16", 10, 0.5)
    blocks = tokenize_blocks(iter([_block(["text"])]), tokenization, 1)
    with pytest.raises(DataError, match="a tokenizing process died"):
        next(blocks)


class _Suicidal(Tokenization):
    def __call__(self, texts):
        os._exit(9)


def _block(texts):
    from birdie_jax.text.tokenization import DocumentBlock

    return DocumentBlock(texts, [None] * len(texts))
