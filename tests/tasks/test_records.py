"""Records are read in order, and errors count bad records and name their lines."""

import gzip
import json
import os
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from birdie_jax.errors import DataError
from birdie_jax.tasks.records import read_field, read_name, read_records, read_text


def parse(record, where):
    return read_name(record, "id", where), read_text(record, "prompt", where)


def name_of(parsed):
    return parsed[0]


def read(path, **options):
    return read_records(path, parse, name_of=name_of, **options)


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz"])
def test_records_are_read_in_order(tmp_path, suffix):
    path = tmp_path / f"q.{suffix}"
    text = (
        '\ufeff{"prompt": "one", "more": [1]}\r\n{"prompt": "zwei ✓", "id": "b"}\n{"prompt": "3", "id": 7}'
    )
    path.write_bytes(gzip.compress(text.encode()) if suffix.endswith("gz") else text.encode())
    assert read(path) == ([("1", "one"), ("b", "zwei ✓"), ("7", "3")], [])


BAD = [
    (b"", "line 2: is empty; allowed: a JSON object"),
    (b"{", "line 2: is not JSON: Expecting property name enclosed in double quotes (character 1)"),
    (b"[1]", "line 2: found [1]; allowed: a JSON object"),
    (b'{"prompt": "\xff"}', "line 2: byte 12: is not UTF-8 (invalid start byte)"),
    (b'{"prompt": "a\\ud800"}', r"line 2: found the lone surrogate '\ud800'; allowed: whole Unicode"),
    (b'{"prompt": "a", "x": {"y": ["\\udc01"]}}', r"line 2: found the lone surrogate '\udc01'"),
    (b'{"text": "a", "id": 3}', "line 2: has no field 'prompt'; its fields are ['id', 'text']"),
    (b'{"prompt": 3}', "line 2: prompt: found 3 (int); allowed: str"),
    (b'{"prompt": null}', "line 2: prompt: found None (NoneType); allowed: str"),
    (b'{"prompt": " \\n"}', r"line 2: prompt: found ' \n'; allowed: text with more than white space"),
    (b'{"prompt": "a", "id": 1.5}', "line 2: id: found 1.5 (float); allowed: str or int"),
    (b'{"prompt": "a", "id": ""}', "line 2: id: found ''; allowed: text with more than white space"),
    (b'{"prompt": "a", "id": "1"}', "line 2: found the id '1', which line 1 has; allowed: another"),
    (b'{"n": ' + b"9" * 5000 + b"}", "line 2: is not JSON that can be read: Exceeds the limit"),
    (b"[" * 100_000, "line 2: is nested too deeply"),
    (b'{"prompt": "a", "prompt": "a"}', "line 2: has the field 'prompt' twice; allowed: once"),
    (b'{"prompt": "a", "x": [{"y": 1, "y": 2}]}', "line 2: has the field 'y' twice; allowed: once"),
]


@pytest.mark.parametrize(("line", "message"), BAD)
def test_a_bad_record_is_named_by_its_line(tmp_path, line, message):
    path = tmp_path / "q.jsonl"
    path.write_bytes(b'{"prompt": "a"}\n' + line + b"\n" + b'{"prompt": "c"}\n')
    with pytest.raises(DataError, match=re.escape(f"{path}: 1 of 3 records are bad: {message}")):
        read(path)
    records, refused = read(path, skip_bad=True)
    assert records == [("1", "a"), ("3", "c")]
    assert len(refused) == 1
    assert refused[0].startswith(f"{path}: {message}")


def test_all_bad_records_are_counted_and_the_first_are_named(tmp_path):
    path = tmp_path / "q.jsonl"
    path.write_text('{"prompt": "a"}\n' + "{\n" * 7)
    with pytest.raises(DataError) as caught:
        read(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: 7 of 8 records are bad: line 2: is not JSON")
    assert [f"line {number}: " in message for number in range(1, 9)] == [False] + [True] * 5 + [False] * 2
    assert message.endswith("; and 2 more")
    path.write_text("{\n" * 2)
    with pytest.raises(DataError, match="2 of 2 records are bad"):
        read(path, skip_bad=True)


def test_an_unreadable_file_is_refused(tmp_path):
    path = tmp_path / "q.jsonl"
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(b'{"prompt": "a"}\n')[:-4])
    for file, message in (
        (path, "cannot be read: No such file or directory"),
        (tmp_path, "is a folder; allowed: a regular file"),
        (tmp_path / "pipe.jsonl", "is a named pipe (FIFO); allowed: a regular file"),
        (tmp_path / "cut.jsonl.gz", "is truncated or damaged"),
        ("http://x/y", "'http://x/y': found a URL that cannot be used; allowed: gs://BUCKET/..."),
    ):
        with pytest.raises(DataError, match=re.escape(message)):
            read(file)
    path.write_text("")
    with pytest.raises(
        DataError, match=re.escape(f"{path}: holds no record; allowed: one JSON object a line")
    ):
        read(path)


def test_records_are_read_from_a_bucket(bucket_url):
    from birdie_jax.storage import write_whole

    write_whole(f"{bucket_url}/q.jsonl", b'{"prompt": "a"}\n{"prompt": "b"}\n')
    assert read(f"{bucket_url}/q.jsonl")[0] == [("1", "a"), ("2", "b")]
    with pytest.raises(DataError, match="cannot be read"):
        read(f"{bucket_url}/absent.jsonl")


def test_a_missing_or_null_field_has_the_default():
    assert read_field({}, "n", int, "here", default=3) == 3
    assert read_field({"n": None}, "n", int, "here", default=3) == 3
    assert read_field({"n": 0}, "n", int, "here", default=3) == 0


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(codec=None), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(
    st.lists(
        st.fixed_dictionaries({"prompt": json_values}) | json_values | st.binary(max_size=9), max_size=5
    )
)
def test_any_file_gives_records_or_a_one_line_error(tmp_path_factory, lines):
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    contents = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    path.write_bytes(b"\n".join(contents))
    try:
        records, refused = read(path, skip_bad=True)
    except DataError as error:
        assert str(error).startswith(f"{path}: ")
        assert len(str(error).splitlines()) == 1
    else:
        assert all(prompt.encode().strip() for _, prompt in records)
        data = path.read_bytes()
        assert len(records) + len(refused) == len(data.splitlines())
        for line in refused:
            assert re.match(re.escape(str(path)) + r": line \d+: ", line)
            assert len(line.splitlines()) == 1
