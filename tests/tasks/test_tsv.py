"""Rows are read in order, and errors count bad rows and name their lines."""

import gzip
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from birdie_jax.errors import DataError
from birdie_jax.tasks.glue_files import read_tsv

NEEDED = ("text", "label")


def parse(row, where):
    if row["label"] not in ("0", "1"):
        raise DataError(f"{where}: label: found {row['label']!r}; allowed: 0, 1")
    return row["text"], int(row["label"])


def read(path, **options):
    return read_tsv(path, parse, NEEDED, **options)


@pytest.mark.parametrize("suffix", ["tsv", "tsv.gz"])
def test_rows_are_read_in_order(tmp_path, suffix):
    """Quotation marks and line breaks other than line feeds are text."""
    path = tmp_path / f"dev.{suffix}"
    text = '\ufeffindex\tlabel\ttext\r\n0\t1\t" one\n1\t0\tzwei\u2028✓\x85\x0b\n7\t0\t'
    path.write_bytes(gzip.compress(text.encode()) if suffix.endswith("gz") else text.encode())
    assert read(path) == ([('" one', 1), ("zwei\u2028✓\x85\x0b", 0), ("", 0)], [])


def test_a_file_without_a_header_has_the_given_columns(tmp_path):
    path = tmp_path / "dev.tsv"
    path.write_text("1\ta\n0\tb\n")
    assert read(path, columns=("label", "text")) == ([("a", 1), ("b", 0)], [])


BAD = [
    (b"a", "line 3: found 1 columns; allowed: 2: text, label"),
    (b"a\t1\t", "line 3: found 3 columns; allowed: 2: text, label"),
    (b"", "line 3: found 1 columns; allowed: 2: text, label"),
    (b"a\xff\t1", "line 3: byte 1: is not UTF-8 (invalid start byte)"),
    (b"a\tx", "line 3: label: found 'x'; allowed: 0, 1"),
]


@pytest.mark.parametrize(("line", "message"), BAD)
def test_bad_rows_are_named_or_skipped(tmp_path, line, message):
    path = tmp_path / "dev.tsv"
    path.write_bytes(b"text\tlabel\ngood\t1\n" + line + b"\nb\t0\n")
    with pytest.raises(DataError, match=f"^{re.escape(f'{path}: 1 of 3 records are bad: {message}')}$"):
        read(path)
    assert read(path, skip_bad=True) == ([("good", 1), ("b", 0)], [f"{path}: {message}"])


FILES = [
    (b"", "holds no row; allowed: one row a line, columns separated by tabs"),
    (b"text\tlabel\n", "holds no row; allowed: one row a line, columns separated by tabs"),
    (b"\xff\tlabel\na\t1\n", "line 1: byte 0: is not UTF-8 (invalid start byte)"),
    (b"sentence\tlabel\na\t1\n", "line 1: has no column 'text'; its columns are ['sentence', 'label'];"),
    (b"text\tlabel\tlabel\na\t1\t1\n", "line 1: has 2 columns 'label'; its columns are ['text', 'label',"),
    (b"text\tlabel\na\tx\n", "1 of 1 records are bad: line 2: label: found 'x'; allowed: 0, 1"),
]


@pytest.mark.parametrize(("content", "message"), FILES)
def test_a_file_without_good_rows_is_refused(tmp_path, content, message):
    path = tmp_path / "dev.tsv"
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"^{re.escape(f'{path}: {message}')}"):
        read(path, skip_bad=True)


texts = st.text(st.characters(exclude_characters="\t\n\r", codec="utf-8"))


@given(rows=st.lists(st.tuples(texts, st.sampled_from("01")), min_size=1))
def test_any_text_without_tabs_and_line_ends_survives_a_round_trip(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("tsv") / "dev.tsv"
    path.write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows), newline="")
    assert read(path)[0] == [(text, int(label)) for text, label in rows]
