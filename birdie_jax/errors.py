"""The exceptions of this package, and functions that format values in their messages.

`BirdieError` is the base of the errors that a user can fix. Its message names the field or file, the found
value and the allowed ones. `command_line.start` prints it on one line, without a traceback. Callers catch
the other exceptions.
"""

import difflib
import errno
import math
import re
from collections.abc import Iterable
from concurrent.futures import BrokenExecutor

_MAX_CHARACTERS = 200
# Python raises ValueError for the decimal text of a much larger integer.
_MAX_INTEGER_BITS = 4096


# Failures of a machine or a store.
_FAILING = frozenset(
    {
        *(errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM, errno.EMFILE, errno.ENFILE),
        *(
            errno.EAGAIN,
            errno.EBUSY,
            errno.ESTALE,
            errno.EPIPE,
            errno.EREMOTEIO,
            errno.ETIMEDOUT,
            errno.ECONNABORTED,
        ),
        *(errno.ECONNREFUSED, errno.ECONNRESET, errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTUNREACH),
    }
)

# Secrets that a message must not contain: anybody may read messages and logs.
_SECRETS = (
    (re.compile(r"(:/+)[^/@\s]*@"), r"\1***@"),
    (re.compile(r"\b(Bearer\s+)\S+", re.IGNORECASE), r"\1***"),
    (re.compile(r"\bya29\.\S+"), "***"),
    (
        re.compile(
            r"(?<![\w-])((?:(?:access_|id_|oauth_|refresh_)?token|x-(?:goog|amz)-[\w-]+|signature|sig|api_?key"
            r"|private_key(?:_id)?|(?:client_)?secret|password|upload_id)"
            r"[\"']?\s*[=:]\s*[\"']?)[^&\s,\"']+",
            re.IGNORECASE,
        ),
        r"\1***",
    ),
)


class BirdieError(Exception):
    """An error that a user can fix: a command prints it on one line and ends with `exit_status(error)`.

    Attributes:
        status: 2 if the same command fails again, until you change it, its configuration or a file that
            they name; 1 if it may succeed when you start it again.
    """

    status = 2


class ConfigError(BirdieError, ValueError):
    """A configuration is unusable; the message names the field, the value and the allowed values."""


class PruningError(ConfigError):
    """Pruning is not possible; the message names the setting, the found value and the allowed ones."""


class DataError(BirdieError, ValueError):
    """Text, a tokenizer or token shards are unusable.

    The message names the file, the record or line if there is one, the found value and the allowed ones. It
    is one line, for any characters in a file's name.
    """

    def __init__(self, message: str):
        super().__init__(one_line(message))


class OvertakenError(DataError):
    """Another process is preparing the text of a folder in a bucket; the message names it."""

    status = 1


class ShardWriteError(DataError):
    """A shard cannot be written, for example on a full disk; the message names it."""

    status = 1


class StoreError(BirdieError, OSError):
    """A store fails a request; the message names the object and the store's error."""

    status = 1

    def __str__(self) -> str:
        # The text of an OSError begins with a number.
        return f"{self.filename}: {self.strerror}" if self.filename else super().__str__()


class NoBucketError(StoreError):
    """A bucket does not exist; the message names it."""

    status = 2


class CheckpointError(BirdieError, RuntimeError):
    """A checkpoint cannot be written or read; the message names the folder and a remedy."""

    status = 1


class OtherCheckpointError(CheckpointError):
    """No complete checkpoint exists, or its model, format or text differs from the command's."""

    status = 2


class WorkdirInUse(ConfigError):  # noqa: N818 - a temporary state
    """Another trainer holds the workdir; the message names it and the time."""

    status = 1


class LeaseLost(BirdieError, RuntimeError):  # noqa: N818 - an outcome
    """Another trainer holds the workdir now; the message names it."""

    status = 1


class TrainingDiverged(BirdieError, RuntimeError):  # noqa: N818 - the run's outcome
    """The loss, or a measurement of a hook, is NaN or infinite; names the step and the last checkpoint."""

    status = 1


class RecordError(BirdieError, ValueError):
    """A workdir has no valid record; the message names the file, the place and the allowed values."""


class InteropError(BirdieError, ValueError):
    """A file of an exported model is missing or damaged, or does not match the others.

    The message names the file, the tensor if there is one, the found value and the allowed ones.
    """


class MissingCompilerError(BirdieError, RuntimeError):
    """A compiler is not installed; the message has the command that installs it.

    Attributes:
        packages: the packages to install with pip; empty if other packages conflict with them.
    """

    packages: tuple[str, ...] = ()


class PromptError(BirdieError, ValueError):
    """A prompt or its format is unusable; the message names the found value and the allowed ones."""


