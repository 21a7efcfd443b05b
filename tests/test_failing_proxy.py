"""The proxy fails as it is told to, is transparent otherwise, and knows what it was asked for."""

import contextlib
import http.client
import json
import time

import pytest

from tests.failing_proxy import run_failing_proxy
from tests.gcs_server import BUCKET, run_gcs_server

pytestmark = pytest.mark.slow

UPLOAD = f"/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name="
OBJECT = f"/storage/v1/b/{BUCKET}/o/"


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with (
        run_failing_proxy() as proxy,
        run_gcs_server(tmp_path_factory.mktemp("server"), public_host=proxy.host) as server,
    ):
        proxy.upstream = server.host
        yield proxy, server


@pytest.fixture
def proxy(running):
    yield running[0]
    running[0].heal()


@contextlib.contextmanager
def connected(proxy):
    connection = http.client.HTTPConnection(proxy.host, timeout=5)
    try:
        yield connection
    finally:
        connection.close()


def ask(proxy, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    with connected(proxy) as connection:
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, answer.read()


def test_forwards_everything_and_keeps_connections(proxy):
    contents = bytes(range(256)) * 5000
    with connected(proxy) as connection:
        connection.request("POST", UPLOAD + "a%2Fb%23", contents)
        answer = connection.getresponse()
        link = json.loads(answer.read())["mediaLink"]
        assert link.startswith(f"http://{proxy.host}/"), "clients follow it"
        before = connection.sock
        connection.request("GET", OBJECT + "a%2Fb%23?alt=media")
        assert connection.getresponse().read() == contents
        connection.request("GET", OBJECT + "none")
        answer = connection.getresponse()
        answer.read()
        assert (answer.status, connection.sock) == (404, before)
    assert ask(proxy, "DELETE", OBJECT + "a%2Fb%23")[0] in (200, 204)


def test_body_in_chunks_is_forwarded(proxy):
    with connected(proxy) as connection:
        connection.request("POST", UPLOAD + "chunks", iter([b"one", b"two"]), encode_chunked=True)
        assert connection.getresponse().status == 200
    assert ask(proxy, "GET", OBJECT + "chunks?alt=media") == (200, b"onetwo")


def test_answers_so_many_times_what_it_was_told(proxy):
    ask(proxy, "POST", UPLOAD + "runs/a", b"x")
    proxy.answer(503, method="GET", path="runs/a", times=2)
    statuses = [ask(proxy, "GET", OBJECT + "runs%2Fa?alt=media")[0] for _ in range(3)]
    assert statuses == [503, 503, 200]
    proxy.answer(403, path="/runs%2F")
    assert ask(proxy, "GET", OBJECT + "other")[0] == 404
    assert ask(proxy, "GET", OBJECT + "runs%2Fa")[0] == 403
    proxy.heal()
    proxy.answer(429, method="DELETE")
    assert ask(proxy, "DELETE", OBJECT + "runs%2Fa")[0] == 429
    proxy.heal()
    assert ask(proxy, "GET", OBJECT + "runs%2Fa?alt=media") == (200, b"x")


def test_delays(proxy):
    proxy.delay(0.2, times=1)
    start = time.monotonic()
    ask(proxy, "GET", OBJECT + "a")
    assert 0.2 < time.monotonic() - start < 3


def test_request_that_is_reset_is_not_seen_by_the_server(proxy):
    proxy.reset_request(method="POST", times=1)
    with pytest.raises(OSError):
        ask(proxy, "POST", UPLOAD + "lost", bytes(500_000))
    assert ask(proxy, "GET", OBJECT + "lost")[0] == 404


def test_answer_that_is_reset_was_carried_out(proxy):
    proxy.reset_answer(method="POST", times=1)
    with pytest.raises((OSError, http.client.HTTPException)):
        ask(proxy, "POST", UPLOAD + "done", b"x" * 1000)
    assert ask(proxy, "GET", OBJECT + "done?alt=media") == (200, b"x" * 1000)


def test_hangs_until_it_is_healed(proxy):
    proxy.hang(path="silent")
    with connected(proxy) as connection:
        connection.request("GET", OBJECT + "silent")
        connection.sock.settimeout(0.2)
        with pytest.raises(TimeoutError):
            connection.getresponse()
    proxy.heal()
    assert ask(proxy, "GET", OBJECT + "silent")[0] == 404


def test_outage_refuses_connections_and_ends_those_there_are(proxy):
    with connected(proxy) as connection:
        connection.request("GET", OBJECT + "a")
        connection.getresponse().read()
        with proxy.outage():
            with pytest.raises(ConnectionRefusedError):
                ask(proxy, "GET", OBJECT + "a")
            with pytest.raises((OSError, http.client.HTTPException)):
                connection.request("GET", OBJECT + "a")
                connection.getresponse()
    assert ask(proxy, "GET", OBJECT + "a")[0] == 404


def test_requests_are_recorded_with_the_object_they_are_about(proxy):
    known = len(proxy.requests)
    ask(proxy, "POST", UPLOAD + "runs/a", b"x")
    several = b'--=\nContent-Type: application/json\n\n{"name": "r\\u00e9"}\n--=\n\nx\n--=--'
    ask(proxy, "POST", f"/upload/storage/v1/b/{BUCKET}/o?uploadType=multipart", several)
    ask(proxy, "GET", OBJECT + "runs%2Fa?alt=media")
    ask(proxy, "GET", f"/{BUCKET}/runs/a")
    ask(proxy, "GET", f"/storage/v1/b/{BUCKET}/o?prefix=data/pile")
    ask(proxy, "GET", f"/storage/v1/b/{BUCKET}/o")
    ask(proxy, "GET", f"/storage/v1/b/{BUCKET}")
    found = [(each.method, each.object_name) for each in proxy.requests[known:]]
    assert found == [
        *(("POST", "runs/a"), ("POST", "ré"), ("GET", "runs/a"), ("GET", "runs/a")),
        *(("GET", "data/pile"), ("GET", ""), ("GET", "")),
    ]
    outside = [
        each.path for each in proxy.requests_outside("runs/", "data/") if each in proxy.requests[known:]
    ]
    assert f"/storage/v1/b/{BUCKET}/o" in outside, "a listing of all"
    assert f"/storage/v1/b/{BUCKET}" not in outside and not any("runs" in path for path in outside)
