"""Things of one kind by name: objectives, tasks, policies, models and what else a configuration names."""

from typing import TypeVar

from birdie_jax.errors import ConfigError, nearest_first, shown

_Thing = TypeVar("_Thing")


class Registry(dict[str, _Thing]):
    """The things of one kind by their names, in the order of registration.

    Attributes:
        field: what messages name: the field of a configuration that holds such a name.
    """

    def __init__(self, field: str, /, **things: _Thing):
        """Make a registry of what `field` names, with the things that are known from the start."""
        super().__init__(things)
        self.field = field

    def register(self, name: str, thing: _Thing) -> None:
        """Make a thing known by its name. An equal one of that name changes nothing.

        Raises:
            ValueError: the name belongs to another thing.
        """
        if self.setdefault(name, thing) != thing:
            raise ValueError(f"{self.field}: found a second {name!r} to register; allowed: a new name")

    def find(self, name: object, where: str = "") -> _Thing:
        """Return the thing of that name.

        Args:
            name: the name, as a configuration or a command line has it.
            where: what the message names instead of `field`.

        Raises:
            ConfigError: there is none of that name; lists the names that there are, the nearest first.
        """
        if not isinstance(name, str) or name not in self:
            allowed = nearest_first(name, self)
            raise ConfigError(f"{where or self.field}: found {shown(name)}; allowed: {allowed}")
        return self[name]

    def names_in(self, text: str) -> list[str]:
        """Return the names of a list with commas between them, in its order.

        Raises:
            ConfigError: one of the names is unknown, or stands twice.
        """
        names = [name.strip() for name in text.split(",") if name.strip()]
        if any(name not in self or names.count(name) > 1 for name in names):
            raise ConfigError(
                f"{self.field}: found {text!r}; allowed: names of {', '.join(sorted(self))}, each once, "
                "with commas between them"
            )
        return names
