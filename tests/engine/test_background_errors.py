"""Only the output of orbax's threads about a failure that the run reports itself is suppressed."""

import logging
import sys
import warnings
from types import SimpleNamespace

import orbax.checkpoint
import pytest
from absl import logging as absl_logging

from birdie_jax.engine.stop import silence_repeated_errors

HERE = __file__
ORBAX = orbax.checkpoint.__file__
LOGGERS = absl_logging.get_absl_logger(), logging.getLogger("asyncio")


def passes(name: str, path: str, message: str, level=logging.ERROR, error: Exception | None = None) -> bool:
    trace = (type(error), error, None) if error else None
    record = logging.LogRecord(name, level, path, 1, message, (), trace)
    return bool(logging.getLogger(name).filter(record))


@pytest.fixture(autouse=True)
def as_before(monkeypatch):
    # Another test's run that failed leaves its filter: see the last test.
    for logger in LOGGERS:
        monkeypatch.setattr(logger, "filters", [])
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    with warnings.catch_warnings():
        yield


@pytest.mark.parametrize(
    ("name", "path", "message", "passed"),
    [
        ("absl", ORBAX, "thread raised an exception", False),
        ("asyncio", HERE, "Future exception was never retrieved", False),
        ("asyncio", HERE, "something else", True),
        ("absl", HERE, "our own words", True),
    ],
)
def test_log_records(name, path, message, passed):
    error = OSError(28, "No space left on device")
    assert passes(name, path, message, error=error)
    with silence_repeated_errors():
        assert passes(name, path, message, error=error) == passed
        assert passes(name, path, message, level=logging.WARNING)
        assert passes("absl", path, "an error without a traceback")
    assert passes(name, path, message, error=error)


def test_a_program_without_absl_prints_only_its_own_lines(caplog):
    """Its handlers are Python's own, such as the one that pytest captures with."""
    try:
        raise OSError(28, "No space left on device")
    except OSError:
        with silence_repeated_errors():
            exec(compile("log.exception('of orbax')", ORBAX, "exec"), {"log": absl_logging})
            absl_logging.exception("of ours")
    assert [record.getMessage() for record in caplog.records] == ["of ours"]


def test_callbacks_that_find_their_loop_closed(monkeypatch):
    seen = []
    monkeypatch.setattr(sys, "unraisablehook", seen.append)
    closed = SimpleNamespace(exc_value=RuntimeError("Event loop is closed"), object=None)
    of_ours = SimpleNamespace(exc_value=RuntimeError("Event loop is closed"), object=print)
    other = SimpleNamespace(exc_value=RuntimeError("something else"), object=None)
    with silence_repeated_errors():
        for unraisable in (closed, of_ours, other):
            sys.unraisablehook(unraisable)
    assert seen == [of_ours, other]


def test_output_of_threads_after_a_failure_is_suppressed():
    with pytest.raises(KeyError), silence_repeated_errors():
        raise KeyError
    assert not passes("absl", ORBAX, "thread raised an exception", error=OSError())
