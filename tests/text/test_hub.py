"""Data sets of the hub: the same documents as on a disk, at one commit, even if requests fail."""

import re
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from birdie_jax.errors import DataError, StoreError, exit_status
from birdie_jax.text import hub as hub_module
from birdie_jax.text import load_manifest, open_source, prepare
from birdie_jax.text.cache import cached_folder
from birdie_jax.text.shard_writer import ShardWriter
from tests.hub_server import TOKEN, run_hub_server
from tests.text.prepared_folders import COMPRESS, contents, json_lines, parquet

URL = "hf://datasets/org/texts"


def _texts(name):
    return [f"{name} {number} " + "é" * number for number in range(60)]


FILES = {
    "README.txt": b"about it\n",
    "a/one.parquet": parquet(_texts("one"), 16),
    "a/two.jsonl.zst": COMPRESS[".zst"](json_lines(*_texts("two"))),
    "a/b/three.jsonl.gz": COMPRESS[".gz"](json_lines(*_texts("three"))),
    "a/b/picture.png": b"\x89PNG",
    "a/.hidden/four.txt": b"hidden",
    "a name/fi#ve.txt": b"a name with spaces",
}


@pytest.fixture
def server(monkeypatch):
    with run_hub_server() as running:
        monkeypatch.setenv("HF_ENDPOINT", running.endpoint)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        running.commit("org/texts", FILES)
        yield running


@pytest.fixture
def pauses(monkeypatch):
    waited = []
    monkeypatch.setattr(hub_module.time, "sleep", waited.append)
    return waited


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "on_disk"
    for name, data in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def documents(spec, root):
    source = open_source(spec)
    root = root.replace("@COMMIT", f"@{source.commit}")
    return [
        (str(document.file).removeprefix(f"{root}/"), document.number, document.text)
        for document in source.documents()
    ]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("block", [1000, 8 << 20])
@pytest.mark.parametrize(
    "pattern",
    [*("", "/a", "/a/one.parquet", "/README.txt", "/a/*.parquet", "/**/*.jsonl*", "/a/**/t*", "/a name")],
)
def test_documents_equal_those_on_a_disk(server, folder, monkeypatch, pattern, block):
    monkeypatch.setattr(hub_module, "_BLOCK_BYTES", block)
    expected = documents(f"{folder}{pattern}", str(folder))
    assert expected
    assert documents(f"{URL}{pattern}", f"{URL}@COMMIT") == expected
    assert documents(f"{URL}@main{pattern}", f"{URL}@COMMIT") == expected


def test_a_run_prepares_a_new_commit_into_another_folder(server, tmp_path):
    settings = {"tokenizer_model": "", "text_field": "text"}
    first = cached_folder(tmp_path, f"{URL}/a", **settings)
    assert cached_folder(tmp_path, f"{URL}/a", **settings) == first
    commit = server.refs["org/texts"]["main"]
    server.commit("org/texts", {"a/one.txt": b"new"})
    assert cached_folder(tmp_path, f"{URL}/a", **settings) != first
    assert open_source(f"{URL}@{commit}/a").commit == commit


def test_a_revision_may_contain_slashes(server):
    commit = server.commit(
        "org/texts", {"default/0.parquet": parquet(["converted"])}, "refs/convert/parquet"
    )
    for revision in ("refs/convert/parquet", "refs%2Fconvert%2Fparquet", commit):
        source = open_source(f"{URL}@{revision}/default/*.parquet")
        assert [document.text for document in source.documents()] == ["converted"]
        assert source.commit == commit


@pytest.mark.parametrize("times", [2, 5])
def test_a_stopped_preparation_resumes_at_its_first_commit(server, settings, tmp_path, monkeypatch, times):
    settings |= {"shard_tokens": 500}
    first = server.refs["org/texts"]["main"]
    expected = contents(prepare(f"{URL}/a", tmp_path / "whole", **settings))
    close = ShardWriter.close
    left = times

    def stop(self):
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        return close(self)

    with monkeypatch.context() as patch:
        patch.setattr(ShardWriter, "close", stop)
        with pytest.raises(KeyboardInterrupt):
            prepare(f"{URL}/a", tmp_path / "stopped", **settings)
    second = server.commit("org/texts", {"a/one.parquet": parquet(["other"] * 60)})
    assert contents(prepare(f"{URL}/a", tmp_path / "stopped", **settings)) == expected
    manifest = load_manifest(tmp_path / "stopped")
    assert (manifest.source_commit, manifest.complete) == (first, True)
    # The same command accepts the complete folder, and another revision is another source.
    prepare(f"{URL}/a", tmp_path / "stopped", **settings)
    with pytest.raises(DataError, match="holds another preparation: its source is"):
        prepare(f"{URL}@{second}/a", tmp_path / "stopped", **settings)


