"""Documents in a bucket are those of the same files on a disk, in the same order."""

import gzip
import json
import os
import re
import subprocess
import sys

import pyarrow
import pyarrow.parquet
import pytest
import zstandard

from birdie_jax.errors import DataError
from birdie_jax.storage import remove, write_whole
from birdie_jax.text import open_source, prepare
from birdie_jax.text.cache import cached_folder
from birdie_jax.text.locations import locate
from birdie_jax.text.remote_files import ObjectState
from birdie_jax.text.source_files import SourceFile
from tests.gcs_server import BUCKET, run_gcs_server


def _json_lines(name):
    return "".join(json.dumps({"text": f"{name} {number} " + "é" * number}) + "\n" for number in range(40))


def _parquet(name):
    sink = pyarrow.BufferOutputStream()
    texts = [f"{name} {number}" for number in range(40)]
    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), sink, row_group_size=16)
    return sink.getvalue().to_pybytes()


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "source"
    for name in ("a.jsonl", "x/b.jsonl.gz", "x/y/c.jsonl.zst", "x.d/e.txt", "x/.hidden/f.txt", "z.parquet"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = _json_lines(name).encode()
        if name.endswith(".gz"):
            lines = gzip.compress(lines)
        elif name.endswith(".zst"):
            lines = zstandard.ZstdCompressor().compress(lines)
        path.write_bytes(_parquet(name) if name.endswith(".parquet") else lines)
    (root / "x" / "notes.pdf").write_bytes(b"%PDF")
    return root


@pytest.fixture
def url(folder, upload, tmp_path):
    return upload(folder, tmp_path.name)


def documents(spec, root, **keywords):
    return [
        (str(document.file).removeprefix(f"{root}/"), document.number, document.text)
        for document in open_source(spec).documents(**keywords)
    ]


@pytest.mark.parametrize(
    "pattern",
    [
        *("", "/x", "/a.jsonl", "/x/y/c.jsonl.zst", "/z.parquet", "/*.jsonl", "/**/*.jsonl*", "/**/?.txt"),
        *("/**/[a-c].*", "/x/**/*.zst", "/**/y/*", "/x*/*.txt", "/x/.hidden/*", "/**/.hidden/*.txt"),
        "/**/**/c.*",
    ],
)
def test_the_same_documents_as_from_a_disk(folder, url, pattern):
    expected = documents(f"{folder}{pattern}", folder)
    assert expected
    assert documents(f"{url}{pattern}", url) == expected
    assert open_source(f"{url}{pattern}").sizes == open_source(f"{folder}{pattern}").sizes


def test_documents_from_a_place_on(folder, url):
    for place in ({"start_file": 1, "start_document": 5}, {"start_file": 4, "start_document": 20}):
        assert documents(url, url, **place) == documents(str(folder), folder, **place)


def test_files_are_found_by_one_listing(url, gcs):
    before = len(gcs.log.read_text().splitlines())
    open_source(f"{url}/**/*.jsonl*")
    assert len(gcs.log.read_text().splitlines()) - before == 1


# What gcsfs hands to aiohttp.
@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
def test_large_files_are_read_in_parts(gcs, upload, tmp_path):
    text = "".join(f"line {number}\n" for number in range(1_000_000))
    path = tmp_path / "large" / "large.txt"
    path.parent.mkdir()
    path.write_text(text)
    url = upload(path.parent, tmp_path.name)
    found = list(open_source(url).documents())
    assert len(found) > 1
    assert "".join(document.text for document in found) == text


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("/nothing", "input {}: there is no such file or folder"),
        ("/a.json", "input {}: there is no such file or folder"),
        ("/**/*.gz2", "input {}: matches no file"),
        ("/x/notes.pdf", "{}: has no supported suffix; supported"),
        ("/x/*", "has no supported suffix; supported"),
        ("/.hidden", "input {}: there is no such file or folder"),
    ],
)
def test_what_cannot_be_a_source_is_named(url, place, message):
    with pytest.raises(DataError, match=re.escape(message.format(f"{url}{place}"))):
        open_source(f"{url}{place}")


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("gs://no-such-bucket/x", "gs://no-such-bucket/x"),
        ("gs://no-such-bucket/**/*.txt", "there is no bucket no-such-bucket"),
        ("hdfs://a/b", "hdfs://a/b"),
    ],
)
def test_no_such_bucket(gcs, spec, said):
    with pytest.raises(DataError, match=re.escape(said)):
        open_source(spec)


