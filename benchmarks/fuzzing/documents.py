"""Documents in every format that prepare_data reads. An independent reader checks the shards."""

import bz2
import gzip
import io
import json
import lzma
import random
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import zstandard

from benchmarks.fuzzing.cases import Case, Wrong
from benchmarks.fuzzing.mutations import HOSTILE_JSON, encode_loosely, mutate_bytes, mutate_json
from benchmarks.fuzzing.valid_files import MODEL
from benchmarks.fuzzing.verbs import run_verb
from birdie_jax.text.documents import TEXT_PART_BYTES

_PACK: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": lambda data: zstandard.ZstdCompressor(write_checksum=True).compress(data),
}
_UNPACK: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.decompress,
    # lzma reads zero bytes after a stream as a truncated stream.
    ".xz": lambda data: lzma.decompress(data[: len(data) - (len(data) - len(data.rstrip(b"\0"))) // 4 * 4]),
    ".zst": lambda data: zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read(),
}
_ENCODINGS = ("utf-8-sig", "utf-16", "utf-16-le", "utf-32", "latin-1", "cp1252", "utf-7")
_WORDS = (
    "the",
    "river",
    "\u2581",
    "ä",
    "漢字",
    "😀",
    "\t",
    "\r",
    "\x00",
    "\x85",
    "\u2028",
    "  ",
    "e\u0301",
    "ﬁ",
)
_NAME = "mutated"


def make_document_case(draws: random.Random, folder: Path, valid: Path) -> Case:
    """Return a case: prepare a file of documents together with a valid one, then read both again."""
    source = folder / "source"
    source.mkdir()
    texts = [_text(draws) for _ in range(draws.randint(0, 6))]
    kind = draws.choice(
        (".jsonl", ".jsonl", ".jsonl", ".parquet", ".parquet", ".txt", ".md", ".py", ".tar")
    )
    packing = "" if kind == ".parquet" else draws.choice(tuple(_PACK))
    path = source / f"{_NAME}{kind}{packing}"
    if kind == ".parquet":
        data, done = _parquet(draws, texts)
    elif kind == ".tar":
        data, done = _tar(draws, texts)
    else:
        data, done = _json_lines(draws, texts) if kind == ".jsonl" else _plain(draws, texts)
    size, data = len(data), _PACK[packing](data)
    if draws.random() < (0.6 if done == "valid" else 0.15):
        data, done = mutate_bytes(draws, data), f"{done}, bytes changed"
    if packing and draws.random() < 0.1:
        other = draws.choice(
            (data, b"\0" * draws.randint(1, 9), b"x", bz2.compress(b"a"), _PACK[packing](b""))
        )
        data, done = data + other, f"{done}, something appended"
    path.write_bytes(data)
    others = [f"document {number} of the river" for number in range(24)]
    (source / "valid.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in others))
    output = folder / "prepared"
    command = [
        *(f"--input={source}", f"--output={output}", f"--tokenizer={valid / MODEL}", "--workers=0"),
        *("--validation_fraction=0.5", "--noprogress"),
        f"--record_tokens={draws.choice((1, 7, 512, 1 << 20) if size < 1 << 16 else (512, 1 << 20))}",
        f"--shard_tokens={draws.choice((50, 1 << 20))}",
    ]

    def run() -> str:
        run_verb("prepare_data", command)
        return _compare(output, path, [*_read_again(path, kind, packing), *others])

    return Case(f"{path.name}: {done}, {len(data)} bytes", (_NAME,), run)


def _text(draws: random.Random) -> str:
    return " ".join(draws.choices((*_WORDS, "abc", "fed"), k=draws.choice((0, 1, 3, 20, 300))))


def _plain(draws: random.Random, texts: list[str]) -> tuple[bytes, str]:
    text = "\n".join(texts)
    match draws.randrange(8):
        case 0:
            encoding = draws.choice(_ENCODINGS)
            return text.encode(encoding, "replace"), encoding
        case 1:
            size = draws.choice((4 << 20, (4 << 20) + 1, (8 << 20) + 3))
            unit = draws.choice(("a", "ä", "😀", "ab\n", "漢"))
            return (draws.choice(("", "b")) + unit * (size // len(unit.encode()))).encode(), f"{size} bytes"
    return text.encode(), "valid"


def _json_lines(draws: random.Random, texts: list[str]) -> tuple[bytes, str]:
    records: list[dict[str, Any]] = [{"text": text, "n": 1.5, "more": [None, {"a": "b"}]} for text in texts]
    lines = [json.dumps(record, ensure_ascii=draws.random() < 0.5) for record in records]
    end = draws.choice(("\n", "\n", "\r\n", "\n\n"))
    done = "valid"
    match draws.randrange(10):
        case 0 | 1 if records:
            lines[draws.randrange(len(lines))] = mutate_json(
                draws, draws.choice(records), draws.randint(1, 3)
            )
            done = "a record changed"
        case 2:
            hostile = draws.choice(HOSTILE_JSON)
            line = draws.choice((hostile, f'{{"text": {hostile}}}', f'{{"text": "a", "n": {hostile}}}'))
            lines.insert(draws.randint(0, len(lines)), line)
            done = f"hostile: {hostile[:40]}"
        case 3:
            lines.append(json.dumps({"text": "a " * draws.choice((1 << 16, 1 << 19))}))
            done = "a long line"
        case 4:
            encoding = draws.choice(_ENCODINGS)
            return end.join(lines).encode(encoding, "replace"), encoding
        case 5 if draws.random() < 0.1:
            return b'{"text": "' + b" " * (257 << 20), "a line beyond the limit"
    return encode_loosely(end.join(lines) + draws.choice((end, ""))), done


def _parquet(draws: random.Random, texts: list[str]) -> tuple[bytes, str]:
    done = "valid"
    column: Any = pyarrow.array([*texts, *([None] if draws.random() < 0.1 else [])], pyarrow.string())
    name = "text"
    match draws.randrange(12):
        case 0:
            column, done = pyarrow.array(range(len(texts))), "integers"
        case 1:
            column, done = pyarrow.array([draws.randbytes(9) for _ in texts], pyarrow.binary()), "binary"
        case 2:
            column, done = (
                pyarrow.array([[text] for text in texts], pyarrow.list_(pyarrow.string())),
                "lists",
            )
        case 3:
            column, done = column.dictionary_encode(), "dictionary"
        case 4:
            column, done = column.cast(pyarrow.large_string()), "large strings"
        case 5:
            column, done = pyarrow.array([{"text": text} for text in texts]), "structs"
        case 6:
            column, done = pyarrow.array([None] * len(texts), pyarrow.null()), "nulls"
        case 7:
            name, done = draws.choice(("Text", "", "text.text", "a\nb", "\0")), "another name"
    names = [name, "text"] if draws.random() < 0.05 else [name, "other"]
    columns = [column, pyarrow.array([1] * len(column))]
    file = io.BytesIO()
    pyarrow.parquet.write_table(
        pyarrow.Table.from_arrays(columns, names),
        file,
        row_group_size=draws.choice((1, 3, 1000)),
        compression=draws.choice(("none", "snappy", "gzip", "zstd", "lz4", "brotli")),
        write_page_checksum=draws.random() < 0.5,
        use_dictionary=draws.random() < 0.5,
        data_page_version=draws.choice(("1.0", "2.0")),
    )
    return file.getvalue(), done


def _tar(draws: random.Random, texts: list[str]) -> tuple[bytes, str]:
    done = "valid"
    file = io.BytesIO()
    form = draws.choice((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT))
    folder = draws.choice(("", "a/", "a.b/", "ä" * 40 + "/"))
    with tarfile.open(fileobj=file, mode="w", format=form) as archive:
        for number, text in enumerate(texts):
            suffix = draws.choice(("txt", "json"))
            data = (text if suffix == "txt" else json.dumps({"text": text, "n": 1})).encode()
            for name, contents in (
                (suffix, data),
                ("jpg", draws.randbytes(draws.choice((0, 1, 511, 600)))),
            ):
                entry = tarfile.TarInfo(f"{folder}{number}.{name}")
                entry.size = len(contents)
                if draws.random() < 0.02:
                    entry.type, done = draws.choice(b"123467SxgKL").to_bytes(), "another type"
                archive.addfile(entry, io.BytesIO(contents))
    data = file.getvalue()
    if draws.random() < 0.1:
        return data[: draws.randint(0, len(data))], "cut short"
    return data, done


def _read_again(path: Path, kind: str, packing: str) -> list[str]:
    """Read the texts of a file with independent readers.

    Raises:
        Wrong: these readers refuse a file that the program accepted.
    """
    try:
        if kind == ".parquet":
            return pyarrow.parquet.read_table(path, columns=["text"]).column(0).to_pylist()
        data = _UNPACK[packing](path.read_bytes())
        if kind == ".tar":
            return _read_tar_again(data)
        data = data.removeprefix(b"\xef\xbb\xbf")
        if kind == ".jsonl":
            lines = [line for line in data.split(b"\n") if line.strip()]
            return [json.loads(line, parse_int=len)["text"] for line in lines]
        text = data.decode("utf-8")
    except Exception as error:
        raise Wrong(f"accepted, and another reader refuses it: {error!r}") from error
    return [text]


def _read_tar_again(data: bytes) -> list[str]:
    texts = []
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for entry in archive:
            name, suffix = entry.name.rpartition("/")[2].partition(".")[::2]
            if entry.isfile() and name and suffix in ("txt", "json"):
                contents = archive.extractfile(entry).read().removeprefix(b"\xef\xbb\xbf")
                texts.append(contents.decode() if suffix == "txt" else json.loads(contents)["text"])
    return texts


def _compare(folder: Path, path: Path, expected: list[str]) -> str:
    """Compare the texts of all shards, stripped of white space, with those of an independent reader.

    The program cuts a text file into parts of some megabytes, so the function compares only its number of
    characters.
    """
    from birdie_jax.text import Tokenizer, TokenShards

    tokenizer = Tokenizer(folder / "tokenizer.model")
    found: list[str] = []
    for split in ("train", "validation"):
        parts: list[int] = []
        for record in TokenShards(folder, split):
            parts += record.tokens.tolist()
            if record.ends_document:
                found.append(tokenizer.decode(parts))
                parts = []
    wanted = [text for text in expected if text and not text.isspace()]
    is_cut = any(len(text.encode()) >= TEXT_PART_BYTES for text in wanted)
    if sorted(found) != sorted(wanted) and not (is_cut and sum(map(len, found)) == sum(map(len, wanted))):
        raise Wrong(
            f"the shards hold {len(found)} documents that differ from the {len(wanted)} of {path.name}"
        )
    return f"{len(found)} documents, as another reader has them"
