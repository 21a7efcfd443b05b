"""Commands without a network, which record each attempt to use one."""

import contextlib
import ctypes
import os
import socket
import sys
from pathlib import Path
from typing import Any

_EVENTS = {"socket.connect", "socket.sendto", "socket.getaddrinfo", "socket.gethostbyname"}
_LOCAL = {"127.0.0.1", "::1", "localhost", "", None}
_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000
_LOG = "ATTEMPTS_FILE"


def prepare() -> None:
    """Refuse connections in this process and its forks, and write them to the file in ATTEMPTS_FILE.

    The hook sees Python's connections. If the kernel allows it, the process also gets a network without a
    device, for libraries in C++.
    """
    with contextlib.suppress(AttributeError):
        unshare = ctypes.CDLL(None).unshare
        unshare(_NEW_NETWORK) and unshare(_NEW_USER | _NEW_NETWORK)
    sys.addaudithook(_refuse)


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if event not in _EVENTS:
        return
    if event in {"socket.connect", "socket.sendto"}:
        used, address = arguments[0], arguments[-1]
        host = address[0] if used.family in {socket.AF_INET, socket.AF_INET6} else ""
    else:
        host = arguments[0]
    if host not in _LOCAL:
        with Path(os.environ[_LOG]).open("a", encoding="utf-8") as file:
            file.write(f"{event} {host} by {sys.argv}\n")
        raise ConnectionRefusedError(f"a test has no network: {event} {host}")
