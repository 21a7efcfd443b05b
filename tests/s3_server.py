"""A server of S3's protocol on loopback, from packages outside the environment (tests/servers.sh)."""

import contextlib
import http.client
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.gcs_server import BUCKET, free_port

SECRET = "s3cretvalue0"


def s3_environment(host: str) -> dict[str, str]:
    """Return the variables that point s3fs to a server, with valid credentials."""
    return {
        "AWS_ENDPOINT_URL": f"http://{host}",
        "AWS_ACCESS_KEY_ID": "birdie",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_SESSION_TOKEN": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


@contextlib.contextmanager
def run_s3_server(packages: str, folder: Path) -> Iterator[str]:
    """Start a server that keeps its objects in memory, with one empty bucket; yield its host and port.

    Args:
        packages: the folder of the server's packages.
        folder: the folder for its log.
    """
    port = free_port()
    with (folder / "s3_server.log").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
            # Packages that .venv also has come from .venv.
            env=os.environ | {"PYTHONPATH": packages},
            cwd=folder,
            stdout=output,
            stderr=output,
        )
    try:
        _make_bucket(f"127.0.0.1:{port}", process, folder / "s3_server.log")
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def _make_bucket(host: str, process: subprocess.Popen, log: Path) -> None:
    deadline = time.monotonic() + 60
    while True:
        connection = http.client.HTTPConnection(host, timeout=10)
        try:
            connection.request("PUT", f"/{BUCKET}")
            status = connection.getresponse().status
        except OSError:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, "the server does not answer"
            time.sleep(0.05)
        else:
            assert status == 200, log.read_text()
            return
        finally:
            connection.close()
