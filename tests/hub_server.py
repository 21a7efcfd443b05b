"""A server of the hub's protocol on loopback, with optional failures."""

import contextlib
import hashlib
import json
import re
import socket
import struct
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

TOKEN = "hf_s3cretvalue0"
_PAGE = 2


class HubRequest(NamedTuple):
    """A request to the server.

    Attributes:
        path: path and query.
        authorization: the header of that name, or "".
        host: "hub", or "files" for the host of the contents.
    """

    path: str
    authorization: str
    host: str


class HubServer:
    """A running server.

    Attributes:
        endpoint: the value for HF_ENDPOINT.
        refs: the commit of each branch of "ORG/NAME".
        commits: the files of each commit, by path.
        private: the names of data sets that need TOKEN.
        faults: (pattern of the path, status, headers, times) of wrong answers; status 0 resets the
            connection in the middle of the answer.
        requests: every request so far.
    """

    def __init__(self):
        self.refs: dict[str, dict[str, str]] = {}
        self.commits: dict[str, dict[str, bytes]] = {}
        self.private: set[str] = set()
        self.faults: list[list] = []
        self.requests: list[HubRequest] = []
        self._servers = [
            ThreadingHTTPServer(("127.0.0.1", 0), self._handler(name)) for name in ("hub", "files")
        ]
        self.endpoint, self._files = (
            f"http://127.0.0.1:{each.server_address[1]}" for each in self._servers
        )
        for server in self._servers:
            threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()

    def commit(self, name: str, files: dict[str, bytes], branch: str = "main") -> str:
        """Put files on a branch of a data set, and return the commit."""
        digest = hashlib.sha1(repr((name, sorted(files.items()))).encode()).hexdigest()
        self.refs.setdefault(name, {})[branch] = digest
        self.commits[digest] = files
        return digest

    def close(self) -> None:
        """Stop."""
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def answer(self, path: str, authorization: str, host: str) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and contents for a request, without its range."""
        self.requests.append(HubRequest(path, authorization, host))
        for fault in self.faults:
            if fault[3] and re.search(fault[0], path):
                fault[3] -= 1
                return fault[1], fault[2], b"no"
        url = urlsplit(path)
        if host == "files":
            commit, _, name = unquote(url.path)[1:].partition("/")
            return 200, {}, self.commits[commit][name]
        match = re.fullmatch(
            r"/(?:api/)?datasets/([^/]+/[^/]+)/(revision|tree|resolve)/([^/]+)/?(.*)", url.path
        )
        assert match, path
        name, kind, revision, place = match[1], match[2], unquote(match[3]), unquote(match[4])
        if name not in self.refs or (name in self.private and authorization != f"Bearer {TOKEN}"):
            return 401, {"X-Error-Message": "Invalid username or password."}, b"{}"
        commit = self.refs[name].get(revision, revision)
        if commit not in self.commits:
            return 404, {"X-Error-Message": f"Invalid rev id: {revision}"}, b"{}"
        if kind == "revision":
            return 200, {}, json.dumps({"sha": commit}).encode()
        if kind == "resolve":
            return 302, {"Location": f"{self._files}/{commit}/{match[4]}"}, b""
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        return self._tree(commit, place, query, path)

    def _tree(self, commit: str, folder: str, query: dict[str, str], path: str):
        prefix = f"{folder}/" if folder else ""
        below = {name: data for name, data in self.commits[commit].items() if name.startswith(prefix)}
        if not below:
            return 404, {"X-Error-Message": f"{folder} does not exist"}, b"{}"
        entries = [
            {"type": "file", "oid": "0" * 40, "size": len(data), "path": name}
            | {"lfs": {"oid": hashlib.sha256(data).hexdigest()}}
            for name, data in sorted(below.items())
            if query["recursive"] == "true" or "/" not in name.removeprefix(prefix)
        ]
        start = int(query.get("cursor", 0))
        headers = {}
        if start + _PAGE < len(entries):
            # The hub uses its own name in links, for any name in the request.
            following = f"https://hub.invalid{path.partition('?')[0]}?recursive={query['recursive']}"
            headers["Link"] = f'<{following}&cursor={start + _PAGE}>; rel="next"'
        return 200, headers, json.dumps(entries[start : start + _PAGE]).encode()

    def _handler(self, host: str) -> type[BaseHTTPRequestHandler]:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                status, headers, data = hub.answer(self.path, self.headers.get("Authorization", ""), host)
                if status == 0:
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    self.wfile.write(b"HTTP/1.1 206 Partial\r\nContent-Length: 99\r\n\r\nbegun")
                    self.close_connection = True
                    return
                if status == 200 and (interval := self.headers.get("Range")):
                    first, last = map(int, interval.removeprefix("bytes=").split("-"))
                    status, data = 206, data[first : last + 1]
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(data))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_) -> None:
                pass

        return Handler


@contextlib.contextmanager
def run_hub_server() -> Iterator[HubServer]:
    """Start a server, and stop it at the end."""
    server = HubServer()
    try:
        yield server
    finally:
        server.close()
