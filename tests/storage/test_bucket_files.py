"""Files in a bucket of a real server: whole, created once, listed as they are, whatever fails."""

import json
import secrets
import time
from urllib.parse import quote

import pytest

from birdie_jax.errors import StoreError
from birdie_jax.storage import (
    download,
    exists,
    is_remote,
    list_files,
    list_names,
    make_path,
    move_folder,
    object_store,
    open_bytes,
    read_bytes,
    remove,
    upload,
    write_json,
    write_whole,
)
from birdie_jax.storage.files import prove_writable
from birdie_jax.storage.generations import find_generation, replace_at
from tests.at_once import run_at_once
from tests.gcs_server import BUCKET

# gcsfs makes so many, with pauses of up to 2, 3, 5, 9 and 17 seconds.
TRIES = 6
PAUSES = 36
OPERATIONS = {
    "read": read_bytes,
    "written": lambda path: write_whole(path, b"x"),
    "proved writable": prove_writable,
    "looked for": exists,
    "listed": list_names,
    "listed with sizes": list_files,
    "removed": remove,
}
each_operation = pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
each_fault = pytest.mark.parametrize(
    "fault", [500, 502, 503, 504, 429, "reset_request", "reset_answer", "hang"]
)


def of_another_process(bucket, method: str, name: str, body: str | None = None) -> int:
    """Do something to an object past this process's libraries."""
    path = str(bucket.root / name).partition("://")[2].partition("/")[2]
    if method == "POST":
        address = f"/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name={quote(path, safe='')}"
    else:
        address = f"/storage/v1/b/{BUCKET}/o/{quote(path, safe='')}"
    return bucket.server.request(method, address, body)[0]


