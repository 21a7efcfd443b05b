"""Fields, filters, separators and repeated texts determine the documents of a source."""

import json
import re

import pyarrow
import pyarrow.parquet
import pytest

from birdie_jax.errors import DataError
from birdie_jax.text import documents as documents_module
from birdie_jax.text import load_manifest, open_source, prepare
from birdie_jax.text.record_rules import make_rules
from birdie_jax.text.shard_writer import ShardWriter
from tests.text.prepared_folders import contents, json_lines

RECORDS = [
    {"text": "one", "score": 0.5, "language": "en", "meta": {"source": {"name": "web"}, "ok": True}},
    {"text": "two two", "score": 2.0, "language": "de", "meta": {"source": {"name": "book"}, "ok": False}},
    {
        "text": "three",
        "score": None,
        "language": "new norse",
        "meta": {"source": {"name": "web"}, "ok": True},
    },
]


@pytest.fixture(params=[".jsonl", ".parquet"])
def source(request, tmp_path):
    path = tmp_path / f"records{request.param}"
    if request.param == ".jsonl":
        path.write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(RECORDS), path)
    return str(path)


@pytest.mark.parametrize(
    ("document_filter", "kept"),
    [
        ("", [0, 1, 2]),
        ("language == en", [0]),
        ("language != en", [1, 2]),
        ('language == "new norse"', [2]),
        ("score >= 0.5", [0, 1]),
        ("score<1", [0]),
        ("score > 0.5 and score <= 2", [1]),
        ("score == null", [2]),
        ("score != null", [0, 1]),
        ("len(text) >= 5", [1, 2]),
        ("meta.ok == true and meta.source.name == web", [0, 2]),
        ("len(meta.source.name) == 4", [1]),
        (r'language == "new \u006eorse" and len(text) == 5', [2]),
    ],
)
def test_a_filter_keeps_matching_records(source, document_filter, kept):
    stream = open_source(source, document_filter=document_filter).documents()
    assert [document.number for document in stream] == kept
    assert stream.left_out.filtered_documents == 3 - len(kept)


@pytest.mark.parametrize("document_filter", ["language != null", "language != null and len(language) > 2"])
def test_a_filter_leaves_out_records_without_a_text(tmp_path, document_filter):
    records = [{"language": "one"}, {"language": None}, {"language": "three"}]
    (tmp_path / "0.jsonl").write_bytes(b"".join(json.dumps(each).encode() + b"\n" for each in records))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), tmp_path / "1.parquet")
    stream = open_source(str(tmp_path), "language", document_filter=document_filter).documents()
    assert [document.text for document in stream] == ["one", "three"] * 2
    assert stream.left_out.filtered_documents == 2


def test_a_text_in_a_nested_field_is_read(source):
    documents = open_source(source, "meta.source.name").documents()
    assert [document.text for document in documents] == ["web", "book", "web"]


def test_a_field_name_with_a_dot_takes_precedence(tmp_path):
    record = {"a.b": "this", "a": {"b": "not this", "c.d": "and this"}}
    (tmp_path / "0.jsonl").write_text(json.dumps(record) + "\n")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([record]), tmp_path / "1.parquet")
    assert [document.text for document in open_source(str(tmp_path), "a.b").documents()] == ["this"] * 2


@pytest.mark.parametrize(
    ("document_filter", "message"),
    [
        ("language", "filter 'language': cannot be parsed from character 0 on: 'language'; allowed: FIELD"),
        ("language = en", "cannot be parsed from character 0 on"),
        (
            "language == new norse",
            "cannot be parsed from character 16 on: 'norse'; allowed: FIELD OPERATOR VALUE",
        ),
        ("score > 1 and", "cannot be parsed from character 10 on: 'and'"),
        ("score > 1 or score < 0", "cannot be parsed from character 10 on: 'or score < 0'"),
        ("score > high", "found 'high' after >; allowed: a number"),
        ("len(text) == long", "found 'long' after ==; allowed: a number"),
        ("score == [1]", "found [1]; allowed: a number, a word or a text"),
        ('language == "\\x"', "is not a JSON string"),
    ],
)
def test_an_invalid_filter_is_refused(document_filter, message):
    with pytest.raises(DataError, match=re.escape(message)):
        make_rules("text", "", document_filter, False)


@pytest.mark.parametrize(
    ("document_filter", "message"),
    [
        (
            "language > 1",
            "field 'language' is a str; the filter compares it with 1; allowed: a number",
        ),
        (
            "meta.ok == 1",
            "field 'meta.ok' is a bool; the filter compares it with 1; allowed: a number",
        ),
        (
            "score == en",
            "field 'score' is a float; the filter compares it with 'en'; allowed: a string",
        ),
        ("len(meta.ok) > 1", "field 'meta.ok' is a bool; the filter compares it with 1; allowed: a string"),
        ("meta.nothing == 1", "has no field 'meta.nothing'; its fields are"),
        ("nothing == 1", "'nothing'"),
    ],
)
def test_a_record_that_cannot_be_compared_is_named(source, document_filter, message):
    with pytest.raises(DataError, match=re.escape(message)) as caught:
        list(open_source(source, document_filter=document_filter).documents())
    assert str(caught.value).startswith(source)


