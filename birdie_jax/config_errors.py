"""The exception for a configuration that cannot be used."""


class ConfigError(ValueError):
    """A configuration that cannot be used; the message names the field, the value and what is allowed."""