@pytest.mark.parametrize("contents", [b"other text\n", None, b"longer than it was: other text\n"])
@pytest.mark.parametrize("name", ["f.txt", "f.jsonl.zst"])
def test_a_file_that_changes_while_it_is_read_is_refused(gcs, tmp_path, name, contents):
    path = f"gs://{BUCKET}/{tmp_path.name}/{name}"
    lines = _json_lines(name).encode()
    write_whole(path, zstandard.ZstdCompressor().compress(lines) if name.endswith("zst") else lines)
    iterator = iter(source := open_source(path).documents())
    next(iterator)
    remove(path) if contents is None else write_whole(path, contents)
    with pytest.raises(DataError, match=re.escape(path) + ": (changed while|cannot be read: No such file)"):
        list(iterator)
    assert source.file == 0


def test_identity_is_of_what_the_store_says_and_not_of_times(gcs, tmp_path, folder, upload):
    url = upload(folder, tmp_path.name)
    settings = {"tokenizer_model": "", "text_field": "text", "vocab_size": 300}
    first = cached_folder(tmp_path, url, **settings)
    assert cached_folder(tmp_path, url, **settings) == first
    file = locate(f"{url}/a.jsonl")
    state = open_source(str(file)).states[0]
    assert isinstance(state, ObjectState)
    entry = SourceFile(str(file), state.size, 0, 0, state.contents_sha256)
    contents = (folder / "a.jsonl").read_bytes()
    write_whole(file, contents)
    again = open_source(str(file)).states[0]
    assert again != state
    assert entry.is_at(file, again)
    write_whole(file, contents.replace(b"a.jsonl 3 ", b"a.jsonl 4 "))
    assert not entry.is_at(file, open_source(str(file)).states[0])
    assert cached_folder(tmp_path, url, **settings) != first


def test_text_from_a_bucket_is_prepared_as_from_a_disk(folder, url, model_path, tmp_path):
    settings = {"validation_fraction": 0.3, "shard_tokens": 500, "workers": 0, "progress": False}
    local = prepare(str(folder), tmp_path / "1", tokenizer_model=str(model_path), **settings)
    model = f"{url}/small.model"
    write_whole(model, model_path.read_bytes())
    remote = prepare(url, tmp_path / "2", tokenizer_model=model, **settings)
    assert prepare(url, tmp_path / "2", tokenizer_model=model, **settings) == remote
    for path in local.glob("*.arrayrecord"):
        assert (tmp_path / "2" / path.name).read_bytes() == path.read_bytes()
    write_whole(f"{url}/z.parquet", _parquet("other"))
    with pytest.raises(DataError, match=re.escape(f"{url}/z.parquet: has changed since this preparation")):
        prepare(url, tmp_path / "2", tokenizer_model=model, **settings)


_READ = """
import sys
import gcsfs.retry
from birdie_jax.storage import object_store
object_store.REQUEST_SECONDS = 2
gcsfs.retry.min = lambda *seconds: 0.01
from birdie_jax.text import DataError, open_source
documents = iter(open_source("gs://bucket/large.txt").documents())
next(documents)
print("ready", flush=True)
sys.stdin.readline()
try:
    list(documents)
except DataError as error:
    print(error, flush=True)
"""


@pytest.mark.slow
def test_an_outage_while_reading_ends_in_an_error_that_names_the_file(tmp_path):
    with run_gcs_server(tmp_path) as server:
        environment = os.environ | server.environment
        put = "from birdie_jax.storage import write_whole\n"
        put += "write_whole('gs://bucket/large.txt', b'0123456789abcde\\n' * (1 << 20))"
        subprocess.run([sys.executable, "-c", put], env=environment, check=True)
        process = subprocess.Popen(
            [sys.executable, "-c", _READ],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    message = process.communicate("\n", timeout=150)[0]
    assert message.startswith("gs://bucket/large.txt: cannot be read: ")
    assert message.count("\n") == 1
    assert process.returncode == 0
