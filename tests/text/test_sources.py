import contextlib
import gzip
import json
import re
import shutil
import tracemalloc

import pyarrow
import pyarrow.parquet
import pytest

from birdie_jax.errors import DataError
from birdie_jax.text import documents as documents_module
from birdie_jax.text import open_source
from tests.text.prepared_folders import COMPRESS, json_lines, parquet


def texts_of(path, **keywords):
    return [document.text for document in open_source(str(path), **keywords).documents()]


@pytest.mark.parametrize("suffix", COMPRESS)
def test_json_lines_are_read_in_every_compression(tmp_path, suffix):
    texts = ["one", "two\nlines é 漢 😀", "\u2028 three"]
    path = tmp_path / f"corpus.jsonl{suffix}"
    path.write_bytes(COMPRESS[suffix](json_lines(*texts)))
    documents = list(open_source(str(path)).documents())
    assert [document.text for document in documents] == texts
    assert [document.number for document in documents] == [0, 1, 2]
    assert {document.file for document in documents} == {path}


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("kind", [".txt", ".md", ".py"])
def test_each_text_file_is_one_exact_document(tmp_path, kind, suffix):
    path = tmp_path / f"file{kind}{suffix}"
    path.write_bytes(COMPRESS[suffix](b"a\r\n\tb  \n\n"))
    assert texts_of(path) == ["a\r\n\tb  \n\n"]


@pytest.mark.parametrize("start", [0, 1, 149, 150, 151, 999, 1000])
def test_parquet_is_read_from_any_row(tmp_path, start):
    path = tmp_path / "rows.parquet"
    texts = [f"row {number}" for number in range(1000)]
    table = pyarrow.table({"body": texts, "id": list(range(1000))})
    pyarrow.parquet.write_table(table, path, row_group_size=150)
    documents = open_source(str(path), text_field="body").documents(0, start)
    assert [document.text for document in documents] == texts[start:]


def make_mixed_folder(folder):
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "b.txt").write_text("text")
    (folder / "a.jsonl").write_bytes(json_lines("one", "", "two", " \n", "three"))
    (folder / "deep" / "er" / "c.md").write_text("mark")
    (folder / "deep" / "empty.py").write_text("")
    (folder / "deep" / "ignored.bin").write_bytes(b"\xff")
    (folder / ".hidden").mkdir()
    (folder / ".hidden" / "d.txt").write_text("hidden")
    (folder / "z.parquet").write_bytes(parquet(["p0", "p1"]))


def test_a_folder_is_read_in_the_order_of_names(tmp_path):
    make_mixed_folder(tmp_path)
    stream = open_source(str(tmp_path)).documents()
    assert [document.text for document in stream] == ["one", "two", "three", "text", "mark", "p0", "p1"]
    assert stream.left_out.empty_documents == 3
    assert stream.bytes_read == open_source(str(tmp_path)).total_bytes


def test_reading_resumes_at_any_document(tmp_path):
    make_mixed_folder(tmp_path)
    source = open_source(str(tmp_path))
    stream = source.documents()
    whole, places = [], []
    for document in stream:
        whole.append(document)
        places.append((stream.file, stream.next_document))
    for number, (file, document) in enumerate(places, 1):
        assert list(source.documents(file, document)) == whole[number:]


def test_a_large_text_file_is_read_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(documents_module, "TEXT_PART_BYTES", 64)
    for text in ("line of text é\n" * 40, "é" * 500, "x" * 64, "y" * 63 + "\n", "\n" + "é漢😀" * 60):
        path = tmp_path / "large.txt"
        path.write_text(text)
        documents = list(open_source(str(path)).documents())
        assert "".join(document.text for document in documents) == text
        assert all(len(document.text.encode()) <= 128 for document in documents)
        assert len(documents) >= len(text.encode()) // 128
        for number in range(len(documents)):
            assert list(open_source(str(path)).documents(0, number)) == documents[number:]


