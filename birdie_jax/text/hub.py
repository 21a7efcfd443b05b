"""Data sets of the Hugging Face hub: pinned to a commit, listed, and read in parts over HTTP.

    hf://datasets/ORG/NAME[@REVISION][/PATH]

This is our own client. It reads the token only from HF_TOKEN and the address only from HF_ENDPOINT, retries
like the other stores, and has no cache, telemetry or login. A commit never changes, so the files that are
read are the files that were listed. The protocol: https://huggingface.co/docs/hub/api.
"""

import datetime
import email.utils
import errno
import functools
import http.client
import io
import json
import os
import random
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from email.message import Message
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from birdie_jax.errors import DataError, StoreError, one_line, shown, without_secrets

SCHEME = "hf://"
DEFAULT_ENDPOINT = "https://huggingface.co"

TRIES = 6
REQUEST_SECONDS = 15
# The hub limits the requests per five minutes.
_MAX_PAUSE_SECONDS = 300.0
_TRIED_AGAIN = frozenset({408, 429, 500, 502, 503, 504})
# At 200 ms per request this is 40 MB/s, faster than tokenization. Parquet reads at several positions.
_BLOCK_BYTES = 8 << 20
_BLOCKS_KEPT = 4
_BUFFER_BYTES = 1 << 20

_URL = re.compile(
    r"hf://datasets/(?P<name>[\w.-]+/[\w.-]+)(?:@(?P<revision>refs/(?:convert|pr)/[\w.-]+|[^/@]+))?"
    r"(?:/(?P<path>[^@]*|.*))?"
)
_ALLOWED = "hf://datasets/ORG/NAME[@REVISION][/PATH]"
_NEXT_PAGE = re.compile(r"<([^>]*)>\s*;\s*rel=\"?next")


class HubEntry(NamedTuple):
    """A file of a data set.

    Attributes:
        size: the number of its bytes.
        checksum: the kind and value of the hub's hash of its contents.
    """

    size: int
    checksum: str


def is_hub(url: object) -> bool:
    """Return whether a name is a URL of the hub."""
    return str(url).startswith(SCHEME)


def pin(url: str, commit: str = "") -> tuple[str, str]:
    """Return a URL of the hub with its revision replaced by a commit, and the commit.

    Args:
        url: the URL, with any revision or none.
        commit: the commit; empty to query the hub for the newest one of the revision.

    Raises:
        DataError: the URL is malformed, the data set or revision does not exist, access is denied, or the
            hub does not answer.
    """
    parts = _URL.fullmatch(url.rstrip("/"))
    segments = ((parts and parts["path"]) or "").split("/") if parts else []
    if parts is None or {".", ".."} & set(segments) or (parts["path"] and "" in segments):
        raise DataError(
            f"input {shown(without_secrets(url))}: is not the URL of a data set; allowed: {_ALLOWED}"
        )
    if not commit:
        revision = quote(unquote(parts["revision"] or "main"), safe="")
        what = f"hf://datasets/{parts['name']}" + (f"@{parts['revision']}" if parts["revision"] else "")
        answer, _ = _get_json(f"/api/datasets/{parts['name']}/revision/{revision}", what)
        commit = answer.get("sha", "") if isinstance(answer, dict) else ""
        if not re.fullmatch(r"[0-9a-f]{40,64}", str(commit)):
            raise DataError(f"{what}: the hub names no commit of it; found {shown(commit)}")
    path = f"/{parts['path']}" if parts["path"] else ""
    return f"hf://datasets/{parts['name']}@{commit}{path}", commit


def split_root(url: str) -> tuple[str, str]:
    """Split a pinned URL into the root of its data set and the path within it."""
    segments = url.removeprefix(SCHEME).split("/")
    return SCHEME + "/".join(segments[:3]), "/".join(segments[3:])


