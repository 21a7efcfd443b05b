"""Every wrong value is refused by its path, what was found and what is allowed; right ones become typed."""

import re
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
import pytest

from birdie_jax.storage import FILE_KEY, Bounds, describe_type, parse_typed, to_plain


class FieldError(ValueError):
    pass


@dataclass(frozen=True)
class Shape:
    rows: int
    scale: float = 1.0


@dataclass(frozen=True)
class Page:
    name: str
    shapes: tuple[Shape, ...]
    cover: Shape | None
    cursor: int = field(default=0, metadata={FILE_KEY: "position"})


AtLeastOne = Annotated[int, Bounds(at_least=1, at_most=9)]
PAGE = {"name": "a", "shapes": [{"rows": 1, "scale": 2}], "cover": None, "position": 3}


def test_a_dataclass_is_read_and_written_under_its_names_in_files():
    page = parse_typed(Page, PAGE, "page", FieldError)
    assert page == Page("a", (Shape(1, 2.0),), None, 3)
    assert type(page.shapes[0].scale) is float
    assert to_plain(page) == PAGE
    assert list(to_plain(page)) == list(PAGE)


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (int, np.int64(3), 3),
        (float, 3, 3.0),
        (bool, True, True),
        (int | None, None, None),
        (int | tuple[int, int], [1, 2], (1, 2)),
        (tuple[float, float], (0, 0.5), (0.0, 0.5)),
        (list[str], ["a"], ["a"]),
        (dict[str, Any], {"a": [1, {}]}, {"a": [1, {}]}),
        (dict[str, int], {"a": 1}, {"a": 1}),
        (Literal["a", "b"], "b", "b"),
        (Any, object, object),
        (Shape, {"rows": 1, "scale": 1}, Shape(1)),
    ],
)
def test_values_of_their_kind(kind, value, expected):
    found = parse_typed(kind, value, "field", FieldError)
    assert found == expected and type(found) is type(expected)


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (int, True, "field: found True (bool); allowed: int"),
        (int, 1.0, "field: found 1.0 (float); allowed: int"),
        (int, "1", "field: found '1' (str); allowed: int"),
        (float, float("nan"), "field: found nan; allowed: a finite number"),
        (float, False, "field: found False (bool); allowed: float"),
        (bool, 1, "field: found 1 (int); allowed: bool"),
        (str, None, "field: found None (NoneType); allowed: str"),
        (int | None, 9.5, "field: found 9.5 (float); allowed: int or None"),
        (AtLeastOne | None, -1, "field: found -1 (int); allowed: at least 1 or None"),
        (AtLeastOne | None, "x", "field: found 'x' (str); allowed: int or None"),
        (int | tuple[int, int], [1], "field: found [1] (list); allowed: int or [int, int]"),
        (tuple[int, int], [1, 2, 3], "field: found [1, 2, 3] (list); allowed: [int, int]"),
        (tuple[int, ...], [1, "2"], "field[1]: found '2' (str); allowed: int"),
        (tuple[int, ...], "12", "field: found '12' (str); allowed: a list of int"),
        (dict[str, int], {"a": "b"}, "field.a: found 'b' (str); allowed: int"),
        (dict[str, Any], 3, "field: found 3; allowed: a section with fields"),
        (Literal["a", "b"], "c", "field: found 'c'; allowed: a, b"),
        (Shape, 3, "field: found 3; allowed: a section with fields"),
        (Shape, {"rows": 1, "cols": 2}, "field.cols: unknown field; allowed: rows, scale"),
        (Shape, {"rows": 1}, "field.scale: missing"),
        (Page, PAGE | {"shapes": [{"rows": 1, "scale": "x"}]}, "field.shapes[0].scale: found 'x' (str);"),
        (Page, PAGE | {"cover": {"rows": 1}}, "field.cover.scale: missing"),
        (Page, PAGE | {"cover": 4}, "field.cover: found 4 (int); allowed: a section with fields or None"),
        (Page, PAGE | {"position": None}, "field.position: found None (NoneType); allowed: int"),
    ],
)
def test_wrong_values_are_refused_by_path(kind, value, message):
    with pytest.raises(FieldError, match=f"^{re.escape(message)}"):
        parse_typed(kind, value, "field", FieldError)


def test_kinds_have_names_in_messages():
    assert describe_type(int | tuple[float, float] | None) == "int or [float, float] or None"
