"""Private functions of JAX and orbax that this program needs; all such imports are here."""

import time
from types import SimpleNamespace
from typing import Any

from jax._src import distributed
from orbax.checkpoint._src.checkpointers import async_checkpointer
from orbax.checkpoint._src.futures import future, signaling_client
from orbax.checkpoint._src.serialization import tensorstore_utils

# About 1.5 minutes in total. tensorstore's default of 32 tries takes 15, and the run would count as hung.
_RETRIES = {"max_retries": 8, "initial_delay": "1s", "max_delay": "16s"}


def coordination_client() -> Any:
    """Return the client of JAX's coordination service; None if there is one process.

    JAX has no public interface to the service's keys and values.
    """
    return distributed.global_state.client


def coordinator_address() -> str:
    """Return the address of process 0, `host:port`; empty if there is one process.

    On a TPU JAX determines it by itself, and has no public interface to it.
    """
    return distributed.global_state.coordinator_address or ""


def limit_request_retries() -> None:
    """Make orbax give up on a failing store well before `train.hung_seconds`, for the whole process.

    Neither orbax nor tensorstore, which sends its requests, has an option for this. orbax makes every
    context from these two dictionaries.
    """
    for context in (tensorstore_utils._BASE_TS_CONTEXT, tensorstore_utils._DEFAULT_OCDBT_TS_CONTEXT):
        context["gcs_request_retries"] = _RETRIES


def wait_by_monotonic_clock() -> None:
    """Make orbax measure its waits with a clock that never jumps, for the whole process.

    With the wall clock, a save exceeds its time limit of some minutes if the clock is set forward, for
    example when a suspended machine resumes.
    """
    clocks = SimpleNamespace(**{**vars(time), "time": time.monotonic})
    for module in (async_checkpointer, future, signaling_client):
        module.time = clocks  # pyright: ignore[reportAttributeAccessIssue]


def end_despite_failed_saves() -> None:
    """Let the process end while orbax's threads wait for a save that has failed, which takes five minutes.

    A save that has not failed is finished before: `Checkpoints.close` waits for it.
    """
    future._SignalingThread.daemon = True  # pyright: ignore[reportAttributeAccessIssue]
