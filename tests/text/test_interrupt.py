"""Ctrl-C is remembered even where the exception gets lost."""

import signal
import threading

import pytest

from birdie_jax.text.interrupt import Interrupts


def test_an_interrupt_that_was_swallowed_is_raised_again():
    before = signal.getsignal(signal.SIGINT)
    with Interrupts() as interrupts:
        interrupts.check()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()
    assert signal.getsignal(signal.SIGINT) is before


def test_a_handler_of_the_caller_and_other_threads_are_left_alone():
    handlers = []

    def enter():
        with Interrupts():
            handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    enter()
    signal.signal(signal.SIGINT, before)
    assert handlers == [before, signal.SIG_IGN]
