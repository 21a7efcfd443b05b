"""Replace or remove objects of Cloud Storage only at a known generation.

A writer reads an object's generation, checks that it may still write the object, and writes at that
generation. So it never overwrites a later write by another writer. gcsfs can only create objects.
"""

import errno
import functools
import os
import secrets
from pathlib import Path
from typing import Any

from etils import epath

from birdie_jax.errors import NoBucketError, StoreError
from birdie_jax.storage.object_store import REQUEST_SECONDS, file_system, store_errors

# The key of an object's metadata that identifies the call that wrote it.
_WRITER = "birdie-writer"
# How long the client retries; less than train.hung_seconds.
WRITE_SECONDS = 100.0
_NOT_FOUND, _PRECONDITION_FAILED = 404, 412
# The size of one part of a long upload. Each part is sent and retried separately.
_PART_BYTES = 16 << 20


def find_generation(path: epath.PathLike) -> int:
    """Return the generation of an object; 0 if there is none.

    Raises:
        StoreError: the store does not answer, or has no such bucket.
    """
    try:
        with store_errors(path, "looked for"):
            return int(file_system(path).info(os.fspath(path))["generation"])
    except FileNotFoundError:
        return 0


def replace_at(
    path: epath.PathLike, generation: int, contents: bytes | Path, seconds: float | None = None
) -> int | None:
    """Replace an object of this generation, or create an object if it is 0.

    Args:
        path: the object.
        generation: the generation to replace; 0: there is no object.
        contents: the new contents, or a local file with them.
        seconds: how long the client retries; None: `WRITE_SECONDS`.

    Returns:
        The new generation, or None if the object had another one and was not replaced.

    Raises:
        StoreError: the store refuses, or does not answer, or has no such bucket.
    """
    blob, limits = _blob(path, seconds)
    token = secrets.token_hex(8)
    blob.metadata = {_WRITER: token}
    limits |= {"if_generation_match": generation, "content_type": "application/octet-stream"}
    try:
        with store_errors(path, "written"):
            if isinstance(contents, Path):
                blob.chunk_size = _PART_BYTES
                blob.upload_from_filename(str(contents), **limits)
            else:
                blob.upload_from_string(contents, **limits)
    except StoreError as error:
        if _is_status(error, _NOT_FOUND):
            message = f"cannot be written: there is no bucket {blob.bucket.name}"
            raise NoBucketError(errno.EIO, message, os.fspath(path)) from error
        if not _is_status(error, _PRECONDITION_FAILED):
            raise
        # The answer to our own write may have been lost, and the write retried.
        return _find_own(path, token)
    return int(blob.generation)


def remove_at(path: epath.PathLike, generation: int) -> None:
    """Remove an object if it still has this generation.

    Raises:
        StoreError: the store refuses, or does not answer.
    """
    blob, limits = _blob(path)
    try:
        with store_errors(path, "removed"):
            blob.delete(if_generation_match=generation, **limits)
    except StoreError as error:
        if not _is_status(error, _PRECONDITION_FAILED) and not _is_status(error, _NOT_FOUND):
            raise


def list_generations(folder: epath.PathLike) -> dict[str, int]:
    """Return the generation of every object in a folder, by its name in the folder.

    Raises:
        StoreError: the store does not answer, or has no such bucket.
    """
    with store_errors(folder, "listed"):
        found = file_system(folder).find(os.fspath(folder), detail=True)
    start = len(os.fspath(folder).partition("://")[2]) + 1
    return {name[start:]: int(info["generation"]) for name, info in sorted(found.items())}


def _blob(path: epath.PathLike, seconds: float | None = None) -> tuple[Any, dict[str, Any]]:
    """Return the Cloud Storage client's object, and the time limits of its requests."""
    # Imported here, because it needs an extra.
    from google.cloud.storage.retry import DEFAULT_RETRY

    bucket, _, name = os.fspath(path).partition("://")[2].partition("/")
    with store_errors(path, "opened"):
        # A forked process, or another server, needs its own connections.
        blob = _client(os.getpid(), os.environ.get("STORAGE_EMULATOR_HOST")).bucket(bucket).blob(name)
    retry = DEFAULT_RETRY.with_timeout(WRITE_SECONDS if seconds is None else seconds)
    return blob, {"timeout": REQUEST_SECONDS, "retry": retry}


@functools.cache
def _client(process: int, server: str | None) -> Any:
    from google.cloud import storage

    del process, server
    return storage.Client()


def _find_own(path: epath.PathLike, token: str) -> int | None:
    """Return the generation of an object if the call with this token wrote it; else None."""
    try:
        with store_errors(path, "read"):
            found = file_system(path).info(os.fspath(path))
    except FileNotFoundError:
        return None
    return int(found["generation"]) if found.get("metadata", {}).get(_WRITER) == token else None


def _is_status(error: StoreError, status: int) -> bool:
    return getattr(error.__cause__, "code", None) == status
