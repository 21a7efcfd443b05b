"""Where documents come from: the standard library, a file, a folder or a glob."""

import glob
import hashlib
import itertools
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from birdie_jax.text.documents import Document, find_reader, supported_suffixes
from birdie_jax.text.errors import DataError

STANDARD_LIBRARY = "stdlib"

# Tests hold deliberately broken files, encodings are tables of code points, the rest is not Python's own.
_LEFT_OUT_OF_STANDARD_LIBRARY = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__", "lib2to3", "encodings"}
)


class Source:
    """Files of documents, in an order that depends on their names alone.

    Attributes:
        spec: the source as the user named it.
        text_field: the field of JSON lines and Parquet that has the text.
        files: the files, sorted by path.
        sizes: bytes of each file, as stored.
    """

    def __init__(self, spec: str, text_field: str, files: tuple[Path, ...]):
        self.spec = spec
        self.text_field = text_field
        self.files = files
        self.sizes = tuple(_file_size(file) for file in files)

    @property
    def total_bytes(self) -> int:
        """Bytes of all files, as stored."""
        return sum(self.sizes)

    @property
    def sha256(self) -> str:
        """Hash of the names and sizes of all files, to tell whether a source is still the same."""
        return self.sha256_of_first(len(self.files))

    def sha256_of_first(self, count: int) -> str:
        """Return a hash of the names and sizes of the first `count` files, to tell if they changed."""
        listing = (f"{file.name} {size}" for file, size in zip(self.files, self.sizes, strict=True))
        lines = "\n".join(itertools.islice(listing, count))
        return hashlib.sha256(lines.encode("utf-8", "surrogateescape")).hexdigest()

    def documents(self, start_file: int = 0, start_document: int = 0) -> "DocumentStream":
        """Return the documents in order, from document `start_document` of file number `start_file` on.

        Documents without text are passed over and counted. Iterating reads one file at a time, and of it
        one document, batch of rows, or part of a large text file.
        """
        return DocumentStream(self, start_file, start_document)


class DocumentStream:
    """One pass over a source; iterate it once.

    Attributes:
        empty_documents: documents passed over so far because they hold no text.
        bytes_read: bytes of the source's files, as stored, consumed so far, with those before the start.
        file: number of the file that the next document is looked for in.
        next_document: number within that file of the next document.
    """

    def __init__(self, source: Source, start_file: int, start_document: int):
        self._source = source
        self.file = start_file
        self.next_document = start_document
        self.empty_documents = 0
        self.bytes_read = sum(source.sizes[:start_file])

    def __iter__(self) -> Iterator[Document]:
        """Give the documents.

        Raises:
            DataError: a file cannot be read, is corrupt, not UTF-8, or lacks the text field; names the
                file and the line or row.
        """
        files = self._source.files
        before = self.bytes_read
        while self.file < len(files):
            path = files[self.file]
            read = find_reader(path)
            if read is None:
                raise DataError(f"{path}: has no supported suffix; supported: {supported_suffixes()}")
            for document, bytes_read in read(path, self._source.text_field, self.next_document):
                self.next_document = document.number + 1
                self.bytes_read = before + bytes_read
                if document.text and not document.text.isspace():
                    yield document
                else:
                    self.empty_documents += 1
            before += self._source.sizes[self.file]
            self.bytes_read = before
            self.file += 1
            self.next_document = 0


def open_source(spec: str, text_field: str = "text") -> Source:
    """Find the files of a source without reading them.

    Args:
        spec: `stdlib` for the Python standard library's own sources; a file; a folder, searched for all
            supported files but hidden ones; or a glob, where `**` stands for any folders.
        text_field: the field of JSON lines and Parquet that holds the text.

    Raises:
        DataError: nothing is there, nothing matches, or a file is of a kind that is not supported.
    """
    if not spec:
        raise DataError(f"the input is empty; a file, a folder, a glob or {STANDARD_LIBRARY!r} is expected")
    if spec == STANDARD_LIBRARY:
        files = _find_standard_library()
    elif (path := Path(spec)).is_dir():
        files = [
            file
            for file in path.rglob("*")
            if _is_visible(file, path) and find_reader(file) and file.is_file()
        ]
        if not files:
            raise DataError(
                f"{spec}: the folder holds no file of a supported suffix: {supported_suffixes()}"
            )
    elif path.exists():
        files = [path]
    else:
        files = [file for match in glob.glob(spec, recursive=True) if (file := Path(match)).is_file()]
        if not files:
            raise DataError(
                f"input {spec!r}: is no file, no folder, not {STANDARD_LIBRARY!r}, and matches no file"
            )
    for file in files:
        if find_reader(file) is None:
            raise DataError(f"{file}: has no supported suffix; supported: {supported_suffixes()}")
    return Source(spec, text_field, tuple(sorted(set(files), key=lambda file: file.as_posix())))


def _is_visible(file: Path, folder: Path) -> bool:
    return not any(part.startswith(".") for part in file.relative_to(folder).parts)


def _find_standard_library() -> list[Path]:
    """Return the sources of the standard library, files in an encoding other than UTF-8 left out."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    files = []
    for file in folder.rglob("*.py"):
        if _LEFT_OUT_OF_STANDARD_LIBRARY.isdisjoint(file.relative_to(folder).parts) and _is_utf8(file):
            files.append(file)
    if not files:
        raise DataError(f"{folder}: this Python has no sources of its standard library; name another input")
    return files


def _is_utf8(file: Path) -> bool:
    try:
        file.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        return False
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error.strerror}") from error
    return True


def _file_size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error.strerror}") from error
