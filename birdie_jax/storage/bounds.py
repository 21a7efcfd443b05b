"""Rules for numbers and texts as part of their type: `rows: Annotated[int, Bounds(at_least=1)]`.

`parse_typed` applies the rules of a type. The type of a field defines its allowed values.
"""

import unicodedata
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

# Unicode categories: control characters, halves of surrogate pairs, ends of lines and paragraphs.
_NO_CHARACTERS_OF_A_LINE = ("Cc", "Cs", "Zl", "Zp")


@runtime_checkable
class Rule(Protocol):
    """A rule for the values of an `Annotated` type, in addition to the type."""

    def allowed_instead(self, value: object) -> str | None:
        """Return a description of the allowed values, or None if `value` is allowed."""
        ...


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The interval of a finite number. None means no bound.

    Attributes:
        at_least: the minimum.
        more_than: the largest number that is too small. It may be given together with `at_least`, because
            float32 does not distinguish some numbers above 0 from 0.
        at_most: the maximum.
        less_than: the smallest number that is too large.
        special: numbers outside of the interval that are also allowed, with a special meaning.
    """

    at_least: int | float | None = None
    more_than: int | float | None = None
    at_most: int | float | None = None
    less_than: int | float | None = None
    special: tuple[int, ...] = ()

    def __post_init__(self):
        if self.at_least is None and self.more_than is None:
            raise ValueError("Bounds: found no lower bound; allowed: at_least, more_than or both")
        if (self.at_most is None) == (self.less_than is None):
            raise ValueError("Bounds: found no or two upper bounds; allowed: at_most or less_than")

    def allowed_instead(self, value: object) -> str | None:
        """Return the bound that `value` exceeds, and both bounds of a share."""
        assert isinstance(value, int | float)
        if value in self.special:
            return None
        lower = self._lower_bound(value)
        upper = self._upper_bound(value)
        if lower is None and upper is None:
            return None
        if self.at_least == 0 and self.at_most == 1:
            return "between 0 and 1"
        if self.less_than == 1:
            low = "at least 0" if self.more_than is None else "more than 0"
            return f"{low} and less than 1"
        return lower or upper

    def _lower_bound(self, value: int | float) -> str | None:
        special = "".join(f"{number}, " for number in self.special[:-1])
        special += "".join(f"{number} or " for number in self.special[-1:])
        if self.more_than is not None and value <= self.more_than:
            return f"{special}more than {_written(self.more_than)}"
        if self.at_least is not None and value < self.at_least:
            return f"{special}at least {_written(self.at_least)}"
        return None

    def _upper_bound(self, value: int | float) -> str | None:
        if self.less_than is not None and value >= self.less_than:
            return f"less than {_written(self.less_than)}"
        if self.at_most is not None and value > self.at_most:
            return f"at most {_written(self.at_most)}"
        return None


@dataclass(frozen=True, kw_only=True)
class Line:
    """A text of one line.

    Attributes:
        at_most: the maximum number of characters.
        not_empty: whether the text must have at least one character.
    """

    at_most: int
    not_empty: bool = False

    def allowed_instead(self, value: object) -> str | None:
        """Return the rule of a line of text that `value` breaks."""
        assert isinstance(value, str)
        if self.not_empty and not value:
            return "a text that is not empty"
        if len(value) > self.at_most:
            return f"a text of at most {_written(self.at_most)} characters"
        if any(unicodedata.category(character) in _NO_CHARACTERS_OF_A_LINE for character in value):
            return "one line of text, without control characters and halves of surrogate pairs"
        return None


def _written(number: int | float) -> str:
    """Return a bound as text; long counts have commas."""
    return f"{number:,}" if isinstance(number, int) else f"{number:g}"
