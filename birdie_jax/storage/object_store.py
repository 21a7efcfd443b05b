"""Buckets by URL: the schemes, their libraries, and the errors of their failures.

`make_path` converts a user's name to a path; the functions of `files.py` read and write it. Every failure
of a store raises `StoreError`, an OSError that names the object. The libraries have then retried for a
minute or two, which is less than `train.hung_seconds`.

gcsfs tries a request 6 times, with pauses of 31 to 36 s in total; a store may refuse or fail for this time.
A store that takes connections and is silent costs `REQUEST_SECONDS` a try, 126 s in all.
"""

import contextlib
import errno
import importlib
import logging
import os
import re
from collections.abc import Iterator
from typing import Any

import fsspec
import fsspec.config
from etils import epath

from birdie_jax.errors import ConfigError, NoBucketError, StoreError, one_line, shown, without_secrets

REQUEST_SECONDS = 15
"""How long a store may be silent, or take to connect, before a request is retried."""

TRANSFER_SECONDS = 120.0
"""How long one request may take while it transfers data; it is not retried after that."""

# Scheme -> the module that reads and writes it, and the extra of this package that installs it.
_SCHEMES = {"gs": ("gcsfs", "gcs"), "s3": ("s3fs", "s3")}
_LIBRARIES = frozenset(
    {"aiobotocore", "aiohttp", "botocore", "fsspec", "gcsfs", "google", "requests", "s3fs", "urllib3"}
)
# "gs:/bucket" is a local folder for pathlib, but users mean "gs://bucket".
_ONE_SLASH = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/(?!/)")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]*")
_URL = re.compile(r"https?://\S+")
# gcsfs's words for a refused request; the address follows, and the store's own words on the next line.
_REFUSALS = ("Forbidden:", "Bad Request:")


def is_remote(path: epath.PathLike) -> bool:
    """Return whether `path` names an object of a store (`gs://...`) instead of a local file."""
    return "://" in os.fspath(path)


def make_path(name: epath.PathLike) -> epath.Path:
    """Return the path of a file or folder that a user names, on a disk or in a bucket.

    Raises:
        ConfigError: the name is a URL other than `gs://bucket/...` and `s3://bucket/...`, or has a single
            slash, which would be a local folder, or the library for it is not installed. The message names
            the extra to install.
    """
    text = os.fspath(name)
    if _ONE_SLASH.match(text):
        text = without_secrets(text)
        scheme, _, rest = text.partition(":/")
        raise ConfigError(
            f"{shown(text)}: found one slash after {scheme}:; allowed: {shown(f'{scheme}://{rest}')}, "
            "or the absolute path of a local folder of that name"
        )
    if not is_remote(text):
        return epath.Path(text)
    scheme, _, rest = text.partition("://")
    bucket, *folders = rest.rstrip("/").split("/")
    if scheme not in _SCHEMES or not _BUCKET.fullmatch(bucket) or {"", ".", ".."} & set(folders):
        raise ConfigError(
            f"{shown(without_secrets(text))}: found a URL that cannot be used; allowed: gs://BUCKET/..., "
            "s3://BUCKET/... or a name of a file system"
        )
    _prepare(scheme)
    return epath.Path(text.rstrip("/"))


def absolute(path: epath.Path) -> epath.Path:
    """Return a path that does not depend on the working directory, as orbax requires; a URL never does."""
    return path if is_remote(path) else epath.Path(os.path.abspath(path))


def file_system(path: epath.PathLike) -> Any:
    """Return the fsspec file system of a remote path, which all paths of its scheme share.

    Raises:
        ConfigError: the library for the scheme is not installed.
    """
    scheme = os.fspath(path).partition("://")[0]
    _prepare(scheme)
    return fsspec.filesystem("gcs" if scheme == "gs" else scheme)


@contextlib.contextmanager
def store_errors(path: epath.PathLike, doing: str) -> Iterator[None]:
    """Raise the errors of a store's library as the equivalent errors of the system.

    Args:
        path: the object, named in the error.
        doing: the operation, in words: "read", "written".

    Raises:
        FileNotFoundError: there is no such object in the bucket.
        FileExistsError: the object exists, where there must be none.
        StoreError: there is no such bucket, or the store or the network fails after retries.
    """
    name = without_secrets(os.fspath(path))
    try:
        yield
    except FileExistsError as error:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name) from error
    except FileNotFoundError as error:
        # Only the bucket can be missing for a write; for other operations the answers are the same.
        if doing == "written" or not _has_bucket(path, doing):
            bucket = name.partition("://")[2].partition("/")[0]
            message = f"cannot be {doing}: there is no bucket {bucket}"
            raise NoBucketError(errno.EIO, message, name) from error
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name) from error
    except StoreError:
        raise
    except Exception as error:
        if not is_of_store(error):
            raise
        raise StoreError(errno.EIO, f"cannot be {doing}: {in_words(error)}", name) from error


