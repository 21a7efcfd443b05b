"""Files in a bucket of S3's protocol: whole, created once, listed as they are; and what is refused."""

import subprocess
import sys

import pytest

from birdie_jax.errors import StoreError
from birdie_jax.storage import (
    download,
    exists,
    list_files,
    list_names,
    make_path,
    move_folder,
    open_bytes,
    read_bytes,
    remove,
    upload,
    write_whole,
)
from birdie_jax.storage.files import prove_writable
from birdie_jax.storage.object_store import file_system
from tests.forked_verbs import run_commands
from tests.pages.page_commands import REPOSITORY
from tests.s3_server import SECRET


@pytest.mark.parametrize("contents", [b"", b"x", bytes(range(256)) * 20_000], ids=len)
def test_written_read_replaced_and_copied(s3_url, tmp_path, contents):
    path = make_path(s3_url) / "a b/#1.json"
    write_whole(path, b"old and longer" * 9)
    write_whole(path, contents)
    assert read_bytes(path) == contents
    with open_bytes(path) as file:
        assert file.read(2) + file.read() == contents
    download(path, tmp_path / "here")
    upload(tmp_path / "here", make_path(s3_url) / "back")
    assert read_bytes(f"{s3_url}/back") == contents
    assert list_files(s3_url) == {"a b/#1.json": len(contents), "back": len(contents)}


def test_a_proof_that_an_object_can_be_written_changes_nothing(s3_url):
    write_whole(f"{s3_url}/a", b"old")
    for name in ("a", "b", "c d/#1"):
        prove_writable(f"{s3_url}/{name}")
    assert list_files(s3_url) == {"a": 3}
    assert read_bytes(f"{s3_url}/a") == b"old"
    found = file_system(s3_url).call_s3("list_multipart_uploads", Bucket=s3_url.split("/")[2])
    assert not found.get("Uploads")


def test_exists_returns_whether_an_object_exists(s3_url):
    for name in ("file", "file-2", "folder/x", "other-2", "other/x"):
        write_whole(f"{s3_url}/{name}", b"1")
    there = {"file": True, "folder": True, "folder/x": True, "other": True, "none": False, "file-": False}
    assert {name: exists(f"{s3_url}/{name}") for name in there} == there
    assert list_names(s3_url) == ["file", "file-2", "folder", "other", "other-2"]
    assert list_names(f"{s3_url}/none") == []
    move_folder(make_path(f"{s3_url}/folder"), make_path(f"{s3_url}/moved"))
    remove(f"{s3_url}/file")
    remove(f"{s3_url}/file")
    assert list(list_files(s3_url)) == ["file-2", "moved/x", "other-2", "other/x"]
    with pytest.raises(FileNotFoundError):
        read_bytes(f"{s3_url}/file")


def test_listings_show_changes_of_another_process(s3_url):
    assert list_names(s3_url) == []
    program = (
        "import sys; from birdie_jax.storage import remove, write_whole\n"
        "write_whole(sys.argv[1], b'x') if sys.argv[2] == 'write' else remove(sys.argv[1])\n"
    )
    for doing, expected in (("write", ["x"]), ("remove", [])):
        subprocess.run([sys.executable, "-c", program, f"{s3_url}/x", doing], cwd=REPOSITORY, check=True)
        assert list_names(s3_url) == expected


@pytest.mark.parametrize(
    "operation", [read_bytes, exists, list_names, list_files, lambda p: write_whole(p, b"")]
)
def test_a_missing_bucket_is_named(s3_server, operation):
    with pytest.raises(
        StoreError, match=r"^s3://no-such-bucket-1/a: .*there is no bucket no-such-bucket-1$"
    ):
        operation("s3://no-such-bucket-1/a")


def test_a_store_that_refuses_is_one_line_without_credentials(s3_url, monkeypatch):
    store = file_system(s3_url)
    monkeypatch.setattr(store, "retries", 1)

    async def refused(*arguments, **keywords):
        raise PermissionError(f"Access Denied: X-Amz-Security-Token={SECRET}")

    monkeypatch.setattr(store, "_call_s3", refused)
    monkeypatch.setattr(store, "call_s3", refused)
    with pytest.raises(StoreError) as raised:
        write_whole(f"{s3_url}/a", b"x")
    (line,) = str(raised.value).splitlines()
    assert "cannot be written: Access Denied" in line and SECRET not in line


def test_a_workdir_there_is_refused_in_one_line(s3_url):
    ((status, stdout, stderr),) = run_commands(
        [("train", "--config=configs/tiny.py", f"--workdir={s3_url}")]
    )
    assert (status, stdout) == (2, "")
    (line,) = stderr.splitlines()
    assert line.startswith(
        f"birdie_jax.train: --workdir: found {s3_url}; allowed: a folder or gs://BUCKET/"
    )