def test_the_token_is_sent_only_to_the_hub_and_is_in_no_message(server, monkeypatch):
    server.private.add("org/texts")
    with pytest.raises(DataError, match=r"401 Invalid username.*; check the name, and set HF_TOKEN"):
        open_source(URL)
    monkeypatch.setenv("HF_TOKEN", f" {TOKEN}\n")
    assert len(list(open_source(f"{URL}/a").documents())) == 180
    assert {each.host for each in server.requests} == {"hub", "files"}
    for request in server.requests:
        assert TOKEN not in request.path
        assert not (request.host == "files" and request.authorization)
    monkeypatch.setenv("HF_TOKEN", f"{TOKEN}\nX-Header: 1")
    with pytest.raises(DataError, match="HF_TOKEN contains characters") as caught:
        open_source(URL)
    assert TOKEN not in str(caught.value)


FAILURES = {"429": (429, {"Retry-After": "7"}), "503": (503, {}), "reset": (0, {})}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("place", ["/revision/", "/tree/", "/resolve/", "one.parquet"])
@pytest.mark.parametrize("kind", FAILURES)
def test_a_failed_request_is_retried(server, pauses, kind, place):
    server.faults.append([place, *FAILURES[kind], 3])
    assert len(list(open_source(f"{URL}/a/one.parquet").documents())) == 60
    assert len(pauses) == 3
    assert min(pauses) == 7 if kind == "429" else max(pauses) < 7


def test_a_retry_waits_until_the_date_of_retry_after(server, pauses):
    then = format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True)
    server.faults.append(["/revision/", 503, {"Retry-After": then}, 1])
    open_source(URL)
    assert 50 < pauses[0] <= 60


@pytest.mark.parametrize(
    ("place", "fault", "status", "message"),
    [
        ("/tree/", (503, {}), 1, "/a: cannot be listed: the hub answers 503 Service Unavailable, 6 times"),
        ("one.parquet", (0, {}), 1, "/a/one.parquet: cannot be read: "),
        (
            "/resolve/",
            (403, {"X-Error-Message": "Access to dataset org/texts is restricted"}),
            2,
            "/a/b/three.jsonl.gz: cannot be read: 403 Access to dataset org/texts is restricted; set "
            "HF_TOKEN to a token of an account that has been given access on ENDPOINT/datasets/org/texts",
        ),
        ("one.parquet", (404, {}), 2, "/a/one.parquet: cannot be read: 404 Not Found; check the name"),
        ("one.parquet", (302, {"Location": "file:///x"}), 2, "to url 'file:///x' is not allowed"),
        ("one.parquet", (200, {}), 1, "found 2 bytes and status 206 for bytes=0-"),
        ("/tree/", (200, {}), 2, ": the response of ENDPOINT is not JSON"),
    ],
)
@pytest.mark.usefixtures("pauses")
def test_an_error_response_of_the_hub_is_one_line(server, place, fault, status, message):
    server.faults.append([place, *fault, 99])
    with pytest.raises(DataError) as caught:
        list(open_source(f"{URL}/a").documents())
    assert str(caught.value).startswith(f"{URL}@{server.refs['org/texts']['main']}/a")
    assert message.replace("ENDPOINT", server.endpoint) in str(caught.value)
    assert exit_status(caught.value) == status


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("hf://datasets/org/nothing/x", "hf://datasets/org/nothing: cannot be read: 401"),
        (
            f"{URL}@nothing/x",
            f"{URL}@nothing: cannot be read: 404 Invalid rev id: nothing; check the",
        ),
        (f"{URL}/nothing", "/nothing: there is no such file or folder"),
        (f"{URL}/**/*.pdf", "/**/*.pdf: matches no file"),
        (f"{URL}/a/b/picture.png", "has no supported suffix; supported"),
        (
            "hf://org/model",
            "input 'hf://org/model': is not the URL of a data set; allowed: hf://datasets/ORG/NAME",
        ),
        (f"{URL}/../x", "is not the URL of a data set"),
        ("hf://datasets/user:password@org/x", "is not the URL of a data set"),
    ],
)
def test_an_unusable_source_is_named(server, url, message):
    with pytest.raises(DataError, match=re.escape(message)):
        open_source(url)


@pytest.mark.usefixtures("pauses")
def test_an_endpoint_that_refuses_connections_is_named(monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(StoreError) as caught:
        open_source(f"{URL}/a")
    refused = "Connection refused, 6 times, at http://127.0.0.1:9 (HF_ENDPOINT)"
    assert str(caught.value) == f"{URL}: cannot be read: {refused}"
    assert exit_status(caught.value) == 1


def test_an_invalid_endpoint_is_named(monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "ftp://host")
    with pytest.raises(DataError, match="HF_ENDPOINT is 'ftp://host'; allowed: https://HOST"):
        open_source(URL)


def test_contents_of_a_prepared_folder_are_not_documents(server):
    record = {"source_files.jsonl": json_lines("a")}
    prepared = {"p/manifest.json": b"{}", "p/source_files.jsonl": json_lines("no"), "p/a.txt": b"yes"}
    server.commit("org/texts", record | prepared)
    assert sorted(document.text for document in open_source(URL).documents()) == ["a", "yes"]
