"""Shorter limits and pauses of requests to a store, so a test of an outage takes seconds."""

import asyncio
import types

import gcsfs.retry

from birdie_jax.engine import lease_file, private_api
from birdie_jax.storage import generations, object_store
from birdie_jax.text import remote_records

REQUEST_SECONDS = 1


def prepare() -> None:
    """Shorten them in this process and its forks; keep the numbers of tries."""

    async def pause(seconds: float) -> None:
        await asyncio.sleep(seconds / 50)

    gcsfs.retry.asyncio = types.SimpleNamespace(sleep=pause)  # type: ignore[attr-defined]
    for module in (object_store, generations):
        module.REQUEST_SECONDS = REQUEST_SECONDS
    generations.WRITE_SECONDS, lease_file._WRITE_SECONDS = 4.0, 3.0
    remote_records.READ_SECONDS = 3.0
    retries = private_api._RETRIES
    private_api._RETRIES = retries | {"initial_delay": "0.02s", "max_delay": "0.3s"}
