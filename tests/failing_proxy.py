"""A proxy in front of an HTTP server that fails on demand, and records every request."""

import contextlib
import dataclasses
import http.client
import json
import re
import socket
import struct
import threading
import time
from collections.abc import Iterator
from functools import partialmethod
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

_HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "transfer-encoding", "content-length", "te", "upgrade"}
)
_MAX_HEAD = 65536


class Request(NamedTuple):
    """A request to the proxy.

    Attributes:
        method: "GET", "POST" and so on.
        path: path and query, as sent.
        object_name: the name of the object or the prefix of the listing in the request; "" for a whole
            bucket or none.
        status: the status of the answer; 0: no answer.
    """

    method: str
    path: str
    object_name: str
    status: int


@dataclasses.dataclass
class _Fault:
    """A fault of some requests."""

    kind: str
    value: float
    method: str
    path: str
    times: int | None

    def takes(self, method: str, path: str, object_name: str) -> bool:
        return (
            self.times != 0
            and self.method in ("*", method)
            and any(re.search(self.path, text) for text in (path, unquote(path), object_name))
        )


class FailingProxy:
    """A running proxy; its faults apply from the next request until `heal`.

    Every fault takes `method` ("*": any), `path` (a regular expression to search in path and query, quoted
    or not, and in the object's name, which may be in the body) and `times` (None: no limit). If several
    faults match, the first one applies.

    Attributes:
        host: host and port of the proxy.
        upstream: host and port of the server; set it when both are running.
        reason: the text of a failed answer.
    """

    def __init__(self):
        """Listen on a free port of loopback."""
        self.upstream = ""
        self.reason = "the proxy was set to fail"
        # Bound but not listening, so no other process gets the port while connections are refused.
        self._holder = socket.socket()
        self._holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._holder.bind(("127.0.0.1", 0))
        self._port = self._holder.getsockname()[1]
        self.host = f"127.0.0.1:{self._port}"
        self._faults: list[_Fault] = []
        self._requests: list[Request] = []
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._released = threading.Event()
        self._server: _Server | None = None
        self._listen()

    def _add(
        self, kind: str, value: float, method: str = "*", path: str = "", times: int | None = None
    ) -> None:
        with self._lock:
            self._faults.append(_Fault(kind, value, method, path, times))

    # `answer(status)`: answers with a failure with the text `reason`, instead of the server.
    answer = partialmethod(_add, "answer")
    # `delay(seconds)`: forwards a request later.
    delay = partialmethod(_add, "delay")
    # Resets the connection in the middle of the request, before the server sees any of it.
    reset_request = partialmethod(_add, "reset_request", 0)
    # Resets the connection in the middle of the answer, when the server has done its work.
    reset_answer = partialmethod(_add, "reset_answer", 0)
    # Accepts a request and never answers it.
    hang = partialmethod(_add, "hang", 0)
    # Refuses connections until `heal`, from the first such request, which is not forwarded.
    refuse_from = partialmethod(_add, "refuse_from", 0, times=1)

    def heal(self) -> None:
        """Forward everything from now on."""
        with self._lock:
            self._faults.clear()
        self._release()
        if self._server is None:
            self._listen()

    @contextlib.contextmanager
    def outage(self) -> Iterator[None]:
        """Reset connections, and refuse new ones while the body runs."""
        self._refuse()
        try:
            yield
        finally:
            self.heal()

    @property
    def requests(self) -> list[Request]:
        """Every request so far, in the order of the answers."""
        with self._lock:
            return list(self._requests)

    def requests_outside(self, *prefixes: str) -> list[Request]:
        """Return the requests about objects whose names begin with none of `prefixes`.

        Excludes requests about a bucket itself, which name no object, but not listings of a whole bucket,
        which name every object.
        """
        return [
            each
            for each in self.requests
            if (each.object_name or _is_listing(each))
            and not any(f"{each.object_name}/".startswith(prefix) for prefix in prefixes)
        ]

    def close(self) -> None:
        """Stop."""
        self.heal()
        self._refuse()
        self._holder.close()

    def _refuse(self) -> None:
        if self._server is None:
            return
        self._server.shutdown()
        self._server.server_close()
        self._server = None
        self._release()
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            _reset(connection)
        # Their threads end.
        deadline = time.monotonic() + 2
        while self._connections and time.monotonic() < deadline:
            time.sleep(0.002)

    def _listen(self) -> None:
        self._server = _Server(("127.0.0.1", self._port), self)
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def _release(self) -> None:
        """Release the waiting requests."""
        with self._lock:
            self._released.set()
            self._released = threading.Event()

    def _take_fault(self, method: str, path: str, body: bytes) -> tuple[_Fault | None, threading.Event]:
        object_name = _object_name(path, body)
        with self._lock:
            for fault in self._faults:
                if fault.takes(method, path, object_name):
                    if fault.times is not None:
                        fault.times -= 1
                    return fault, self._released
            return None, self._released

    def _record(self, method: str, path: str, body: bytes, status: int) -> None:
        with self._lock:
            self._requests.append(Request(method, path, _object_name(path, body), status))


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], proxy: FailingProxy):
        self.proxy = proxy
        super().__init__(address, _Handler)

    def shutdown_request(self, request) -> None:
        """Close a connection without a shutdown, which would precede a reset."""
        self.close_request(request)

    def handle_error(self, request, client_address) -> None:
        """Log nothing: connections break often here."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self.server.proxy._lock:
            self.server.proxy._connections.add(self.connection)

    def finish(self) -> None:
        with self.server.proxy._lock:
            self.server.proxy._connections.discard(self.connection)
        super().finish()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def __getattr__(self, name: str):
        if name.startswith("do_"):
            return self._handle
        raise AttributeError(name)

    def _handle(self) -> None:
        proxy = self.server.proxy
        body = self._read_body(half=True)
        fault, released = proxy._take_fault(self.command, self.path, body)
        kind = fault.kind if fault else ""
        if kind != "reset_request":
            body += self._read_body()
        if kind in {"reset_request", "hang", "refuse_from"}:
            proxy._record(self.command, self.path, body, 0)
            if kind == "refuse_from":
                # Use a separate thread, which waits for this one to end.
                threading.Thread(target=proxy._refuse, daemon=True).start()
            if kind != "reset_request":
                released.wait()
            self._reset()
            return
        if fault and kind == "answer":
            status = int(fault.value)
            proxy._record(self.command, self.path, body, status)
            contents = json.dumps({"error": {"code": status, "message": proxy.reason}}).encode()
            self._send(status, [("Content-Type", "application/json")], contents)
            return
        if fault and kind == "delay":
            released.wait(fault.value)
        status, headers, contents = self._forward(body)
        proxy._record(self.command, self.path, body, status)
        self._send(status, headers, contents, half=kind == "reset_answer")

    def _read_body(self, *, half: bool = False) -> bytes:
        """Read the body of the request, or half of it; a second call reads the rest."""
        if half:
            self._left = int(self.headers.get("Content-Length", 0))
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            return self._read_chunks() if half else b""
        # The first half contains the name of the object, also for a short body.
        count = min(self._left, max(self._left // 2, 4096)) if half else self._left
        self._left -= count
        return self.rfile.read(count)

    def _read_chunks(self) -> bytes:
        parts = []
        while size := int(self.rfile.readline(_MAX_HEAD).split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline(_MAX_HEAD)
        self.rfile.readline(_MAX_HEAD)
        return b"".join(parts)

    def _forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        assert self.server.proxy.upstream, "the proxy has no server"
        connection = http.client.HTTPConnection(self.server.proxy.upstream, timeout=60)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                # The server uses the proxy's name for itself.
                if name.lower() not in _HOP_BY_HOP and name.lower() != "expect":
                    connection.putheader(name, value)
            if body or self.command in ("POST", "PUT", "PATCH"):
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body or None)
            answer = connection.getresponse()
            contents = answer.read()
            headers = [
                (name, value) for name, value in answer.getheaders() if name.lower() not in _HOP_BY_HOP
            ]
            if self.command == "HEAD":
                headers.append(("Content-Length", answer.getheader("Content-Length", "0")))
            return answer.status, headers, contents
        finally:
            connection.close()

    def _send(
        self, status: int, headers: list[tuple[str, str]], contents: bytes, *, half: bool = False
    ) -> None:
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        if self.command != "HEAD" and status not in (204, 304):
            self.send_header("Content-Length", str(len(contents)))
        if half and not contents:
            self._reset()
            return
        self.end_headers()
        self.wfile.write(contents[: len(contents) // 2] if half else contents)
        self.wfile.flush()
        if half:
            # Let the written bytes arrive before the reset.
            time.sleep(0.05)
            self._reset()

    def _reset(self) -> None:
        self.close_connection = True
        _reset(self.connection)


def _reset(connection: socket.socket) -> None:
    """Send a TCP reset instead of a normal end."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with contextlib.suppress(OSError):
        # Closing has no effect while a file of the handler is open on the socket.
        connection.shutdown(socket.SHUT_RD)
    with contextlib.suppress(OSError):
        connection.close()


