"""Rules that turn a record into a document: the field with its text, and conditions on its fields.

A filter is one or more conditions joined by `and`: `language == en and len(text) >= 200`. A condition is a
field or its length in characters, an operator, and a value: a number, true, false, null, or a string. A
string with spaces needs double quotes.
"""

import json
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from birdie_jax.errors import DataError, shown

_OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_CONDITION = re.compile(
    r"\s*(?:len\((?P<measured>[^\s()=!<>]+)\)|(?P<field>[^\s()=!<>]+))\s*(?P<operator>==|!=|<=|>=|<|>)\s*"
    r"(?P<value>\"(?:[^\"\\]|\\.)*\"|[^\s\"=!<>]+)\s*"
)
_EXAMPLE = "FIELD OPERATOR VALUE, as in 'language == en and len(text) >= 200'"


@dataclass(frozen=True)
class Condition:
    """A condition on a field of a record.

    Attributes:
        field: the name of the field.
        is_length: whether to compare the number of characters of the field.
        operator: `==`, `!=`, `<`, `<=`, `>` or `>=`.
        value: the value to compare the field with.
    """

    field: str
    is_length: bool
    operator: str
    value: str | int | float | bool | None

    def holds(self, record: Mapping[str, Any], place: str) -> bool:
        """Return whether a record satisfies the condition. A null is never less or more than anything.

        Args:
            record: the record.
            place: the file and the record, for messages.

        Raises:
            DataError: the record has no such field, or the field has a type that cannot be compared.
        """
        found = find_field(record, self.field, place)
        if self.is_length:
            if not isinstance(found, str):
                raise self._unusable(found, place, "a string")
            found = len(found)
        if found is None or self.value is None:
            return self.operator in ("==", "!=") and _OPERATORS[self.operator](found, self.value)
        kinds: Any = {str: str, bool: bool}.get(type(self.value), int | float)
        if not isinstance(found, kinds) or (isinstance(found, bool) and kinds is not bool):
            names = {str: "a string", bool: "true or false"}
            raise self._unusable(found, place, names.get(type(self.value), "a number"))
        return _OPERATORS[self.operator](found, self.value)

    def _unusable(self, found: object, place: str, wanted: str) -> DataError:
        return DataError(
            f"{place}: field {shown(self.field)} is a {type(found).__name__}; the filter compares it with "
            f"{shown(self.value)}; allowed: {wanted}"
        )


@dataclass(frozen=True)
class DocumentRules:
    """Rules that turn the records of a source into documents.

    Attributes:
        text_field: the field of JSON, JSON lines and Parquet that contains the text; `a.b` is field b of
            field a, unless there is a field named `a.b`.
        separator: the string that separates documents in a text file; empty if a file is one document.
        conditions: the conditions that a record must satisfy.
        deduplicate: whether to leave out repeated texts.
    """

    text_field: str = "text"
    separator: str = ""
    conditions: tuple[Condition, ...] = ()
    deduplicate: bool = False

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of all fields to read, each once, the text field first."""
        return tuple(dict.fromkeys((self.text_field, *(each.field for each in self.conditions))))

    def is_kept(self, record: Mapping[str, Any], place: str) -> bool:
        """Return whether a record satisfies all conditions.

        Raises:
            DataError: as for `Condition.holds`.
        """
        return all(condition.holds(record, place) for condition in self.conditions)


def make_rules(
    text_field: str, document_separator: str, document_filter: str, deduplicate: bool
) -> DocumentRules:
    r"""Parse the rules that a user gives.

    Args:
        text_field: the field with the text.
        document_separator: the separator in text files; `\n` in it is a line feed, `\r` a carriage return,
            `\t` a tab.
        document_filter: the conditions, in the syntax described at the top of this module; empty for none.
        deduplicate: whether to leave out repeated texts.

    Raises:
        DataError: an argument is invalid.
    """
    if not text_field:
        raise DataError("text_field is ''; allowed: the name of a field")
    if any("\ud800" <= character <= "\udfff" for character in document_separator):
        raise DataError(f"document_separator is {shown(document_separator)}; allowed: Unicode text")
    separator = document_separator.replace("\\n", "\n").replace("\\r", "\r").replace("\\t", "\t")
    return DocumentRules(text_field, separator, _parse_filter(document_filter), deduplicate)


def find_field(record: Mapping[str, Any], name: str, place: str) -> Any:
    """Return the field of a record with a name, or else at a dotted path.

    Raises:
        DataError: there is no such field.
    """
    found: Any = record
    rest = name
    while isinstance(found, Mapping):
        if rest in found:
            return found[rest]
        first, dot, rest = rest.partition(".")
        if not dot:
            break
        found = found.get(first)
    raise DataError(f"{place}: has no field {shown(name)}; its fields are {shown(sorted(record))}")


def _parse_filter(text: str) -> tuple[Condition, ...]:
    if not text.strip():
        return ()
    conditions, position = [], 0
    while True:
        found = _CONDITION.match(text, position)
        end = found.end() if found else position
        joined = re.compile(r"and\s").match(text, end)
        if not found or (end < len(text) and not joined):
            raise DataError(
                f"filter {shown(text)}: cannot be parsed from character {end} on: {shown(text[end:])}; "
                f"allowed: {_EXAMPLE}"
            )
        conditions.append(_make_condition(found, text))
        if not joined:
            return tuple(conditions)
        position = joined.end()


def _make_condition(found: re.Match[str], text: str) -> Condition:
    value = found["value"]
    try:
        # Without parse_constant, Python also parses NaN and infinity.
        value = json.loads(value, parse_constant=str)
    except ValueError:
        if value.startswith('"'):
            raise DataError(f"filter {shown(text)}: {shown(value)} is not a JSON string") from None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not isinstance(value, str | bool | None) and not is_number:
        raise DataError(f"filter {shown(text)}: found {shown(value)}; allowed: a number, a word or a text")
    is_length = found["measured"] is not None
    if not is_number and (is_length or found["operator"] not in ("==", "!=")):
        raise DataError(
            f"filter {shown(text)}: found {shown(value)} after {found['operator']}; allowed: a number"
        )
    return Condition(found["measured"] or found["field"], is_length, found["operator"], value)