def test_a_byte_order_mark_is_not_text(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfhello")
    (tmp_path / "b.jsonl").write_bytes(b"\xef\xbb\xbf" + json_lines("world"))
    assert texts_of(tmp_path) == ["hello", "world"]


def test_the_standard_library_is_a_source():
    source = open_source("stdlib")
    assert 5e6 < source.total_bytes < 30e6
    assert not any("site-packages" in file.parts or "test" in file.parts for file in source.files)
    assert list(source.files) == sorted(source.files, key=lambda file: file.as_posix())
    first = next(iter(source.documents()))
    assert first.text == first.file.read_bytes().decode()


def test_the_hash_depends_on_the_path_and_state_of_each_file(tmp_path):
    first, second = tmp_path / "first" / "data", tmp_path / "second" / "data"
    make_mixed_folder(first)
    shutil.copytree(first, second)
    before = open_source(str(first)).sha256
    assert open_source(str(first)).sha256 == before
    hashes = {before, open_source(str(second)).sha256}
    (first / "z.txt").write_text("more")
    hashes.add(open_source(str(first)).sha256)
    (first / "z.txt").write_text("MORE")
    hashes.add(open_source(str(first)).sha256)
    (tmp_path / "link").symlink_to(first)
    assert open_source(str(tmp_path / "link")).sha256 in hashes
    assert len(hashes) == 4


def refused(spec, message, **keywords):
    with pytest.raises(DataError, match=message):
        list(open_source(str(spec), **keywords).documents())


def test_an_unusable_source_is_named(tmp_path):
    refused(tmp_path / "none.txt", r"none\.txt'?: is not a file, a folder or 'stdlib', and matches no file")
    refused("", "the input is empty")
    path = tmp_path / "x.csv"
    path.write_text("x")
    refused(tmp_path, r"holds no file of a supported suffix: \.txt, \.md, \.py, \.jsonl, \.tar .*\.parquet")
    for spec in (path, tmp_path / "*"):
        refused(spec, re.escape(f"{path}: has no supported suffix; supported: .txt"))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"body": "x", "id": 1}', r"has no field 'text'; its fields are \['body', 'id'\]"),
        (b'{"text": "cut', r"is not JSON: Invalid control character at \(character 13\)"),
        (b'{"text": "x", "text": "y"}', r"has the field 'text' twice; allowed: once"),
        (b'{"text": "x", "meta": {"n": 1, "n": 2}}', r"has the field 'n' twice"),
        (b'["text"]', r"is a JSON list; allowed: an object"),
        (b'{"text": null}', r"field 'text' is a NoneType; allowed: a string"),
        (b'{"text": "\\ud800"}', r"field 'text' holds the lone surrogate '\\ud800' at character 0"),
        (b"[" * 1000, r"is nested too deeply"),
        (json_lines("x" * 2000), r"is longer than 1,?500 bytes; allowed: one JSON object a line"),
        (b'{"text": "caf\xe9"}', None),
    ],
)
def test_a_bad_line_is_named(tmp_path, monkeypatch, line, message):
    monkeypatch.setattr(documents_module, "MAX_LINE_BYTES", 1500)
    path = tmp_path / "bad.jsonl"
    first = json_lines("one")
    path.write_bytes(first + line + b"\n")
    utf8 = re.escape(f", byte {len(first) + 13}: is not UTF-8 (found 0xe9")
    refused(path, re.escape(f"{path}: line 2") + (f": {message}" if message else utf8))
    (tmp_path / "latin.txt").write_bytes(b"abc caf\xe9 noir")
    refused(tmp_path / "latin.txt", r"latin\.txt: byte 7: is not UTF-8 \(found 0xe9")


