"""A proxy on loopback that delays requests, like a remote store."""

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from http.client import HTTPConnection


@contextlib.contextmanager
def run_slow_proxy(listen: int, target: int, seconds: float) -> Iterator[None]:
    """Run a proxy in front of port `target`, which forwards a client's bytes `seconds` later."""
    command = [sys.executable, "-m", "tests.slow_proxy", str(listen), str(target), str(seconds)]
    with subprocess.Popen(command) as process:
        try:
            _wait_for(listen)
            yield
        finally:
            process.kill()


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + 20
    while True:
        connection = HTTPConnection("127.0.0.1", port, timeout=10)
        try:
            connection.connect()
        except OSError:
            assert time.monotonic() < deadline, "the proxy does not answer"
            time.sleep(0.02)
        else:
            return
        finally:
            connection.close()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float) -> None:
    with contextlib.suppress(OSError):
        while contents := await reader.read(1 << 16):
            if seconds:
                await asyncio.sleep(seconds)
            writer.write(contents)
            await writer.drain()
    writer.close()


async def _serve(listen: int, target: int, seconds: float) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        store_reader, store_writer = await asyncio.open_connection("127.0.0.1", target)
        await asyncio.gather(_pass_on(reader, store_writer, seconds), _pass_on(store_reader, writer, 0.0))

    server = await asyncio.start_server(answer, "127.0.0.1", listen)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
