"""The exception for an exported model that cannot be used."""


class InteropError(ValueError):
    """A file of an exported model is missing, damaged, or does not fit the others.

    The message names the file, and the tensor where there is one, what was found, and what is allowed.
    """
