"""Documents in a bucket equal those of the same files on a disk, in the same order."""

import re

import pytest

from birdie_jax.errors import DataError
from birdie_jax.storage import remove, write_whole
from birdie_jax.text import open_source, prepare
from birdie_jax.text.cache import cached_folder
from birdie_jax.text.locations import locate
from birdie_jax.text.remote_files import ObjectState
from birdie_jax.text.source_files import SourceFile
from tests.gcs_server import BUCKET
from tests.text.prepared_folders import COMPRESS, json_lines, message_after_outage, parquet


def _texts(name):
    return [f"{name} {number} " + "é" * number for number in range(40)]


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "source"
    for name in ("a.jsonl", "x/b.jsonl.gz", "x/y/c.jsonl.zst", "x.d/e.txt", "x/.hidden/f.txt", "z.parquet"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        compress = COMPRESS.get(path.suffix, bytes)
        is_table = path.suffix == ".parquet"
        path.write_bytes(parquet(_texts(name), 16) if is_table else compress(json_lines(*_texts(name))))
    (root / "x" / "notes.pdf").write_bytes(b"%PDF")
    return root


@pytest.fixture
def url(folder, upload, tmp_path):
    return upload(folder)


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
def test_documents_equal_those_on_a_disk(folder, url, pattern):
    expected = documents(f"{folder}{pattern}", folder)
    assert expected
    assert documents(f"{url}{pattern}", url) == expected
    assert open_source(f"{url}{pattern}").sizes == open_source(f"{folder}{pattern}").sizes


def test_reading_starts_at_any_document(folder, url):
    for place in ({"start_file": 1, "start_document": 5}, {"start_file": 4, "start_document": 20}):
        assert documents(url, url, **place) == documents(str(folder), folder, **place)


def test_files_are_listed_with_one_request(url, gcs_server):
    before = len(gcs_server.log.read_text().splitlines())
    open_source(f"{url}/**/*.jsonl*")
    assert len(gcs_server.log.read_text().splitlines()) - before == 1


# gcsfs sends one large body through aiohttp.
@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
def test_large_files_are_read_in_parts(gcs_server, upload, tmp_path):
    text = "".join(f"line {number}\n" for number in range(1_000_000))
    path = tmp_path / "large" / "large.txt"
    path.parent.mkdir()
    path.write_text(text)
    url = upload(path.parent)
    found = list(open_source(url).documents())
    assert len(found) > 1
    assert "".join(document.text for document in found) == text


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("{}/nothing", "input {}: there is no such file or folder"),
        ("{}/**/*.gz2", "input {}: matches no file"),
        ("{}/x/notes.pdf", "{}: has no supported suffix; supported"),
        ("{}/x/*", "has no supported suffix; supported"),
        ("{}/.hidden", "input {}: there is no such file or folder"),
        ("gs://no-such-bucket/x", "gs://no-such-bucket/x"),
        ("gs://no-such-bucket/**/*.txt", "cannot be listed: there is no bucket no-such-bucket"),
        ("hdfs://a/b", "hdfs://a/b"),
    ],
)
def test_an_unusable_source_is_named(url, place, message):
    place = place.format(url)
    with pytest.raises(DataError, match=re.escape(message.format(place))):
        open_source(place)


@pytest.mark.parametrize("contents", [b"other text\n", None, b"longer than it was: other text\n"])
@pytest.mark.parametrize("name", ["f.txt", "f.jsonl.zst"])
def test_a_file_changed_during_reading_is_refused(gcs_server, tmp_path, name, contents):
    path = f"gs://{BUCKET}/{tmp_path.name}/{name}"
    write_whole(path, COMPRESS[".zst" if name.endswith(".zst") else ""](json_lines(*_texts(name))))
    iterator = iter(source := open_source(path).documents())
    next(iterator)
    remove(path) if contents is None else write_whole(path, contents)
    with pytest.raises(DataError, match=re.escape(path) + ": (changed while|cannot be read: No such file)"):
        list(iterator)
    assert source.file == 0


def test_identity_depends_on_the_listing_and_not_on_times(gcs_server, tmp_path, folder, upload):
    url = upload(folder)
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


def test_text_in_a_bucket_is_prepared_as_on_a_disk(folder, url, model_path, tmp_path):
    settings = {"validation_fraction": 0.3, "shard_tokens": 500, "workers": 0, "progress": False}
    local = prepare(str(folder), tmp_path / "1", tokenizer_model=str(model_path), **settings)
    model = f"{url}/small.model"
    write_whole(model, model_path.read_bytes())
    remote = prepare(url, tmp_path / "2", tokenizer_model=model, **settings)
    assert prepare(url, tmp_path / "2", tokenizer_model=model, **settings) == remote
    for path in local.glob("*.arrayrecord"):
        assert (tmp_path / "2" / path.name).read_bytes() == path.read_bytes()
    write_whole(f"{url}/z.parquet", parquet(_texts("other")))
    with pytest.raises(DataError, match=re.escape(f"{url}/z.parquet: has changed since this preparation")):
        prepare(url, tmp_path / "2", tokenizer_model=model, **settings)


_READ = """
from birdie_jax.text import open_source
documents = iter(open_source("gs://bucket/large.txt").documents())
next(documents)
wait()
list(documents)
"""


@pytest.mark.slow
def test_an_outage_raises_an_error_that_names_the_file(tmp_path):
    large = {"large.txt": b"0123456789abcde\n" * (1 << 20)}
    message = message_after_outage(tmp_path, _READ, files=large)
    assert message.startswith("gs://bucket/large.txt: cannot be read: ")