@pytest.mark.parametrize("part_bytes", [1, 2, 3, 7, 1 << 20])
@pytest.mark.parametrize(
    ("text", "documents"),
    [
        ("one<|end|>two é\n<|end|>", ["one", "two é\n"]),
        ("<|end|>one<|end|><|end|><|<|end|>|end|>", ["one", "<|", "|end|>"]),
        ("one", ["one"]),
        ("<|end|>", []),
        ("", []),
    ],
)
def test_a_separator_divides_text_files(tmp_path, monkeypatch, part_bytes, text, documents):
    monkeypatch.setattr(documents_module, "TEXT_PART_BYTES", part_bytes)
    (tmp_path / "0.txt").write_text(text)
    source = open_source(str(tmp_path), document_separator="<|end|>")
    found = list(source.documents())
    assert [document.text for document in found] == documents
    for number, document in enumerate(found):
        assert list(source.documents(0, document.number)) == found[number:]


def test_a_separator_may_be_lines_and_a_document_has_a_size_limit(tmp_path, monkeypatch):
    (tmp_path / "0.txt").write_text("one\ntwo\n\n\nthree\tfour\n")
    texts = [
        document.text for document in open_source(str(tmp_path), document_separator=r"\n\n\n").documents()
    ]
    assert texts == ["one\ntwo", "three\tfour\n"]
    (tmp_path / "0.txt").write_bytes(b"one\r\n\r\ntwo")
    windows = open_source(str(tmp_path), document_separator=r"\r\n\r\n").documents()
    assert [document.text for document in windows] == ["one", "two"]
    (tmp_path / "0.txt").write_text("three\tfour, which is long\n")
    monkeypatch.setattr(documents_module, "MAX_LINE_BYTES", 10)
    with pytest.raises(
        DataError, match=r"document 0: is longer than 10 bytes; allowed: the separator '\\t\\t' before"
    ):
        list(open_source(str(tmp_path), document_separator=r"\t\t").documents())
    with pytest.raises(DataError, match=r"document_separator is '\\udcff'; allowed: Unicode text"):
        open_source(str(tmp_path), document_separator="\udcff")


@pytest.fixture
def repeated(tmp_path, make_texts):
    """Two files of documents; many documents occur twice, or in both files."""
    texts = make_texts(120)
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "0.jsonl").write_bytes(json_lines(*texts[:80], *texts[:40], ""))
    (tmp_path / "source" / "1.jsonl").write_bytes(json_lines(*texts[60:], *texts[50:70]))
    (tmp_path / "distinct.jsonl").write_bytes(json_lines(*texts))
    return tmp_path / "source"


def test_repeated_texts_are_left_out(repeated, tmp_path, settings):
    manifest = load_manifest(prepare(str(repeated), tmp_path / "out", deduplicate=True, **settings))
    assert (manifest.duplicate_documents, manifest.empty_documents) == (80, 1)
    distinct = load_manifest(prepare(str(tmp_path / "distinct.jsonl"), tmp_path / "distinct", **settings))
    assert manifest.sha256 == distinct.sha256


def test_a_preparation_stopped_at_each_shard_drops_the_same_repeats(
    repeated, tmp_path, settings, monkeypatch
):
    settings |= {"shard_tokens": 500, "deduplicate": True}
    expected = contents(prepare(str(repeated), tmp_path / "whole", **settings))
    assert contents(prepare(str(repeated), tmp_path / "workers", **settings | {"workers": 1})) == expected
    close = ShardWriter.close
    closed = 0

    def stop(self):
        nonlocal closed
        closed += 1
        if closed % 4 == 0:
            raise KeyboardInterrupt
        return close(self)

    with monkeypatch.context() as patch:
        patch.setattr(ShardWriter, "close", stop)
        for _ in range(100):
            try:
                prepare(str(repeated), tmp_path / "stopped", **settings)
            except KeyboardInterrupt:
                continue
            break
    assert closed > 8
    assert contents(tmp_path / "stopped") == expected


def test_a_source_with_only_filtered_documents_is_refused(source, tmp_path, settings):
    with pytest.raises(
        DataError, match=r"holds no text \(0 empty documents in 1 files, 3 left out by the f"
    ):
        prepare(source, tmp_path / "out", document_filter="language == fr", **settings)
    assert not (tmp_path / "out" / "manifest.json").exists()
