"""URLs of buckets: accepted and refused ones, missing extras, and secrets in messages."""

import json
import os
import subprocess
import sys
import warnings

import fsspec.config
import pytest

from birdie_jax.errors import ConfigError, StoreError, without_secrets
from birdie_jax.storage import is_remote, make_path, object_store, read_bytes, write_whole
from birdie_jax.storage.object_store import file_system, store_errors
from tests.pages.page_commands import REPOSITORY


@pytest.mark.parametrize(
    "name",
    [
        *("gs://bucket", "gs://bucket/", "gs://my.bucket-1/runs/a b/", "gs://bucket/data/part-?.jsonl"),
        *("/runs/a", "runs/a", "runs/gs:/b", "/gs:/b", "a:b", "", "."),
    ],
)
def test_buckets_and_names_of_the_file_system(name):
    assert is_remote(make_path(name)) == name.startswith("gs://")
    assert os.fspath(make_path(name)) == (name.rstrip("/") or ".")


@pytest.mark.parametrize(
    "name",
    [
        *("gs://", "gs:///", "gs:///runs", "gs://bucket//runs", "gs://bucket/../other", "gs://bucket/./a"),
        *("az://bucket/x", "http://host/x", "https://storage.googleapis.com/b/x", "file:///x", "GS://b/x"),
        *("gs://My Bucket/x", "gs://bucket\n/x", "://", "gs://b\u00fccket/x", "gs:// bucket/x"),
    ],
)
def test_an_invalid_url_is_refused(name):
    with pytest.raises(ConfigError) as raised:
        make_path(name)
    (line,) = str(raised.value).splitlines()
    assert line.startswith(repr(name))
    assert "allowed: gs://BUCKET/..., s3://BUCKET/... or a name of a file system" in line


@pytest.mark.parametrize("scheme", ["gs", "s3", "az", "http"])
def test_one_slash_makes_no_local_folder(scheme):
    with pytest.raises(ConfigError) as raised:
        make_path(f"{scheme}:/bucket/runs")
    assert str(raised.value) == (
        f"'{scheme}:/bucket/runs': found one slash after {scheme}:; allowed: '{scheme}://bucket/runs', "
        "or the absolute path of a local folder of that name"
    )


@pytest.mark.parametrize(("scheme", "module", "extra"), [("gs", "gcsfs", "gcs"), ("s3", "s3fs", "s3")])
def test_missing_library_is_named_with_its_extra(monkeypatch, scheme, module, extra):
    monkeypatch.setitem(sys.modules, module, None)
    for use in (make_path, file_system):
        with pytest.raises(ConfigError) as raised:
            use(f"{scheme}://bucket/x")
        assert str(raised.value) == (
            f"{scheme}://: needs {module}, which is not installed; install birdie-jax with its extra: "
            f"pip install 'birdie-jax[{extra}]'"
        )