def test_faults_of_parquet_are_named(tmp_path):
    path = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"body": ["x"], "n": [1]}), path)
    refused(path, re.escape(f"{path}: has no column 'text'; its columns are ['body', 'n']"))
    refused(path, r"row 0: field 'n' is a int; allowed: a string", text_field="n")
    twice = pyarrow.Table.from_arrays([pyarrow.array(["x"]), pyarrow.array(["y"])], ["text", "text"])
    pyarrow.parquet.write_table(twice, path)
    refused(path, "has the column 'text' 2 times; allowed: once")
    pyarrow.parquet.write_table(pyarrow.table({"body": ["x"], "n": [1]}), path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    refused(path, re.escape(f"{path}: row 0: is not readable Parquet"))
    bad = pyarrow.array([b"fine", b"caf\xe9"]).cast(pyarrow.string(), safe=False)
    pyarrow.parquet.write_table(pyarrow.table({"text": bad}), path)
    refused(path, r"row 1: field 'text': byte 3: is not UTF-8")


def test_an_unreadable_file_is_named(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    path.write_text("x")

    def denied(self, *_, **__):
        raise PermissionError(13, "Permission denied", str(self))

    source = open_source(str(path))
    monkeypatch.setattr("pathlib.Path.open", denied)
    with pytest.raises(DataError, match=re.escape(f"{path}: cannot be read: Permission denied")):
        list(source.documents())


@pytest.mark.slow
def test_many_lines_are_streamed_in_little_memory(tmp_path):
    path = tmp_path / "corpus.jsonl.gz"
    path.write_bytes(gzip.compress(json_lines(*(["x" * 1000] * 5_000))))
    tracemalloc.start()
    try:
        count = sum(1 for _ in open_source(str(path)).documents())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count == 5_000
    assert peak < 1 << 20  # of 5 MB


@pytest.mark.parametrize(
    "number", ["9" * 5000, "-" + "9" * 5000, "9" * 5000 + ".5", "1e999999", "NaN", "-Infinity"]
)
def test_other_fields_may_contain_any_number(tmp_path, number):
    path = tmp_path / "numbers.jsonl"
    path.write_text(f'{{"text": "one", "n": {number}, "deep": [[{number}]]}}\n{{"text": "two"}}\n')
    assert texts_of(path) == ["one", "two"]
    path.write_text(f'{{"text": {number}}}\n')
    refused(path, r"line 1: field 'text' is a (int|float); allowed: a string")
    path.write_text(f'{{"text": "one", "n": {number}, }}\n')
    refused(path, "line 1: is not JSON")
    path.write_text(f"{number}\n")
    refused(path, "line 1: is a JSON (int|float); allowed: an object")


_LONG_NAME = "n" * 100_000
_TWO_LINES = "a\nb\r\x1b[31m\u2028"


@pytest.mark.parametrize(
    ("line", "text_field"),
    [
        ({_LONG_NAME: "x"}, "text"),
        ({f"field {number}": "x" for number in range(5000)}, "text"),
        ({_TWO_LINES: "x"}, "text"),
        ({"text": "x"}, _LONG_NAME),
        ({"text": "x"}, _TWO_LINES),
        ({_LONG_NAME: 5}, _LONG_NAME),
        ({_TWO_LINES: 5}, _TWO_LINES),
        ({_TWO_LINES: "\ud800"}, _TWO_LINES),
    ],
    ids=lambda value: f"{str(value)[:12]!a}",
)
@pytest.mark.parametrize("name", ["data", _TWO_LINES])
@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_messages_are_one_short_line(tmp_path, suffix, line, text_field, name):
    path = tmp_path / f"{name}{suffix}"
    if suffix == ".jsonl":
        path.write_text(json.dumps(line) + "\n")
    else:
        columns = {key: [value if value != "\ud800" else 5] for key, value in line.items()}
        pyarrow.parquet.write_table(pyarrow.table(columns), path)
    with pytest.raises(DataError) as caught:
        texts_of(path, text_field=text_field)
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < 1000
    assert f"data{suffix}" in message or f"a\\nb\\r\\x1b[31m\\u2028{suffix}" in message


def test_damaged_parquet_raises_only_data_errors(tmp_path):
    """A cut anywhere is an error. Parquet cannot detect a flipped byte in the metadata."""
    path = tmp_path / "rows.parquet"
    table = pyarrow.table({"text": ["one", "two", "three"] * 5})
    pyarrow.parquet.write_table(table, path, write_page_checksum=True)
    whole = path.read_bytes()
    for place in range(0, len(whole), 5):
        path.write_bytes(whole[:place])
        refused(path, r"rows\.parquet: ")
        damaged = bytearray(whole)
        damaged[place] ^= 0xFF
        path.write_bytes(damaged)
        with contextlib.suppress(DataError):
            texts_of(path)