def find_first(path: epath.PathLike) -> str | None:
    """Return the first, by name, of the objects whose names begin with that of `path`, or None.

    It costs one request, and distinguishes a missing bucket from an empty one. Call it within
    `store_errors`.

    Returns:
        The object's name within its bucket.

    Raises:
        FileNotFoundError: there is no such bucket.
        Exception: the error of the store's library.
    """
    scheme, _, rest = os.fspath(path).partition("://")
    bucket, _, prefix = rest.partition("/")
    store = file_system(path)
    if scheme == "s3":
        answer = store.call_s3("list_objects_v2", Bucket=bucket, Prefix=prefix, MaxKeys=1)
        return next((found["Key"] for found in answer.get("Contents", ())), None)
    page: dict[str, str] = {}
    while True:
        answer = store.call(
            "GET", "b/{}/o", bucket, prefix=prefix or None, maxResults=1, json_out=True, **page
        )
        for found in answer.get("items", ()):
            return found["name"]
        if "nextPageToken" not in answer:
            return None
        page = {"pageToken": answer["nextPageToken"]}


def begin_upload(path: epath.PathLike) -> None:
    """Begin to write an object in parts, and cancel: the store reports whether it may be written.

    No object is made, and an object of that name does not change. Call it within `store_errors`.

    Raises:
        Exception: the error of the store's library.
    """
    scheme, _, rest = os.fspath(path).partition("://")
    bucket, _, name = rest.partition("/")
    store = file_system(path)
    if scheme == "s3":
        begun = store.call_s3("create_multipart_upload", Bucket=bucket, Key=name)
        store.call_s3("abort_multipart_upload", Bucket=bucket, Key=name, UploadId=begun["UploadId"])
        return
    # The store drops an upload without parts by itself; only its address could be cancelled.
    address = store.base.replace("/storage/", "/upload/storage/") + "b/{}/o"
    store.call("POST", address, bucket, uploadType="resumable", name=name, json={"name": name})


def _has_bucket(path: epath.PathLike, doing: str) -> bool:
    """Return whether the bucket of a missing object exists."""
    try:
        find_first(path)
    except FileNotFoundError:
        return False
    except Exception as error:
        # Without the right to list, the answer about a missing object is correct.
        if isinstance(error, PermissionError) or str(error).startswith("Forbidden:"):
            return True
        if not is_of_store(error):
            raise
        name = without_secrets(os.fspath(path))
        raise StoreError(errno.EIO, f"cannot be {doing}: {in_words(error)}", name) from error
    return True


def _prepare(scheme: str) -> None:
    module, extra = _SCHEMES[scheme]
    # A query of the bucket's type needs a right that reading and writing do not need.
    os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    # With TensorFlow installed, epath would use its file system, and cache listings.
    os.environ.setdefault("EPATH_USE_TF", "0")
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{scheme}://: needs {module}, which is not installed; install birdie-jax with its extra: "
            f"pip install 'birdie-jax[{extra}]'"
        ) from error
    # Writes of another process must be visible: fsspec's cache of listings never expires.
    options: dict[str, Any] = {"use_listings_cache": False}
    if scheme == "gs":
        # A request that exceeds a limit of its whole time is not retried, and long transfers would end.
        timeout = importlib.import_module("aiohttp").ClientTimeout
        options["requests_timeout"] = timeout(
            total=TRANSFER_SECONDS, sock_connect=REQUEST_SECONDS, sock_read=REQUEST_SECONDS
        )
    for name, value in options.items():
        fsspec.config.conf.setdefault("gcs" if scheme == "gs" else scheme, {}).setdefault(name, value)
    # It also prints tracebacks of exceptions that it raises.
    logging.getLogger(module).setLevel(logging.CRITICAL)
    # It warns about each place without credentials; a request that needs them reports this itself.
    logging.getLogger("google.auth").setLevel(logging.ERROR)


def is_of_store(error: Exception) -> bool:
    """Return whether an exception comes from a store's library or the network, and not from a bug here."""
    if isinstance(error, OSError):
        return True
    if type(error).__module__.partition(".")[0] in _LIBRARIES:
        return True
    # gcsfs raises these for an unknown answer.
    return isinstance(error, ValueError | RuntimeError | TimeoutError) and "Bad Request" in str(error)


def in_words(error: BaseException) -> str:
    """Return a store's message on one line, without the addresses of its interface."""
    lines = [line.strip() for line in without_secrets(str(error)).splitlines()]
    if lines and lines[0].startswith(_REFUSALS):
        kind = "no permission" if lines[0].startswith("Forbidden") else "bad request"
        lines[0] = kind
    text = _URL.sub("URL", ": ".join(line for line in lines if line)).strip(" ,")
    if isinstance(error, TimeoutError) and len(text) < 2:
        return "no answer in time"
    return one_line(text or type(error).__name__, 300)
