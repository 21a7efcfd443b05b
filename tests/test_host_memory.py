"""The process keeps freed memory only if programs run on CPUs."""

import ast
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from birdie_jax import host_memory
from birdie_jax.host_memory import keep_freed_memory

# A thread allocates and frees 64 MB ten times; it prints the pages touched in the last nine.
_PROGRAM = """
import resource, sys, threading
if sys.argv[1] == "keep":
    from birdie_jax.host_memory import keep_freed_memory
    assert keep_freed_memory({}, __import__("pathlib").Path("/nowhere"))
def ask(times):
    for _ in range(times):
        bytearray(64 << 20)
def touched(times):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    thread = threading.Thread(target=ask, args=(times,))
    thread.start()
    thread.join()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
touched(1)
print(touched(9))
"""


USERS = ("MALLOC_ARENA_MAX", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")


@pytest.fixture
def calls(monkeypatch):
    """The calls to glibc."""
    made = []

    class Library:
        def mallopt(self, name, value):
            made.append((name, value))
            return 1

    monkeypatch.setattr(host_memory.ctypes, "CDLL", lambda name: Library())
    return made


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_kept_memory_is_touched_once():
    def touched(form):
        command = [sys.executable, "-c", _PROGRAM, form]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return int(done.stdout)

    # The C library zeroes bytearray's memory; the system does not clear kept memory again.
    assert touched("keep") < 100 < touched("leave")


@pytest.mark.parametrize(
    ("environment", "device", "kept"),
    [
        *((environment, None, True) for environment in ({}, {"JAX_PLATFORMS": "cpu"})),
        *(({}, device, False) for device in ("nvidia0", "kfd", "accel0", "vfio/7")),
        ({"JAX_PLATFORMS": "cpu"}, "nvidia0", True),
        *(({"JAX_PLATFORMS": names}, None, False) for names in ("tpu", "cuda", "cuda,cpu")),
        # A user's settings stay.
        *(({name: "1"}, None, False) for name in USERS),
    ],
)
def test_memory_is_kept_only_for_cpus(environment, device, kept, tmp_path, calls):
    if device:
        (tmp_path / device).parent.mkdir(exist_ok=True)
        (tmp_path / device).touch()
    assert keep_freed_memory(environment, tmp_path) == kept
    assert len(calls) == (4 if kept else 0)


def test_another_c_library_is_not_changed(tmp_path, calls, monkeypatch):
    monkeypatch.setattr(host_memory.os, "confstr_names", {})
    assert not keep_freed_memory({}, tmp_path)
    assert not calls


@pytest.mark.parametrize("verb", ["train", "evaluate", "generate", "prune"])
def test_verbs_that_run_a_model_keep_memory_before_other_imports(verb):
    source = Path(host_memory.__file__).with_name(f"{verb}.py").read_text()
    begin = [node for node in ast.parse(source).body if not isinstance(node, ast.Expr)][:2]
    assert isinstance(begin[0], ast.ImportFrom) and begin[0].module == "birdie_jax.host_memory"
    assert isinstance(begin[1], ast.If) and ast.unparse(begin[1].body[0]) == "keep_freed_memory()"
