"""A signal to this process ends the child after it has saved."""

import os
import signal
import threading
import time

import pytest

from birdie_jax.child_process import run_child

_SAVES = """#!/bin/sh
trap 'echo saved; exit 143' TERM
cut -d' ' -f5 /proc/$$/stat >"$0.group"
while :; do sleep 0.02; done
"""


@pytest.fixture
def blocked(request):
    """Block SIGHUP in this thread: another one takes it, and no system call of this one ends early."""
    if request.param:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
    yield
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sent", "blocked"),
    [(signal.SIGTERM, False), (signal.SIGHUP, False), (signal.SIGHUP, True)],
    indirect=["blocked"],
)
@pytest.mark.usefixtures("blocked")
def test_the_child_saves_when_this_process_is_signalled(tmp_path, sent):
    program, group = tmp_path / "program", tmp_path / "program.group"
    program.write_text(_SAVES)
    program.chmod(0o755)

    before = signal.signal(sent, signal.SIG_DFL)

    def send():
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [sent])
        while signal.getsignal(sent) == signal.SIG_DFL or not (group.exists() and group.read_text()):
            time.sleep(0.01)
        os.kill(os.getpid(), sent)

    threading.Thread(target=send, daemon=True).start()
    try:
        with (tmp_path / "log").open("w") as log, pytest.raises(SystemExit) as ended:
            run_child([str(program)], log)
        assert signal.getsignal(sent) == signal.SIG_DFL
    finally:
        signal.signal(sent, before)
    assert ended.value.code == 128 + sent
    assert (tmp_path / "log").read_text() == "saved\n"
    # A signal to the whole group of this process does not reach it a second time.
    assert int(group.read_text()) != os.getpgrp()


@pytest.mark.slow
def test_the_status_of_a_child_is_returned(tmp_path):
    with (tmp_path / "log").open("w") as log:
        assert run_child(["sh", "-c", "pwd >&2; exit 3"], log, tmp_path) == 3
    assert (tmp_path / "log").read_text() == f"{tmp_path}\n"
