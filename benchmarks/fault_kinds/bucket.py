"""A failing bucket: runs with the workdir and the text in a store, behind a proxy that disturbs requests.

As a program with a folder as its argument, this module serves the store until its stdin ends. For each
start, it reads a line of JSON from stdin: the faults of the proxy from then on.
"""

import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, urlencode

from benchmarks.fault_kinds.play import Step
from benchmarks.fault_kinds.programs import Program
from benchmarks.fault_kinds.starts import Ended
from birdie_jax.storage.workdir import WHOLE_MARK
from tests import short_retries
from tests.failing_proxy import run_failing_proxy
from tests.gcs_server import BUCKET, GcsServer, gcs_environment, run_gcs_server

_SECRET = "s3cretvalue0"
_REASON = f"sa@x has no access: token={_SECRET}, Bearer {_SECRET}"
# The requests that fail: those with one of these parts in the name of the object. "" matches every request.
_PLACES = (
    *("", "checkpoints/", "state", "batches", "meta", WHOLE_MARK, "config.json", "lease.json"),
    *(
        "metrics",
        "starts.json",
        "summary.json",
        "arms.json",
        "manifest.json",
        "tokenizer.model",
        "arrayrecord",
    ),
    *(f"checkpoints/{step:08d}" for step in (2, 4, 6, 8)),
)
_METHODS = ("*", "*", "GET", "POST", "PUT", "DELETE")
_STATUSES = (401, 403, 429, 500, 503)


class Store:
    """A bucket behind a proxy, in a separate process.

    Attributes:
        environment: the environment variables that make all libraries use the bucket.
    """

    def __init__(self, folder: Path):
        """Start the process.

        Args:
            folder: the folder for the server's log.
        """
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.fault_kinds.bucket", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout
        server, proxy = json.loads(self._process.stdout.readline())
        self._server = GcsServer(server, folder)
        self.environment = gcs_environment(f"http://{proxy}")

    def set_faults(self, *faults: tuple) -> None:
        """Set the faults of the proxy; each is (name, arguments...) of a `FailingProxy`."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(faults) + "\n")
        self._process.stdin.flush()
        self._process.stdout.readline()

    def names(self, prefix: str) -> Iterator[str]:
        """Yield the names of the objects with a prefix."""
        page = ""
        while True:
            query = urlencode({"prefix": prefix, "pageToken": page})
            contents = json.loads(self._request("GET", f"/storage/v1/b/{BUCKET}/o?{query}"))
            yield from (each["name"] for each in contents.get("items", ()))
            page = contents.get("nextPageToken", "")
            if not page:
                return

    def fetch(self, prefix: str, folder: Path) -> None:
        """Copy the objects with a prefix to a folder, except for those of incomplete checkpoints."""
        names = list(self.names(prefix))
        for name in names:
            path = Path(name.removeprefix(prefix))
            if (
                path.parts[0] == "checkpoints"
                and f"{prefix}{'/'.join(path.parts[:2])}/{WHOLE_MARK}" not in names
            ):
                continue
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(
                self._request("GET", f"/download/storage/v1/b/{BUCKET}/o/{quote(name, safe='')}?alt=media")
            )

    def upload(self, folder: Path, prefix: str) -> None:
        """Copy the files of a folder to objects."""
        for path in sorted(folder.iterdir()):
            query = urlencode({"uploadType": "media", "name": f"{prefix}{path.name}"})
            self._request("POST", f"/upload/storage/v1/b/{BUCKET}/o?{query}", path.read_bytes())

    def remove(self, prefix: str) -> None:
        """Remove the objects with a prefix."""
        for name in list(self.names(prefix)):
            self._request("DELETE", f"/storage/v1/b/{BUCKET}/o/{quote(name, safe='')}")

    def _request(self, method: str, path: str, body: bytes | None = None) -> bytes:
        status, contents = self._server.request(method, path, body)
        if status not in (200, 204):
            raise RuntimeError(f"{method} {path}: {status} {contents[:200]}")
        return contents

    def close(self) -> None:
        """End the process."""
        with self._process:
            assert self._process.stdin
            self._process.stdin.close()


def in_bucket(store: Store, program: Program) -> Program:
    """Return a program with its folder in the bucket, under the name of the folder that it receives."""

    def actions(folder: Path, every_step: bool) -> list[Callable[[], int]]:
        def within(action: Callable[[], int]) -> Callable[[], int]:
            def act() -> int:
                os.environ.update(store.environment)
                short_retries.prepare()
                return action()

            return act

        return [
            within(action) for action in program.actions(f"gs://{BUCKET}/{_prefix(folder)}", every_step)
        ]

    def read(look: Callable[[Path], dict[str, str]]) -> Callable[[Path], dict[str, str]]:
        def fetch_and_look(folder: Path) -> dict[str, str]:
            copy = Path(tempfile.mkdtemp(prefix="bucket-"))
            try:
                store.fetch(f"{_prefix(folder)}/", copy)
                return look(copy)
            finally:
                shutil.rmtree(copy)

        return fetch_and_look

    return program._replace(
        name=f"{program.name} in a bucket",
        actions=actions,
        saved=read(program.saved),
        end=read(program.end),
    )


def _prefix(folder: Path) -> str:
    return str(folder).strip("/")


class _Fault(NamedTuple):
    """A fault of the proxy, with its name and arguments."""

    name: str
    arguments: tuple


def _draw_fault(draws: random.Random) -> _Fault:
    where, times = (draws.choice(_METHODS), draws.choice(_PLACES)), draws.choice((1, 2, 4, 8, None))
    match draws.choice(
        ("answer", "answer", "reset_request", "reset_answer", "hang", "delay", "refuse_from")
    ):
        case "answer":
            return _Fault("answer", (draws.choice(_STATUSES), *where, times))
        case "delay":
            return _Fault("delay", (draws.uniform(0.05, 2), *where, times or 8))
        case "refuse_from":
            return _Fault("refuse_from", where)
        case name:
            return _Fault(name, (*where, times or 16))


def failing(draws: random.Random, store: Store) -> list[Step]:
    """Fail requests of two starts, each in one to three ways, and then let a start succeed."""

    def step() -> Step:
        faults = [_draw_fault(draws) for _ in range(draws.randint(1, 3))]
        description = "; ".join(f"{each.name}{each.arguments}" for each in faults)
        return Step(before=lambda _: store.set_faults(*faults), fault=description, check=_check)

    def begin(folder: Path) -> None:
        store.remove(_prefix(folder))
        first.before(folder)  # type: ignore[misc]

    first, second = step(), step()
    healed = Step(before=lambda _: store.set_faults(), check=_check)
    return [first._replace(before=begin), second, healed]


def _check(ended: Ended, line: str) -> list[str]:
    odd = [f"a secret in: {ended.errors[-500:]}"] if _SECRET in ended.printed + ended.errors else []
    if line and f"gs://{BUCKET}" not in line:
        odd.append(f"no object is named in: {line}")
    return odd


def _serve(folder: Path) -> None:
    with contextlib.ExitStack() as stack:
        proxy = stack.enter_context(run_failing_proxy())
        server = stack.enter_context(run_gcs_server(folder, public_host=proxy.host))
        proxy.upstream, proxy.reason = server.host, _REASON
        print(json.dumps([server.host, proxy.host]), flush=True)
        for line in sys.stdin:
            proxy.heal()
            for name, arguments in json.loads(line):
                getattr(proxy, name)(*arguments)
            print("set", flush=True)


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
