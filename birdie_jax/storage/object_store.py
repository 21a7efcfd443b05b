"""Buckets by URL: which schemes there are, their libraries, and how their failures look to the program.

`make_path` is how a name that a user gives becomes a path; the functions of `files.py` read and write it.
Everything a store can do wrong is raised as `StoreError`, an OSError that names the object; the libraries
have tried again by then, for a minute or two, which is less than `train.hung_seconds`.
"""

import contextlib
import errno
import importlib
import logging
import os
from collections.abc import Iterator
from typing import Any

import fsspec
import fsspec.config
from etils import epath

from birdie_jax.config_errors import ConfigError
from birdie_jax.storage.messages import one_line, shown

REQUEST_SECONDS = 20
"""How long one request to a store may take before it is tried again."""

# Scheme -> the module that reads and writes it, and the extra of this package that brings it.
_SCHEMES = {"gs": ("gcsfs", "gcs"), "s3": ("s3fs", "s3")}
_LIBRARIES = frozenset(
    {"aiobotocore", "aiohttp", "botocore", "fsspec", "gcsfs", "google", "requests", "s3fs", "urllib3"}
)
# What another process writes has to be seen: listings are remembered for ever otherwise.
_OPTIONS: dict[str, dict[str, Any]] = {
    "gcs": {"use_listings_cache": False, "requests_timeout": REQUEST_SECONDS},
    "s3": {"use_listings_cache": False},
}


class StoreError(OSError):
    """A store does not do what it is asked for; the message names the object and what the store says."""


def is_remote(path: epath.PathLike) -> bool:
    """Tell whether `path` names an object of a store (`gs://...`) instead of a local file."""
    return "://" in os.fspath(path)


def make_path(name: epath.PathLike) -> epath.Path:
    """Return the path of a file or folder that a user names, on a disk or in a bucket.

    Raises:
        ConfigError: the name is a URL of another kind than `gs://bucket/...` and `s3://bucket/...`, or the
            library for it is not installed; says which extra brings it.
    """
    text = os.fspath(name)
    if not is_remote(text):
        return epath.Path(text)
    scheme, _, rest = text.partition("://")
    if scheme not in _SCHEMES or not rest.strip("/"):
        raise ConfigError(
            f"{shown(text)}: found a URL that cannot be used; allowed: gs://BUCKET/..., s3://BUCKET/... "
            "or a name of a file system"
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
        FileNotFoundError: there is no such object, or no such bucket.
        FileExistsError: there is one already, where there must be none.
        StoreError: anything else that the store or the network says, after trying again.
    """
    name = os.fspath(path)
    try:
        yield
    except (FileNotFoundError, FileExistsError) as error:
        if doing == "written" and isinstance(error, FileNotFoundError):
            bucket = name.partition("://")[2].partition("/")[0]
            raise StoreError(errno.EIO, f"cannot be written: there is no bucket {bucket}", name) from error
        code = errno.ENOENT if isinstance(error, FileNotFoundError) else errno.EEXIST
        raise type(error)(code, os.strerror(code), name) from error
    except StoreError:
        raise
    except Exception as error:
        if not _is_of_store(error):
            raise
        raise StoreError(errno.EIO, f"cannot be {doing}: {_in_words(error)}", name) from error


def _prepare(scheme: str) -> None:
    module, extra = _SCHEMES[scheme]
    protocol = "gcs" if scheme == "gs" else scheme
    for name, value in _OPTIONS[protocol].items():
        fsspec.config.conf.setdefault(protocol, {}).setdefault(name, value)
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
    # It prints tracebacks of what is raised to its caller as well.
    logging.getLogger(module).setLevel(logging.CRITICAL)


def _is_of_store(error: Exception) -> bool:
    """Tell whether an exception is one of a store's library or of the network, and no mistake here."""
    if isinstance(error, OSError):
        return True
    if type(error).__module__.partition(".")[0] in _LIBRARIES:
        return True
    # gcsfs raises these of an answer that it does not know.
    return isinstance(error, ValueError | RuntimeError | TimeoutError) and "Bad Request" in str(error)


def _in_words(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return one_line(text.splitlines()[0], 300)
