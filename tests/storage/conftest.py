"""A bucket of a server on loopback, seen through a proxy that can fail."""

import asyncio
import types
from collections.abc import Iterator
from typing import NamedTuple

import aiohttp
import pytest
from etils import epath

from birdie_jax.storage import make_path
from birdie_jax.storage.object_store import file_system
from tests.failing_proxy import FailingProxy, run_failing_proxy
from tests.gcs_server import BUCKET, GcsServer, gcs_environment, run_gcs_server


class Bucket(NamedTuple):
    """A bucket with its server.

    Attributes:
        proxy: the proxy that clients connect to.
        server: the server itself, for requests that must not fail.
        root: a folder of the bucket that no other test uses.
    """

    proxy: FailingProxy
    server: GcsServer
    root: epath.Path


@pytest.fixture(scope="session")
def proxied_server(tmp_path_factory) -> Iterator[tuple[FailingProxy, GcsServer]]:
    folder = tmp_path_factory.mktemp("gcs_server")
    with run_failing_proxy() as proxy, run_gcs_server(folder, public_host=proxy.host) as server:
        proxy.upstream = server.host
        yield proxy, server


@pytest.fixture
def bucket(proxied_server, monkeypatch, request) -> Iterator[Bucket]:
    proxy, server = proxied_server
    for name, value in gcs_environment(f"http://{proxy.host}").items():
        monkeypatch.setenv(name, value)
    root = make_path(f"gs://{BUCKET}/{abs(hash(request.node.nodeid))}")
    yield Bucket(proxy, server, root)
    proxy.heal()


@pytest.fixture
def hasty(bucket, monkeypatch) -> list[float]:
    """Make gcsfs retry without waiting; return the list of the pauses that it requested."""
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        await asyncio.sleep(0)

    monkeypatch.setattr("gcsfs.retry.asyncio", types.SimpleNamespace(sleep=pause))
    timeout = aiohttp.ClientTimeout(sock_connect=0.1, sock_read=0.1)
    monkeypatch.setattr(file_system(bucket.root), "requests_timeout", timeout)
    return pauses
