"""WebDataset tars: samples of every writer's format, and malformed tars."""

import io
import json
import random
import tarfile
import tracemalloc

import pytest

from birdie_jax.errors import DataError
from birdie_jax.text import open_source
from birdie_jax.text import tar_samples as tar_samples_module
from tests.text.prepared_folders import COMPRESS


def tar(*members, form=tarfile.PAX_FORMAT):
    """Return a tar of members, each (name, contents) or a `TarInfo`."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=form) as archive:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
            else:
                entry = tarfile.TarInfo(member[0])
                entry.size = len(member[1])
                archive.addfile(entry, io.BytesIO(member[1]))
    return file.getvalue()


def special(name, kind, **fields):
    entry = tarfile.TarInfo(name)
    entry.type = kind
    for field, value in fields.items():
        setattr(entry, field, value)
    return entry


LONG = "a/long name/" + "é" * 120
SAMPLES = [
    special("a", tarfile.DIRTYPE),
    ("a/0.jpg", b"\xff" * 5000),
    ("a/0.txt", "zéro".encode()),
    ("a/0.json", json.dumps({"text": "not this", "n": 1}).encode()),
    ("a/._0.txt", b"of a desktop"),
    ("a/1.json", json.dumps({"text": "one", "n": 2}).encode()),
    ("a.b/0.txt", b"\xef\xbb\xbftwo"),
    (f"{LONG}.txt", b"three" * 200),
    (f"{LONG}.cls", b"4"),
]
TEXTS = ["zéro", "one", "two", "three" * 200]


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
@pytest.mark.parametrize("suffix", COMPRESS)
def test_samples_are_read_from_every_format(tmp_path, suffix, form):
    path = tmp_path / f"samples.tar{suffix}"
    path.write_bytes(COMPRESS[suffix](tar(*SAMPLES, form=form)))
    documents = list(open_source(str(path)).documents())
    assert [document.text for document in documents] == TEXTS
    for number in range(len(documents)):
        assert list(open_source(str(path)).documents(0, number)) == documents[number:]
    stream = open_source(str(path), document_filter="n == 1").documents()
    with pytest.raises(DataError, match=r"sample 'a\.b/0': has no field 'n'; its fields are \['text'\]"):
        list(stream)
    assert stream.left_out.filtered_documents == 1


def _changed(data, position, replacement):
    return data[:position] + replacement + data[position + len(replacement) :]


def _with_size(size):
    """Return a header that declares this size, without contents."""
    entry = tarfile.TarInfo("big.txt")
    entry.size = size
    return entry.tobuf(tarfile.GNU_FORMAT)


ONE = tar(("0.txt", b"text"))
HOSTILE = {
    "link": (tar(special("0.txt", tarfile.SYMTYPE, linkname="/etc/passwd")), "member '0.txt': is a link"),
    "hard link": (tar(special("0.txt", tarfile.LNKTYPE, linkname="1.txt")), "is a link; allowed: files"),
    "device": (tar(special("0.txt", tarfile.CHRTYPE)), "member '0.txt': is a device"),
    "pipe": (tar(special("0.txt", tarfile.FIFOTYPE)), "is a named pipe"),
    "sparse": (tar(special("0.txt", b"S")), "is of the type b'S'"),
    "sparse pax": (tar(special("0", b"0", pax_headers={"GNU.sparse.major": "1"})), "is a sparse file"),
    "huge": (_with_size(1 << 40), "'big.txt': has 1099511627776 bytes; allowed: at most 268435456"),
    "huge header": (_changed(_with_size(1 << 40), 156, b"L"), "a header's checksum"),
    "pax size": (tar(special("0.txt", b"0", pax_headers={"size": "-1"})), "found the size '-1'"),
    "negative": (_changed(ONE, 124, b"\xff" * 12), "a header's checksum does not match its bytes"),
    "no tar": (b"\x1f" * 2000, "is not a tar, or is damaged"),
    "within a member": (ONE[:514], "is truncated: it ends within the member '0.txt'"),
    "within a header": (ONE[:300], "is truncated: it ends without the block of zeros"),
    "between members": (ONE[:1024], "is truncated: it ends without the block of zeros"),
    "nothing": (b"", "is truncated"),
    "two in one": (ONE + ONE, "data follows the block of zeros"),
    "twice": (tar(("0.txt", b"a"), ("0.txt", b"b")), "member '0.txt': appears twice; allowed: once"),
    "no text": (tar(("0.jpg", b"a")), "sample '0': has neither a .txt nor a .json"),
    "no JSON": (tar(("0.json", b"{")), "sample '0': .json: is not JSON"),
    "no UTF-8": (tar(("0.txt", b"\xff")), "sample '0': .txt, byte 0: is not UTF-8"),
    "line ends": (tar(("a\nb\x1b.jpg", b"a")), r"sample 'a\nb\x1b': has neither"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_tar_is_refused_with_one_line(tmp_path, case):
    data, message = HOSTILE[case]
    path = tmp_path / "hostile.tar"
    path.write_bytes(data)
    with pytest.raises(DataError) as caught:
        list(open_source(str(path)).documents())
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)
    assert str(caught.value).isprintable()


def test_an_extended_header_has_a_size_limit(tmp_path):
    entry = special("0.txt", tarfile.GNUTYPE_LONGNAME, size=1 << 40)
    (tmp_path / "0.tar").write_bytes(entry.tobuf(tarfile.GNU_FORMAT))
    with pytest.raises(DataError, match="a header has 1099511627776 bytes; allowed: at most 1048576"):
        list(open_source(str(tmp_path)).documents())


def test_other_members_are_skipped_in_little_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(tar_samples_module, "_SKIPPED_AT_ONCE", 1 << 16)
    path = tmp_path / "0.tar.zst"
    path.write_bytes(
        COMPRESS[".zst"](tar(("0.jpg", random.Random(0).randbytes(20 << 20)), ("0.txt", b"text")))
    )
    tracemalloc.start()
    assert [document.text for document in open_source(str(path)).documents()] == ["text"]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20
