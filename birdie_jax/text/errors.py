"""The one exception for data that a user can put right."""


class DataError(ValueError):
    """Text, a tokenizer or token shards cannot be used as they are.

    The message names the file, and the record or line where there is one, what was found, and what is
    allowed. Verbs print it on one line without a traceback.
    """