def list_files_below(url: str) -> dict[str, HubEntry]:
    """Return the files below a folder, or the file with that name, by path within the data set.

    Args:
        url: the pinned URL of the folder or file.

    Raises:
        DataError: access is denied, or the hub does not answer.
    """
    root, path = split_root(url)
    found = _list(root, path, recursive=True)
    if found is None and path:
        # The hub lists only folders.
        siblings = _list(root, path.rpartition("/")[0], recursive=False) or {}
        found = {name: entry for name, entry in siblings.items() if name == path}
    return found or {}


def open_file(url: str, size: int) -> io.BufferedReader:
    """Open a file of a data set.

    Reading raises a DataError if access is denied, and a StoreError if the hub or the network fails.

    Args:
        url: the pinned URL of the file.
        size: the number of its bytes.
    """
    file: Any = _HubFile(url, size)
    return io.BufferedReader(file, _BUFFER_BYTES)


class _HubFile(io.RawIOBase):
    """A file of a data set at a commit, read in blocks; the last few blocks are cached."""

    def __init__(self, url: str, size: int):
        super().__init__()
        self._url = url
        self._size = size
        self._position = 0
        self._block = functools.lru_cache(_BLOCKS_KEPT)(self._fetch)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        if start + offset < 0:
            raise OSError(errno.EINVAL, "found a position before the beginning of the file", self._url)
        self._position = start + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer) -> int:
        if self._position >= self._size:
            return 0
        number, offset = divmod(self._position, _BLOCK_BYTES)
        part = self._block(number)[offset : offset + len(buffer)]
        buffer[: len(part)] = part
        self._position += len(part)
        return len(part)

    def _fetch(self, number: int) -> bytes:
        start = number * _BLOCK_BYTES
        end = min(start + _BLOCK_BYTES, self._size)
        root, path = split_root(self._url)
        name, _, commit = root.removeprefix(SCHEME).partition("@")
        part, _ = _get(f"/{name}/resolve/{commit}/{quote(path)}", self._url, (start, end))
        return part


def _list(root: str, folder: str, *, recursive: bool) -> dict[str, HubEntry] | None:
    """Return the files of a folder; None if there is no such folder."""
    name, _, commit = root.removeprefix(SCHEME).partition("@")
    address = f"/api/{name}/tree/{commit}" + (f"/{quote(folder)}" if folder else "")
    what = f"{root}/{folder}".rstrip("/")
    query, found = f"?recursive={str(recursive).lower()}", {}
    while query:
        try:
            entries, headers = _get_json(address + query, what)
        except DataError as error:
            if isinstance(error.__cause__, urllib.error.HTTPError) and error.__cause__.code == 404:
                return None
            raise
        try:
            found |= dict(_parse_entry(entry) for entry in entries if entry["type"] == "file")
        except (TypeError, KeyError, ValueError) as error:
            raise DataError(f"{what}: the hub's list of files cannot be read: {error!r}") from error
        following = _NEXT_PAGE.search(headers.get("Link", ""))
        # Only the query is used: the token is sent only to HF_ENDPOINT, whatever host the link names.
        query = f"?{urlsplit(following[1]).query}" if following else ""
    return found


def _parse_entry(entry: dict[str, Any]) -> tuple[str, HubEntry]:
    large = entry.get("lfs")
    checksum = f"sha256 {large['oid']}" if large else f"git {entry['oid']}"
    return str(entry["path"]), HubEntry(int(entry["size"]), checksum)


def _get_json(address: str, what: str) -> tuple[Any, Message]:
    contents, headers = _get(address, what)
    try:
        return json.loads(contents), headers
    except (ValueError, RecursionError) as error:
        raise DataError(f"{what}: the response of {_endpoint()} is not JSON: {error}") from error