@pytest.mark.slow
def test_local_paths_need_no_library(tmp_path):
    script = (
        "import sys\n"
        "sys.modules.update(gcsfs=None, s3fs=None)\n"
        "from birdie_jax.storage import make_path, write_whole, read_bytes, list_names\n"
        "write_whole(make_path(sys.argv[1]), b'x')\n"
        "assert not {'google.cloud.storage', 'aiohttp'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script, tmp_path / "x"], cwd=REPOSITORY, check=True)


SECRET = "s3cretvalue0"


@pytest.mark.parametrize(
    "text",
    [
        f"gs://user:{SECRET}@bucket/x",
        f"https://host/b/x?X-Goog-Signature={SECRET}&X-Goog-Credential={SECRET}",
        f"https://host/upload/b?uploadType=resumable&upload_id={SECRET}",
        f"gs://bucket/x?token={SECRET}",
        f"az://bucket/x?sig={SECRET}",
        f"gs:/bucket/x?access_token={SECRET}",
        f"Authorization: Bearer {SECRET}",
        f"ya29.{SECRET}",
        json.dumps({"client_secret": SECRET, "refresh_token": SECRET, "private_key": SECRET}),
    ],
)
def test_secrets_are_not_shown(text):
    assert SECRET not in without_secrets(text)
    # Nor where a URL is refused, or what a store says of it is raised.
    if "://" in text or ":/" in text:
        try:
            make_path(text)
        except ConfigError as error:
            assert SECRET not in str(error)
    with pytest.raises(StoreError) as raised, store_errors(text, "read"):
        raise OSError(f"something about {text}")
    assert SECRET not in str(raised.value) + repr(raised.value)


@pytest.mark.parametrize(
    "text", ["gs://bucket/key=5/tokenizer.model", "tokenizer: cannot be read", "a@b", "monkey=3, tokens: 7"]
)
def test_text_without_secrets_is_shown(text):
    assert without_secrets(text) == text


def test_no_message_contains_the_token_of_the_environment(bucket, hasty, monkeypatch):
    """Whatever the server does with it."""
    monkeypatch.setattr(file_system(bucket.root).credentials, "apply", lambda out: out.update(_BEARER))
    for status in (400, 401, 403, 404, 412, 429, 500, 503):
        bucket.proxy.heal()
        bucket.proxy.answer(status)
        for use in (read_bytes, lambda path: write_whole(path, b"x")):
            with pytest.raises(OSError) as raised:
                use(bucket.root / "x")
            assert SECRET not in f"{raised.value}{raised.value!r}"


_BEARER = {"Authorization": f"Bearer {SECRET}"}


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError("Forbidden: http://h/b/o/x\nsa@x has no right"), "no permission: sa@x has"),
        (OSError("Forbidden: b/o"), "gs://b/x: cannot be read: no permission"),
        (ValueError("Bad Request: b/o\ninvalid name"), "bad request: invalid name"),
        (TimeoutError(), "no answer in time"),
        (fsspec.FSTimeoutError(), "no answer in time"),
        (OSError("one\ntwo\x1b[31m"), "one: two\\x1b[31m"),
    ],
    ids=range(6),
)
def test_a_message_of_a_store_is_one_line(error, words):
    with pytest.raises(StoreError) as raised, store_errors("gs://b/x", "read"):
        raise error
    (line,) = str(raised.value).splitlines()
    assert words in line and "gs://b/x" in line and "http://" not in line


@pytest.mark.parametrize("error", [ValueError("a mistake"), KeyError("x"), RuntimeError("y"), TypeError()])
def test_mistakes_of_the_program_are_not_errors_of_the_store(error):
    with pytest.raises(type(error)), store_errors("gs://b/x", "read"):
        raise error


def test_options_of_the_user_are_kept(monkeypatch):
    """FSSPEC_GCS sets them, as everywhere else."""
    monkeypatch.setitem(fsspec.config.conf, "gcs", {"project": "mine", "requests_timeout": 3.0})
    make_path("gs://bucket/x")
    kept = {"project": "mine", "requests_timeout": 3.0, "use_listings_cache": False}
    assert fsspec.config.conf["gcs"] == kept


def test_limits_of_a_request_come_from_the_module(bucket, monkeypatch):
    monkeypatch.setitem(fsspec.config.conf, "gcs", {})
    monkeypatch.setattr(object_store, "REQUEST_SECONDS", 0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        limits = file_system(bucket.root).requests_timeout
    assert (limits.sock_connect, limits.sock_read) == (0.5, 0.5)
    assert limits.total == object_store.TRANSFER_SECONDS


@pytest.mark.slow
def test_nothing_is_printed_whatever_fails(bucket):
    """Libraries log tracebacks, warn of sessions left open, and of projects that are not set."""
    bucket.proxy.answer(403, method="GET")
    bucket.proxy.reset_answer(method="POST", times=1)
    script = (
        "import sys\n"
        "from birdie_jax.storage import make_path, read_bytes, write_whole\n"
        "path = make_path(sys.argv[1])\n"
        "write_whole(path, b'x')\n"
        "try:\n"
        "    read_bytes(path)\n"
        "except OSError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "default", "-c", script, bucket.root / "x"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{bucket.root}/x: cannot be read: no permission: the proxy was set")
