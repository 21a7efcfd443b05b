"""Buckets by URL: the schemes, their libraries, and their errors.

`make_path` converts a user's name to a path, which the functions of `files.py` read and write. The
libraries retry a failing request for one or two minutes, which is less than `train.hung_seconds`. After
that, `StoreError` is raised, an OSError that names the object.

gcsfs tries a request 6 times, with pauses of 31 to 36 s in total. A store may refuse or fail for this time.
A store that accepts connections but does not answer costs `REQUEST_SECONDS` a try, 126 s in total.
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
"""The seconds for which a store may be silent, or take to connect, before a request is retried."""

TRANSFER_SECONDS = 120.0
"""The seconds that a request may take while it transfers data; it is not retried after that."""

# Scheme -> the module that reads and writes it, and the extra of this package that installs it.
_SCHEMES = {"gs": ("gcsfs", "gcs"), "s3": ("s3fs", "s3")}
_LIBRARIES = frozenset(
    {"aiobotocore", "aiohttp", "botocore", "fsspec", "gcsfs", "google", "requests", "s3fs", "urllib3"}
)
# "gs:/bucket" is a local folder for pathlib, but users mean "gs://bucket".
_ONE_SLASH = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/(?!/)")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]*")
_URL = re.compile(r"https?://\S+")
# gcsfs begins the message of a refused request like this. The address follows, then a line from the store.
_REFUSALS = ("Forbidden:", "Bad Request:")


def is_remote(path: epath.PathLike) -> bool:
    """Return whether `path` names an object of a store (`gs://...`) instead of a local file."""
    return "://" in os.fspath(path)


def make_path(name: epath.PathLike) -> epath.Path:
    """Return the path of a file or folder that a user names, on a disk or in a bucket.

    Raises:
        ConfigError: the name is a URL other than `gs://bucket/...` and `s3://bucket/...`, or has a single
            slash, which would mean a local folder, or the library for the URL is not installed. In the last
            case, the message names the extra to install.
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
    """Return the absolute path of a local path, as orbax requires; return a URL unchanged."""
    return path if is_remote(path) else epath.Path(os.path.abspath(path))


def file_system(path: epath.PathLike) -> Any:
    """Return the fsspec file system of a remote path; all paths of a scheme share it.

    Raises:
        ConfigError: the library for the scheme is not installed.
    """
    scheme = os.fspath(path).partition("://")[0]
    _prepare(scheme)
    return fsspec.filesystem("gcs" if scheme == "gs" else scheme)


@contextlib.contextmanager
def store_errors(path: epath.PathLike, doing: str) -> Iterator[None]:
    """Convert the errors of a store's library to the equivalent system errors.

    Args:
        path: the object, named in the error.
        doing: the operation, in words: "read", "written".

    Raises:
        FileNotFoundError: there is no such object in the bucket.
        FileExistsError: the object exists, but must not.
        StoreError: there is no such bucket, or the store or the network fails after retries.
    """
    name = without_secrets(os.fspath(path))
    try:
        yield
    except FileExistsError as error:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name) from error
    except FileNotFoundError as error:
        # For a write, only the bucket can be missing. For other operations, the store's answer is the same.
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
    """Return the first object, by name, whose name begins with that of `path`; None if there is none.

    This takes one request, and distinguishes a missing bucket from an empty one. Call it within
    `store_errors`.

    Returns:
        The name of the object in its bucket.

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
    """Begin an upload of an object in parts, and cancel it, to check that the object may be written.

    This creates no object, and does not change an existing one. Call it within `store_errors`.

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
    # The store drops an upload without parts by itself, so do not cancel it.
    address = store.base.replace("/storage/", "/upload/storage/") + "b/{}/o"
    store.call("POST", address, bucket, uploadType="resumable", name=name, json={"name": name})


def _has_bucket(path: epath.PathLike, doing: str) -> bool:
    """Return whether the bucket of a missing object exists."""
    try:
        find_first(path)
    except FileNotFoundError:
        return False
    except Exception as error:
        # Without permission to list the bucket, assume that only the object is missing.
        if isinstance(error, PermissionError) or str(error).startswith("Forbidden:"):
            return True
        if not is_of_store(error):
            raise
        name = without_secrets(os.fspath(path))
        raise StoreError(errno.EIO, f"cannot be {doing}: {in_words(error)}", name) from error
    return True


def _prepare(scheme: str) -> None:
    module, extra = _SCHEMES[scheme]
    # A query of the bucket's type needs a permission that reading and writing do not need.
    os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    # If TensorFlow is installed, epath would use TensorFlow's file system, which caches listings.
    os.environ.setdefault("EPATH_USE_TF", "0")
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{scheme}://: needs {module}, which is not installed; install birdie-jax with its extra: "
            f"pip install 'birdie-jax[{extra}]'"
        ) from error
    # Writes of other processes must be visible, but fsspec's cache of listings never expires.
    options: dict[str, Any] = {"use_listings_cache": False}
    if scheme == "gs":
        # A request that exceeds the limit of its total time is not retried, so this limit is long.
        timeout = importlib.import_module("aiohttp").ClientTimeout
        options["requests_timeout"] = timeout(
            total=TRANSFER_SECONDS, sock_connect=REQUEST_SECONDS, sock_read=REQUEST_SECONDS
        )
    for name, value in options.items():
        fsspec.config.conf.setdefault("gcs" if scheme == "gs" else scheme, {}).setdefault(name, value)
    # The library also logs tracebacks of the exceptions that it raises.
    logging.getLogger(module).setLevel(logging.CRITICAL)
    # google.auth warns about each place without credentials; a request that needs them fails by itself.
    logging.getLogger("google.auth").setLevel(logging.ERROR)


def is_of_store(error: Exception) -> bool:
    """Return whether an exception comes from a store's library or the network, not from a bug here."""
    if isinstance(error, OSError):
        return True
    if type(error).__module__.partition(".")[0] in _LIBRARIES:
        return True
    # gcsfs raises these exceptions for an unknown answer.
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