def _get(address: str, what: str, interval: tuple[int, int] | None = None) -> tuple[bytes, Message]:
    """Return the contents of an address of the hub and the headers of the response, with retries.

    Args:
        address: the path of the resource on the hub.
        what: the name of the data set or file, for messages.
        interval: the first byte and the exclusive end; None: all bytes.

    Raises:
        DataError: the resource does not exist, or access is denied.
        StoreError: the hub or the network failed on every try.
    """
    headers = {"User-Agent": "birdie-jax"} | _authorization()
    if interval:
        headers["Range"] = f"bytes={interval[0]}-{interval[1] - 1}"
    request = urllib.request.Request(_endpoint() + address, headers=headers)
    for pause in _pauses():
        wanted = 0.0
        try:
            with _opener().open(request, timeout=REQUEST_SECONDS) as answer:
                contents = answer.read()
                if interval and (answer.status != 206 or len(contents) != interval[1] - interval[0]):
                    failure = (
                        f"found {len(contents)} bytes and status {answer.status} for {headers['Range']}"
                    )
                else:
                    return contents, answer.headers
        except urllib.error.HTTPError as error:
            with error:
                if error.code not in _TRIED_AGAIN:
                    raise DataError(f"{what}: {_refusal(error, what)}") from error
                failure = f"the hub answers {error.code} {error.reason}"
                wanted = _seconds_wanted(error.headers)
        except (OSError, http.client.HTTPException) as error:
            cause = getattr(error, "reason", error)
            failure = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
        if pause is None:
            named = " (HF_ENDPOINT)" if os.environ.get("HF_ENDPOINT") else ""
            message = f"cannot be read: {one_line(without_secrets(failure), 300)}, {TRIES} times, at "
            raise StoreError(errno.EIO, f"{message}{_endpoint()}{named}", what)
        time.sleep(max(pause, min(wanted, _MAX_PAUSE_SECONDS)))
    raise AssertionError


def _pauses() -> Iterator[float | None]:
    """Yield the seconds to wait after each try, and None after the last one."""
    for number in range(TRIES - 1):
        yield 2**number * random.uniform(0.5, 1)
    yield None


def _seconds_wanted(headers: Message) -> float:
    """Return the seconds of the header Retry-After, a number or a date; 0 without one."""
    value = headers.get("Retry-After", "")
    try:
        if value.isdecimal():
            return float(value)
        then = email.utils.parsedate_to_datetime(value)
        return (then - datetime.datetime.now(then.tzinfo)).total_seconds()
    except ValueError:
        return 0.0


def _refusal(error: urllib.error.HTTPError, what: str) -> str:
    said = one_line(without_secrets(error.headers.get("X-Error-Message") or str(error.reason)), 300)
    match error.code:
        case 401:
            then = "check the name, and set HF_TOKEN to a token that may read it"
        case 403:
            page = f"{_endpoint()}/{what.removeprefix(SCHEME).partition('@')[0]}"
            then = f"set HF_TOKEN to a token of an account that has been given access on {page}"
        case 404:
            then = "check the name, the revision and the path; a private data set also needs HF_TOKEN"
        case _:
            then = "the hub rejects this request"
    return f"cannot be read: {error.code} {said}; {then}"


def _endpoint() -> str:
    endpoint = (os.environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT).rstrip("/")
    if not re.fullmatch(r"https?://[^\s/@?#]+(/[^\s@?#]*)?", endpoint):
        raise DataError(f"HF_ENDPOINT is {shown(without_secrets(endpoint))}; allowed: https://HOST")
    return endpoint


def _authorization() -> dict[str, str]:
    token = os.environ.get("HF_TOKEN", "").strip()
    if not re.fullmatch(r"[!-~]*", token):
        raise DataError("HF_TOKEN contains characters that no token has; set it to the token only")
    return {"Authorization": f"Bearer {token}"} if token else {}


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to the hosts of large files, without sending them the token."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):  # noqa: PLR0917  (urllib's)
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        if request is not None and urlsplit(newurl)[:2] != urlsplit(req.full_url)[:2]:
            request.remove_header("Authorization")
        return request


@functools.cache
def _opener() -> urllib.request.OpenerDirector:
    return urllib.request.build_opener(_Redirects)
