"""Registries of objectives, tasks, policies, models and others that a configuration names."""

from typing import TypeVar

from birdie_jax.errors import ConfigError, nearest_first, shown

_Thing = TypeVar("_Thing")


class Registry(dict[str, _Thing]):
    """The things of one kind by name, in the order of registration.

    Attributes:
        field: the configuration field with such a name, for messages.
    """

    def __init__(self, field: str, /, **things: _Thing):
        """Create a registry for the names of `field`, with initial things."""
        super().__init__(things)
        self.field = field

    def register(self, name: str, thing: _Thing) -> None:
        """Register a thing by name; an equal thing may be registered again.

        Raises:
            ValueError: another thing has the name.
        """
        if self.setdefault(name, thing) != thing:
            raise ValueError(f"{self.field}: found a second {name!r} to register; allowed: a new name")

    def find(self, name: object, where: str = "") -> _Thing:
        """Return the thing with a name.

        Args:
            name: the name, from a configuration or a command line.
            where: the field or flag that the message names instead of `field`.

        Raises:
            ConfigError: the name is unknown; the message lists the known names, nearest first.
        """
        if not isinstance(name, str) or name not in self:
            allowed = nearest_first(name, self)
            raise ConfigError(f"{where or self.field}: found {shown(name)}; allowed: {allowed}")
        return self[name]

    def names_in(self, text: str) -> list[str]:
        """Return the names of a comma-separated list, in its order.

        Raises:
            ConfigError: a name is unknown or occurs twice.
        """
        names = [name.strip() for name in text.split(",") if name.strip()]
        if any(name not in self or names.count(name) > 1 for name in names):
            raise ConfigError(
                f"{self.field}: found {text!r}; allowed: names of {', '.join(sorted(self))}, each once, "
                "with commas between them"
            )
        return names