def _object_name(path: str, body: bytes) -> str:
    """Return the object name or prefix in a request of Cloud Storage's JSON or XML interface."""
    parts = urlsplit(path)
    query = parse_qs(parts.query, keep_blank_values=True)
    if found := re.match(r"(?:/download)?/storage/v1/b/[^/]+/o/([^/]+)", parts.path):
        return unquote(found.group(1))
    if re.match(r"(/upload)?/(resumable/)?(upload/)?storage/v1/b/", parts.path) or "upload" in parts.path:
        for field in ("name", "prefix"):
            if field in query:
                return query[field][0]
        # A multipart upload names its object in the first part.
        found = re.search(rb'"name":\s*"((?:[^"\\]|\\.)*)"', body[:_MAX_HEAD])
        return found.group(1).decode("unicode_escape") if found else ""
    if parts.path.startswith("/storage/") or parts.path == "/":
        return query.get("prefix", [""])[0]
    # The XML interface: /bucket/object.
    return unquote(parts.path.lstrip("/").partition("/")[2]) or query.get("prefix", [""])[0]


def _is_listing(request: Request) -> bool:
    path = urlsplit(request.path).path
    return request.method == "GET" and path.rstrip("/").endswith("/o")


@contextlib.contextmanager
def run_failing_proxy() -> Iterator[FailingProxy]:
    """Start a proxy and stop it at the end. Set `upstream`, and start the server with the proxy's host."""
    with contextlib.closing(FailingProxy()) as proxy:
        yield proxy
