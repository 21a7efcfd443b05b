"""Samples of a WebDataset tar: consecutive members with one name, read as a stream in bounded memory.

The members of a sample are named `NAME.SUFFIX`; the suffix begins at the first dot of the base name.
Supported formats: ustar, pax (https://pubs.opengroup.org/onlinepubs/9699919799/utilities/pax.html) and GNU
tar. `tarfile` is not used: it reads headers of any size into memory and does not detect a truncated file.
"""

from collections.abc import Collection, Iterator
from io import BufferedIOBase
from typing import NamedTuple

from birdie_jax.errors import DataError, shown
from birdie_jax.text.locations import Location

MAX_MEMBER_BYTES = 256 << 20
"""The size limit of a text member; other members may have any size."""

_BLOCK = 512
_SKIPPED_AT_ONCE = 1 << 20
# Names have at most a few thousand bytes.
_MAX_HEADER_BYTES = 1 << 20
_FILES = b"0\0" + b"7"
_FOLDER, _PAX, _PAX_GLOBAL, _LONG_NAME, _LONG_LINK = b"5", b"x", b"g", b"L", b"K"
_REFUSED = {b"1": "a link", b"2": "a link", b"3": "a device", b"4": "a device", b"6": "a named pipe"}


class _Header(NamedTuple):
    """The parsed header of a member.

    Attributes:
        name: the path of the member.
        kind: its type flag.
        size: the number of its bytes.
    """

    name: str
    kind: bytes
    size: int


def read_samples(
    contents: BufferedIOBase, path: Location, suffixes: Collection[str]
) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Yield the name of each sample, and the contents of its members with one of `suffixes`, by suffix.

    Members whose base name begins with a dot are ignored.

    Raises:
        DataError: the tar is damaged or truncated, or contains a link, a device or too large a text; names
            the member.
    """
    sample, members = None, {}
    for header in _read_headers(contents, path):
        folder, slash, own = header.name.rpartition("/")
        stem, _, suffix = own.partition(".")
        if not stem:
            _skip(contents, path, header)
            continue
        name = f"{folder}{slash}{stem}"
        if sample is not None and name != sample:
            yield sample, members
            members = {}
        sample = name
        if suffix not in suffixes:
            _skip(contents, path, header)
            continue
        where = f"{path}: member {shown(header.name)}"
        if suffix in members:
            raise DataError(f"{where}: appears twice; allowed: once")
        if header.size > MAX_MEMBER_BYTES:
            raise DataError(f"{where}: has {header.size} bytes; allowed: at most {MAX_MEMBER_BYTES}")
        members[suffix] = _read(contents, path, header.size, header.name)
    if sample is not None:
        yield sample, members


def _read_headers(contents: BufferedIOBase, path: Location) -> Iterator[_Header]:
    """Yield the header of each file; the caller must read or skip the contents before the next one."""
    more: dict[str, str] = {}
    while True:
        block = contents.read(_BLOCK)
        if block == bytes(_BLOCK):
            break
        if len(block) < _BLOCK:
            raise DataError(f"{path}: is truncated: it ends without the block of zeros that ends a tar")
        header = _parse_header(block, path)
        if header.kind in (_PAX, _PAX_GLOBAL, _LONG_NAME, _LONG_LINK):
            if header.size > _MAX_HEADER_BYTES:
                raise DataError(
                    f"{path}: a header has {header.size} bytes; allowed: at most {_MAX_HEADER_BYTES}"
                )
            extended = _read(contents, path, header.size, header.name)
            if header.kind == _PAX:
                more |= _parse_pax(extended, path)
            elif header.kind == _LONG_NAME:
                more["path"] = extended.rstrip(b"\0").decode(errors="surrogateescape")
            continue
        header = header._replace(name=more.get("path", header.name))
        where = f"{path}: member {shown(header.name)}"
        if "size" in more:
            if not more["size"].isascii() or not more["size"].isdecimal():
                raise DataError(f"{where}: found the size {shown(more['size'])}; allowed: a number")
            header = header._replace(size=int(more["size"][:20]))
        if any(key.startswith("GNU.sparse") for key in more):
            raise DataError(f"{where}: is a sparse file; allowed: files and folders")
        more = {}
        if header.kind == _FOLDER:
            _skip(contents, path, header)
        elif header.kind in _FILES:
            yield header
        else:
            kind = _REFUSED.get(header.kind, f"of the type {header.kind!r}")
            raise DataError(f"{where}: is {kind}; allowed: files and folders")
    while rest := contents.read(_SKIPPED_AT_ONCE):
        if rest.strip(b"\0"):
            raise DataError(f"{path}: data follows the block of zeros that ends a tar; allowed: zeros")


def _parse_header(block: bytes, path: Location) -> _Header:
    own = sum(block) - sum(block[148:156]) + 8 * ord(" ")
    if _parse_number(block[148:156]) != own:
        raise DataError(
            f"{path}: is not a tar, or is damaged: a header's checksum does not match its bytes"
        )
    name = block[:100].partition(b"\0")[0]
    if block[257:263] == b"ustar\0" and (prefix := block[345:500].partition(b"\0")[0]):
        name = prefix + b"/" + name
    size = _parse_number(block[124:136])
    if size is None:
        raise DataError(f"{path}: is damaged: found the size {block[124:136]!r} of a member")
    return _Header(name.decode(errors="surrogateescape"), block[156:157], size)


def _parse_number(field: bytes) -> int | None:
    """Parse a number in octal digits or, for large numbers of GNU tar, in base 256; None if invalid."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:])
    digits = field.strip(b" \0")
    return int(digits, 8) if digits and not digits.strip(b"01234567") else None


def _parse_pax(extended: bytes, path: Location) -> dict[str, str]:
    """Parse the fields of an extended header: lines of a length, a space, `name=value` and a line end."""
    found = {}
    while extended:
        digits, _, _ = extended[:20].partition(b" ")
        length = int(digits) if digits.isdigit() else 0
        name, equals, value = extended[len(digits) + 1 : length].partition(b"=")
        if length > len(extended) or not equals or not value.endswith(b"\n"):
            raise DataError(f"{path}: is damaged: found {shown(extended[:40])} in an extended header")
        found[name.decode(errors="replace")] = value[:-1].decode(errors="surrogateescape")
        extended = extended[length:]
    return found


def _read(contents: BufferedIOBase, path: Location, size: int, name: str) -> bytes:
    data = contents.read(size)
    padding = -size % _BLOCK
    if len(data) < size or len(contents.read(padding)) < padding:
        raise DataError(f"{path}: is truncated: it ends within the member {shown(name)}")
    return data


def _skip(contents: BufferedIOBase, path: Location, header: _Header) -> None:
    left = header.size + -header.size % _BLOCK
    while left:
        passed = len(contents.read(min(left, _SKIPPED_AT_ONCE)))
        if not passed:
            raise DataError(f"{path}: is truncated: it ends within the member {shown(header.name)}")
        left -= passed