def test_write_replaces_the_whole_object(bucket, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = bucket.root / "a/b.json"
    for contents in (b"old and long", b"new", b"", bytes(range(256)) * 4000):
        write_whole(path, contents)
        assert read_bytes(path) == contents
    write_json(path, {"a": [1, 2.5]})
    assert json.loads(read_bytes(path)) == {"a": [1, 2.5]}
    assert list_names(bucket.root / "a") == ["b.json"]
    assert is_remote(path) and list(tmp_path.iterdir()) == []


def test_a_proof_that_an_object_can_be_written_changes_nothing(bucket):
    write_whole(bucket.root / "a", b"old")
    for name in ("a", "b", "c d/#1?"):
        prove_writable(bucket.root / name)
    assert list_files(bucket.root) == {"a": 3}
    assert read_bytes(bucket.root / "a") == b"old"


def test_what_was_there_stays_when_a_write_fails(bucket, hasty):
    path = bucket.root / "a"
    write_whole(path, b"old")
    bucket.proxy.answer(503, method="POST")
    with pytest.raises(StoreError):
        write_whole(path, b"new")
    assert read_bytes(path) == b"old"


def test_only_one_of_several_creations_succeeds(bucket):
    path, won = bucket.root / "claim", []

    def create(number: int) -> None:
        if replace_at(path, 0, b"%d" % number):
            won.append(number)

    run_at_once(8, create)
    assert [b"%d" % number for number in won] == [read_bytes(path)]
    assert replace_at(path, 0, read_bytes(path)) is None, "not even the same contents"


@pytest.mark.parametrize("fault", ["reset_answer", "reset_request"])
def test_creating_is_known_also_when_the_answer_was_lost(bucket, fault):
    """The request is repeated then, and finds what it has created itself."""
    for created in (True, False):
        # The client asks for the bucket meanwhile.
        getattr(bucket.proxy, fault)(method="POST", times=1)
        written = replace_at(bucket.root / "claim", 0, b"mine")
        assert written == (find_generation(bucket.root / "claim") if created else None)
    before = find_generation(bucket.root / "claim")
    getattr(bucket.proxy, fault)(method="POST", times=1)
    assert replace_at(bucket.root / "claim", before, b"again") == find_generation(bucket.root / "claim")
    assert replace_at(bucket.root / "claim", before, b"again") is None


def test_listings_show_changes_of_another_process(bucket):
    assert (list_names(bucket.root), list_files(bucket.root), exists(bucket.root)) == ([], {}, False)
    of_another_process(bucket, "POST", "a/x", "xyz")
    assert (list_names(bucket.root), list_files(bucket.root)) == (["a"], {"a/x": 3})
    assert exists(bucket.root) and exists(bucket.root / "a") and exists(bucket.root / "a/x")
    assert (bucket.root / "a/x").exists() and [p.name for p in bucket.root.iterdir()] == ["a"]
    of_another_process(bucket, "POST", "a/x", "longer")
    of_another_process(bucket, "POST", "b", "")
    assert (list_names(bucket.root), list_files(bucket.root)) == (["a", "b"], {"a/x": 6, "b": 0})
    assert read_bytes(bucket.root / "a/x") == b"longer"
    of_another_process(bucket, "DELETE", "a/x")
    assert (list_names(bucket.root), list_files(bucket.root)) == (["b"], {"b": 0})
    assert not exists(bucket.root / "a/x") and not exists(bucket.root / "a")
    assert not (bucket.root / "a").exists()


def test_only_files_below_a_folder_are_listed(bucket):
    for name in ("a", "a/x", "a/y/z", "ab", "a.b/x"):
        write_whole(bucket.root / name, b"1")
    # An object by the name of the folder, as some tools make.
    of_another_process(bucket, "POST", "a/", "")
    assert list_names(bucket.root / "a") == ["x", "y"]
    sizes = list_files(bucket.root / "a")
    assert {name: size for name, size in sizes.items() if size} == {"x": 1, "y/z": 1}
    assert list_names(bucket.root / "ab") == [] == list_names(bucket.root / "none")


@pytest.mark.slow
def test_long_listings_are_complete(bucket):
    """They come in pages."""
    names = [f"{number:04}" for number in range(1003)]
    for name in names:
        of_another_process(bucket, "POST", f"many/{name}", "x")
    assert list_names(bucket.root / "many") == names
    assert list(list_files(bucket.root / "many")) == names


@pytest.mark.parametrize(
    "name",
    [
        *("a b", "a#b", "a#123", "a?b", "a%20b", "a%", "\u00e9\u8a9e", "a\nb", "a*b", "a[b]", "a+b&c=d"),
        *("{0}", "x{y", "'q\"", "a\\b", "#", "...", "~", "a:b", "$HOME", "x" * 200),
    ],
)
def test_names_of_any_characters(bucket, name):
    path = bucket.root / "folder" / name
    first = replace_at(path, 0, b"first")
    assert first is not None and find_generation(path) == first and replace_at(path, 0, b"second") is None
    write_whole(path, name.encode())
    assert (read_bytes(path), exists(path)) == (name.encode(), True)
    assert list_names(bucket.root / "folder") == [name]
    assert list_files(bucket.root) == {f"folder/{name}": len(name.encode())}
    remove(path)
    assert list_names(bucket.root / "folder") == [] and not exists(path)
    remove(path)
    with pytest.raises(FileNotFoundError):
        read_bytes(path)


@pytest.mark.parametrize(
    ("operation", "name"),
    [
        *((operation, "/a") for operation in OPERATIONS.values()),
        *((operation, "") for operation in (exists, list_names, list_files)),
    ],
)
def test_a_missing_bucket_is_named(bucket, operation, name):
    """It is neither empty nor without the object."""
    path = make_path(f"gs://no-such-bucket-{secrets.token_hex(4)}{name}")
    message = r"^gs://no-such-bucket-\S+: cannot be [a-z ]+: there is no bucket no-such-bucket-\w{8}$"
    with pytest.raises(StoreError, match=message):
        operation(path)


def test_a_missing_object_is_reported_without_permission_to_list(bucket):
    bucket.proxy.answer(403, path="/o[?]")
    with pytest.raises(FileNotFoundError):
        read_bytes(bucket.root / "a")


def test_one_request_checks_whether_something_exists(bucket):
    for name in ("file", "file-2", "folder/x", "other-2", "other/x"):
        write_whole(bucket.root / name, b"")
    for name, there, requests in (
        *(("file", True, 1), ("folder", True, 1), ("none", False, 1), ("folder/x", True, 1)),
        # Names that continue with a character before the slash sort in between.
        *(("other", True, 2), ("file-", False, 2)),
    ):
        before = len(bucket.proxy.requests)
        assert exists(bucket.root / name) == there, name
        assert len(bucket.proxy.requests) - before == requests, name


def cause(proxy, fault, times=None):
    """Let requests fail with a status, or in one of the proxy's other ways."""
    if isinstance(fault, int):
        proxy.answer(fault, times=times)
    else:
        getattr(proxy, fault)(times=times)


@each_operation
@each_fault
def test_a_temporary_failure_is_retried(bucket, hasty, operation, fault):
    write_whole(bucket.root / "a", b"x")
    expected = operation(bucket.root / "a") if operation is not remove else None
    cause(bucket.proxy, fault, times=TRIES - 1)
    assert operation(bucket.root / "a") == expected
    assert hasty


@each_operation
@each_fault
def test_a_permanent_failure_raises_one_error_in_time(bucket, hasty, operation, fault):
    cause(bucket.proxy, fault)
    with pytest.raises(StoreError) as raised:
        operation(bucket.root / "a")
    (line,) = str(raised.value).splitlines()
    assert str(bucket.root / "a") in line and "cannot be " in line
    assert not isinstance(raised.value, FileNotFoundError | FileExistsError)
    # One that is silent costs most. The whole stays below the patience of the watch of a run.
    assert len(hasty) == TRIES - 1
    assert sum(hasty) <= PAUSES
    assert TRIES * object_store.REQUEST_SECONDS + PAUSES < 150


@each_operation
def test_outage(bucket, hasty, operation):
    with bucket.proxy.outage(), pytest.raises(StoreError, match="Cannot connect to host"):
        operation(bucket.root / "a")
    write_whole(bucket.root / "a", b"x")


@each_operation
@pytest.mark.parametrize("status", [401, 403])
def test_a_missing_permission_is_reported_at_once(bucket, hasty, operation, status):
    write_whole(bucket.root / "a", b"x")
    bucket.proxy.answer(status)
    with pytest.raises(StoreError, match="the proxy was set to fail") as raised:
        operation(bucket.root / "a")
    assert hasty == []
    assert str(bucket.root / "a") in str(raised.value)
    assert ("no permission" in str(raised.value)) == (status == 403)


def test_slow_answers_are_waited_for(bucket):
    begin = time.monotonic()
    bucket.proxy.delay(0.3)
    write_whole(bucket.root / "a", b"x")
    assert read_bytes(bucket.root / "a") == b"x"
    assert time.monotonic() - begin > 0.6


def test_no_other_request_is_sent(bucket):
    """Neither the bucket's kind nor its other objects: rights may end at the folder."""
    before = len(bucket.proxy.requests)
    for operation in OPERATIONS.values():
        operation(bucket.root / "folder") if operation is not read_bytes else None
    asked = bucket.proxy.requests[before:]
    outside = [each for each in bucket.proxy.requests_outside(f"{bucket.root.name}/") if each in asked]
    assert len(asked) >= len(OPERATIONS) - 1 and outside == []
    assert all("/o" in each.path for each in asked), "questions about the bucket need a right of their own"


@pytest.mark.parametrize("size", [0, 1, 3_000_000])
def test_files_are_copied_there_and_back(bucket, tmp_path, hasty, size):
    contents = secrets.token_bytes(size)
    (tmp_path / "here").write_bytes(contents)
    bucket.proxy.reset_answer(times=2)
    upload(tmp_path / "here", bucket.root / "a b#?")
    assert list_files(bucket.root) == {"a b#?": size}
    bucket.proxy.reset_answer(times=2)
    download(bucket.root / "a b#?", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == contents
    with open_bytes(bucket.root / "a b#?") as file:
        assert file.read(2) + file.read() == contents


def test_a_failed_copy_names_the_file(bucket, tmp_path, hasty):
    (tmp_path / "here").write_bytes(b"x")
    bucket.proxy.answer(403)
    with pytest.raises(StoreError, match=r"^gs://.* written: no permission: "):
        upload(tmp_path / "here", bucket.root / "a")
    with pytest.raises(StoreError, match=r"^gs://.* read: no permission: "):
        download(bucket.root / "a", tmp_path / "back")
    bucket.proxy.heal()
    with pytest.raises(FileNotFoundError):
        download(bucket.root / "none", tmp_path / "back")
    with pytest.raises(FileNotFoundError), open_bytes(bucket.root / "none") as file:
        file.read()


def test_move_removes_the_mark_first_and_writes_it_last(bucket):
    source, target = bucket.root / "step", bucket.root / "damaged/step"
    for name in ("b", "mark", "c/d"):
        write_whole(source / name, name.encode())
    before = len(bucket.proxy.requests)
    move_folder(source, target, mark="mark")
    assert list_files(source) == {}
    found = {name: read_bytes(target / name) for name in list_files(target)}
    assert found == {"b": b"b", "mark": b"mark", "c/d": b"c/d"}
    moved = [
        (each.method, each.object_name.rpartition("step/")[2])
        for each in bucket.proxy.requests[before:]
        if each.method in {"POST", "DELETE"}
    ]
    deleted, made = ([name for verb, name in moved if verb == one] for one in ("DELETE", "POST"))
    assert deleted[0] == "mark" == made[-1]