class PromptTooLong(BirdieError, ValueError):  # noqa: N818 - a property of a prompt
    """A prompt with its answer is longer than the model's limit."""


class SavedStateError(BirdieError, ValueError):
    """A state cannot be saved or continued; the message names the found value and the allowed ones."""


class ScoreError(BirdieError, ValueError):
    """A model's scores have no order: one is NaN or infinite; the message names the sample or question."""

    status = 1


class UnsuitableText(ValueError):  # noqa: N818 - the caller tries another text
    """A text cannot become an example: for instance, it is too short or has no unique delimiter."""


class DamagedError(ValueError):
    """A checkpoint's bits differ from the saved ones; the message names them."""


class NotFinite(ArithmeticError):  # noqa: N818 - a property of a state
    """The state contains NaN or infinity, so it gets no checkpoint."""


class HistoryClosed(Exception):  # noqa: N818 - a signal, not an error
    """Training has ended and publishes no further mixture."""


def exit_status(error: BaseException) -> int:
    """Return the exit status of a command that ends with an error.

    This is the status of the error's class. It is 1 if a machine or a store fails, such as a full disk or a
    bucket that does not answer, and for any exception other than a `BirdieError`.

    Args:
        error: the exception.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MemoryError | BrokenExecutor) or _is_failing(cause):
            return 1
        cause = cause.__cause__
    return error.status if isinstance(error, BirdieError) else 1


def _is_failing(error: BaseException) -> bool:
    if isinstance(error, TimeoutError | ConnectionError):
        return True
    return isinstance(error, OSError) and error.errno in _FAILING and not isinstance(error, NoBucketError)


def shown(value: object, max_characters: int = _MAX_CHARACTERS) -> str:
    """Return the text of a user's or a file's value for a message.

    This is `repr(value)` with unprintable characters escaped. If it is longer than `max_characters`, the
    middle is left out and the whole length follows.

    Args:
        value: the value, of any type and size.
        max_characters: the maximum number of characters shown of the value itself.
    """
    if isinstance(value, int) and value.bit_length() > _MAX_INTEGER_BITS:
        return f"an integer of about {math.ceil(value.bit_length() * math.log10(2)):,} digits"
    if isinstance(value, str | bytes):
        if len(value) <= max_characters and len(text := repr(value)) <= max_characters:
            return text
        # Pass only the ends to `repr`: the whole value may have gigabytes.
        ends = repr(value[:max_characters]), repr(value[-max_characters:])
        unit = "characters" if isinstance(value, str) else "bytes"
        return f"{_join_ends(*ends, max_characters)} ({len(value):,} {unit})"
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # it has a very long integer or is nested too deeply
        return f"a {type(value).__name__} too large to show"
    return one_line(text, max_characters)


def without_secrets(text: str) -> str:
    """Return a text with `***` instead of passwords in URLs, tokens, signatures and keys.

    Use it for printed text, and for a command that a workdir records.
    """
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text


def nearest_first(found: object, names: Iterable[str]) -> str:
    """Return the allowed names for a message, joined by commas, the most similar to `found` first.

    Args:
        found: the value of the user.
        names: the allowed names; names that are not similar keep their order. '' is shown in quotes.
    """
    known = list(names)
    # The time of a comparison grows with the product of the lengths.
    near = difflib.get_close_matches(found[:_MAX_CHARACTERS], known) if isinstance(found, str) else []
    return ", ".join(name or "''" for name in dict.fromkeys([*near, *known]))


def one_line(text: str, max_characters: int = 2000) -> str:
    """Return a text, shortened, with line ends, control characters and lone surrogates escaped.

    Use it for texts without quotes, such as a file's path or a whole message. If the text is longer than
    `max_characters`, the middle is left out and the whole length follows. A short text on one line is
    returned unchanged.

    Args:
        text: the text.
        max_characters: the maximum number of characters shown of it.
    """
    if len(text) <= max_characters:
        escaped = _escape(text)
        if len(escaped) <= max_characters:
            return escaped
    ends = _escape(text[:max_characters]), _escape(text[-max_characters:])
    return f"{_join_ends(*ends, max_characters)} ({len(text):,} characters)"


def _join_ends(head: str, tail: str, max_characters: int) -> str:
    half = (max_characters - len("...")) // 2
    return f"{head[:half]}...{tail[-half:]}"


def _escape(text: str) -> str:
    if text.isprintable():
        return text
    # Python considers spaces other than ' ' unprintable. They are readable, unless they end a line.
    return "".join(
        character if character.isprintable() or _is_plain_space(character) else _escape_one(character)
        for character in text
    )


def _is_plain_space(character: str) -> bool:
    return character.isspace() and len(f"a{character}b".splitlines()) == 1 and ord(character) >= 0xA0


def _escape_one(character: str) -> str:
    return repr(character)[1:-1]
