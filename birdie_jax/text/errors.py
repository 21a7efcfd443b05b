"""The one exception for data that a user can put right."""

from birdie_jax.storage.messages import one_line


class DataError(ValueError):
    """Text, a tokenizer or token shards cannot be used as they are.

    The message names the file, and the record or line where there is one, what was found, and what is
    allowed. Verbs print it without a traceback. It is one line, whatever characters a file's name holds.
    """

    def __init__(self, message: str):
        super().__init__(one_line(message))
