"""What orbax's threads print when a checkpoint cannot be written, which the run tells in one line itself.

A failure in such a thread reaches the loop as an exception. Besides, each of the threads logs it with a
traceback, and tensorstore's, whose event loop has ended by then, print one for each array. On a full disk
these are hundreds of lines around the one that says what to do.
"""

import contextlib
import logging
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orbax.checkpoint
from absl import logging as absl_logging

_ORBAX = str(Path(orbax.checkpoint.__file__).parent)


@contextlib.contextmanager
def told_once() -> Iterator[None]:
    """Leave out, while entered, what threads of orbax print of exceptions that they hand on.

    After an exception also to the end of the program: the threads go on for a while.
    """
    handler = absl_logging.get_absl_handler()
    before = sys.unraisablehook

    def unraisablehook(unraisable: Any) -> None:
        # Only C calls back without an object: tensorstore, when it has found its event loop closed.
        error = unraisable.exc_value
        if unraisable.object is None and str(error) == "Event loop is closed":
            return
        before(unraisable)

    handler.addFilter(_is_not_handed_on)
    sys.unraisablehook = unraisablehook
    warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
    yield
    handler.removeFilter(_is_not_handed_on)
    sys.unraisablehook = before


def _is_not_handed_on(record: logging.LogRecord) -> bool:
    if record.levelno < logging.ERROR or not record.exc_info:
        return True
    if record.name == "asyncio":
        # Nothing else here has tasks; orbax waits for the first of many that fail.
        return "was never retrieved" not in record.getMessage()
    return not record.pathname.startswith(_ORBAX)
