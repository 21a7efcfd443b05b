"""Buckets by URL: which schemes there are, their libraries, and how their failures look to the program.

`make_path` is how a name that a user gives becomes a path; the functions of `files.py` read and write it.
Everything a store can do wrong is raised as `StoreError`, an OSError that names the object; the libraries
have tried again by then, for a minute or two, which is less than `train.hung_seconds`.

gcsfs tries a request 6 times, with pauses of 31 to 36 s together; so long may a store refuse or fail. One
that takes connections and is silent costs `REQUEST_SECONDS` a try, 126 s in all.
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
"""How long a store may be silent, or take to be connected to, before a request is tried again."""

TRANSFER_SECONDS = 120.0
"""How long one request may take as long as something is transferred; it is not tried again after that."""

# Scheme -> the module that reads and writes it, and the extra of this package that brings it.
_SCHEMES = {"gs": ("gcsfs", "gcs"), "s3": ("s3fs", "s3")}
_LIBRARIES = frozenset(
    {"aiobotocore", "aiohttp", "botocore", "fsspec", "gcsfs", "google", "requests", "s3fs", "urllib3"}
)
# "gs:/bucket" is a local folder for pathlib, and was meant as "gs://bucket" by everyone who ever wrote it.
_ONE_SLASH = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/(?!/)")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]*")
_URL = re.compile(r"https?://\S+")
# How gcsfs says that a request is refused; the address follows, and on the next line the store's own words.
_REFUSALS = ("Forbidden:", "Bad Request:")


def is_remote(path: epath.PathLike) -> bool:
    """Tell whether `path` names an object of a store (`gs://...`) instead of a local file."""
    return "://" in os.fspath(path)


def make_path(name: epath.PathLike) -> epath.Path:
    """Return the path of a file or folder that a user names, on a disk or in a bucket.

    Raises:
        ConfigError: the name is a URL of another kind than `gs://bucket/...` and `s3://bucket/...`, or one
            with a single slash, which would be a local folder, or the library for it is not installed; says
            which extra brings it.
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
    """Return a path that means the same in any working directory, as orbax asks for; a URL does already."""
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
    """Raise what the library of a store raises as the error of the system that it stands for.

    Args:
        path: the object, named in the error.
        doing: the operation, in words: "read", "written".

    Raises:
        FileNotFoundError: there is no such object in the bucket.
        FileExistsError: there is one already, where there must be none.
        StoreError: there is no such bucket, or anything else that the store or the network says, after
            trying again.
    """
    name = without_secrets(os.fspath(path))
    try:
        yield
    except FileExistsError as error:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name) from error
    except FileNotFoundError as error:
        # Nothing else is missing where something is written; for the rest the answers are the same.
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

    It costs one request, and tells a bucket that is not there from an empty one. Call it within
    `store_errors`.

    Returns:
        The object's name within its bucket.

    Raises:
        FileNotFoundError: there is no such bucket.
        Exception: what the library of the store raises.
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
    """Begin to write an object in parts, and give it up: the store says whether it may be written.

    No object is made, and one of that name stays as it is. Call it within `store_errors`.

    Raises:
        Exception: what the library of the store raises.
    """
    scheme, _, rest = os.fspath(path).partition("://")
    bucket, _, name = rest.partition("/")
    store = file_system(path)
    if scheme == "s3":
        begun = store.call_s3("create_multipart_upload", Bucket=bucket, Key=name)
        store.call_s3("abort_multipart_upload", Bucket=bucket, Key=name, UploadId=begun["UploadId"])
        return
    # One that gets no part is forgotten by itself; its address alone could be cancelled.
    address = store.base.replace("/storage/", "/upload/storage/") + "b/{}/o"
    store.call("POST", address, bucket, uploadType="resumable", name=name, json={"name": name})


def _has_bucket(path: epath.PathLike, doing: str) -> bool:
    """Tell whether there is the bucket in which something was not found."""
    try:
        find_first(path)
    except FileNotFoundError:
        return False
    except Exception as error:
        # Who may read what is there and list nothing has been told the truth.
        if isinstance(error, PermissionError) or str(error).startswith("Forbidden:"):
            return True
        if not is_of_store(error):
            raise
        name = without_secrets(os.fspath(path))
        raise StoreError(errno.EIO, f"cannot be {doing}: {in_words(error)}", name) from error
    return True


def _prepare(scheme: str) -> None:
    module, extra = _SCHEMES[scheme]
    # Asking what kind of bucket it is takes a right that reading and writing do not take.
    os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    # With TensorFlow installed, epath would go through its file system, and remember listings.
    os.environ.setdefault("EPATH_USE_TF", "0")
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{scheme}://: needs {module}, which is not installed; install birdie-jax with its extra: "
            f"pip install 'birdie-jax[{extra}]'"
        ) from error
    # What another process writes has to be seen: listings are remembered for ever otherwise.
    options: dict[str, Any] = {"use_listings_cache": False}
    if scheme == "gs":
        # A limit of the whole request would not be tried again, and would end long transfers.
        timeout = importlib.import_module("aiohttp").ClientTimeout
        options["requests_timeout"] = timeout(
            total=TRANSFER_SECONDS, sock_connect=REQUEST_SECONDS, sock_read=REQUEST_SECONDS
        )
    for name, value in options.items():
        fsspec.config.conf.setdefault("gcs" if scheme == "gs" else scheme, {}).setdefault(name, value)
    # It prints tracebacks of what is raised to its caller as well.
    logging.getLogger(module).setLevel(logging.CRITICAL)
    # It warns of each place without credentials; a request that needs them says so itself.
    logging.getLogger("google.auth").setLevel(logging.ERROR)


def is_of_store(error: Exception) -> bool:
    """Tell whether an exception is one of a store's library or of the network, and no mistake here."""
    if isinstance(error, OSError):
        return True
    if type(error).__module__.partition(".")[0] in _LIBRARIES:
        return True
    # gcsfs raises these of an answer that it does not know.
    return isinstance(error, ValueError | RuntimeError | TimeoutError) and "Bad Request" in str(error)


def in_words(error: BaseException) -> str:
    """Return what a store says, on one line, without the addresses of its interface."""
    lines = [line.strip() for line in without_secrets(str(error)).splitlines()]
    if lines and lines[0].startswith(_REFUSALS):
        kind = "no permission" if lines[0].startswith("Forbidden") else "bad request"
        lines[0] = kind
    text = _URL.sub("URL", ": ".join(line for line in lines if line)).strip(" ,")
    if isinstance(error, TimeoutError) and len(text) < 2:
        return "no answer in time"
    return one_line(text or type(error).__name__, 300)
