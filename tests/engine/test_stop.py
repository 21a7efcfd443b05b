"""SIGTERM and Ctrl-C request a stop; the previous handlers are restored."""

import os
import signal

import pytest

from birdie_jax.engine.stop import StopRequest


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_notes_the_signal_and_restores_handlers(number):
    before = signal.getsignal(number)
    with StopRequest() as stop:
        assert stop.signal is None
        os.kill(os.getpid(), number)
        assert stop.signal is number
        # A second one would end the process at once.
        assert signal.getsignal(number) == signal.SIG_DFL
    assert signal.getsignal(number) == before
