"""Reading a truncated or damaged compressed file raises an error or returns the exact text."""

import gzip
import io
import itertools
import lzma
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from birdie_jax.errors import DataError
from birdie_jax.text.decompression import COMPRESSIONS, decompressed
from tests.text.prepared_folders import COMPRESS

STREAMS = (b"the first stream\n" * 20, b"", b"the second stream\n" * 20)
SKIPPABLE_FRAME = b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd"


@pytest.fixture
def read(tmp_path):
    def decompress(suffix, contents):
        path = tmp_path / f"a.txt{suffix}"
        path.write_bytes(contents)
        with path.open("rb") as file, decompressed(path, file) as opened:
            return opened.read()

    return decompress


def refused(read, suffix, contents, message=""):
    with pytest.raises(DataError, match=rf"a\.txt{re.escape(suffix)}: is {message}"):
        read(suffix, contents)


@pytest.mark.parametrize("suffix", COMPRESSIONS)
@pytest.mark.parametrize("times", [1, 1000])
def test_large_and_dense_streams_are_read(read, suffix, times):
    data = bytes(range(256)) * 4096 + bytes(3_000_000)
    assert read(suffix, COMPRESS[suffix](data) + COMPRESS[suffix](b"x") * times) == data + b"x" * times


@pytest.mark.parametrize("suffix", COMPRESSIONS)
def test_an_empty_compressed_file_is_refused(read, suffix):
    refused(read, suffix, b"", "truncated or damaged: it is empty")
    assert read(suffix, COMPRESS[suffix](b"")) == b""


@pytest.mark.parametrize("suffix", COMPRESSIONS)
def test_a_file_cut_within_a_stream_is_refused(read, suffix):
    """A file that is cut at the end of a stream looks complete."""
    streams = [COMPRESS[suffix](data) for data in STREAMS]
    whole = b"".join(streams)
    ends = {len(b"".join(streams[:count])): b"".join(STREAMS[:count]) for count in range(1, 4)}
    for length in range(len(whole) + 1):
        if length in ends:
            assert read(suffix, whole[:length]) == ends[length]
        else:
            # One of the two magic bytes of a gzip member remains.
            no_member = suffix == ".gz" and length - 1 in {0, *ends}
            refused(read, suffix, whole[:length], "not valid" if no_member else "truncated")


@pytest.mark.parametrize("suffix", COMPRESSIONS)
def test_a_flipped_byte_never_changes_the_text(read, suffix):
    whole = b"".join(map(COMPRESS[suffix], STREAMS))
    detected = 0
    for place in range(len(whole)):
        for bits in (0x01, 0x80, 0xFF):
            damaged = bytearray(whole)
            damaged[place] ^= bits
            try:
                assert read(suffix, bytes(damaged)) == b"".join(STREAMS)
            except DataError:
                detected += 1
    # A header has fields that do not affect the text, such as the time in .gz.
    assert detected > 2 * len(whole)


@pytest.mark.parametrize("suffix", COMPRESSIONS)
@pytest.mark.parametrize(
    "garbage", [b"x", b"garbage", b"\1\0\0\0", b"\0" * 12 + b"x", b"(\xb5/\xfd", b"\xfd7zXZ", b"\x1f\x8b"]
)
def test_other_data_after_a_stream_is_refused(read, suffix, garbage):
    whole = COMPRESS[suffix](STREAMS[0])
    refused(read, suffix, whole + garbage)
    refused(read, suffix, whole + garbage + whole)


@pytest.mark.parametrize("suffix", COMPRESSIONS)
def test_a_damaged_second_stream_is_refused(read, suffix):
    """A magic byte of the second stream is damaged, so it does not look like a stream."""
    first, second = COMPRESS[suffix](STREAMS[0]), COMPRESS[suffix](STREAMS[2])
    for place in range(4):
        damaged = bytearray(second)
        damaged[place] ^= 0xFF
        refused(read, suffix, first + damaged)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 8, 300_000, 300_001])
def test_padding_of_xz_is_a_multiple_of_four_zero_bytes(read, count):
    whole, padding = lzma.compress(b"text"), bytes(count)
    if count % 4:
        refused(read, ".xz", whole + padding, f"truncated or damaged: {count} zero bytes follow a stream")
        refused(read, ".xz", whole + padding + whole, f"truncated or damaged: {count} zero bytes")
    else:
        assert read(".xz", whole + padding) == b"text"
        assert read(".xz", whole + padding + whole + padding) == b"texttext"
    refused(read, ".xz", (padding or bytes(4)) + whole)


@pytest.mark.parametrize("count", [1, 512, 300_001])
def test_padding_of_gz_is_zero_bytes_and_of_zst_is_frames(read, count):
    """Tapes and tar leave zero bytes after .gz; .zst has skippable frames instead."""
    assert read(".gz", gzip.compress(b"text") + bytes(count)) == b"text"
    assert read(".gz", gzip.compress(b"text") + bytes(count) + gzip.compress(b"more")) == b"textmore"
    refused(read, ".zst", COMPRESS[".zst"](b"text") + bytes(count))
    frames = SKIPPABLE_FRAME + COMPRESS[".zst"](b"text") + SKIPPABLE_FRAME
    assert read(".zst", frames) == b"text"


@pytest.mark.slow
@given(
    data=st.binary(max_size=300), cuts=st.lists(st.integers(0, 300), max_size=4), size=st.integers(1, 50)
)
def test_any_streams_are_read_in_any_portions(tmp_path_factory, data, cuts, size):
    ends = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for suffix in COMPRESSIONS:
        path = tmp_path_factory.getbasetemp() / f"any{suffix}"
        streams = [data[start:end] for start, end in itertools.pairwise(ends)]
        path.write_bytes(b"".join(map(COMPRESS[suffix], streams)))
        read = io.BytesIO()
        with path.open("rb") as file, decompressed(path, file) as opened:
            while portion := opened.read(size):
                read.write(portion)
        assert read.getvalue() == data
