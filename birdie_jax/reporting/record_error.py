"""The one error that reading a workdir raises."""


class RecordError(ValueError):
    """A workdir that cannot be reported; the message names the file, the place and what is allowed."""
