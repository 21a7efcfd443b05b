"""The registry of objectives. To add one, write a file and import it in `__init__.py`."""

import typing
from dataclasses import fields
from typing import Any, TypeVar

from birdie_jax.errors import nearest_first, shown
from birdie_jax.objectives.objective import Objective
from birdie_jax.registry import Registry
from birdie_jax.storage import parse_typed

_Objective = TypeVar("_Objective", bound=type[Objective])

OBJECTIVES: Registry[type[Objective]] = Registry("objective")


def register_objective(objective: _Objective) -> _Objective:
    """Register the class `objective` under its `name`. Use it as a decorator.

    Raises:
        ValueError: the name is already registered.
    """
    OBJECTIVES.register(objective.name, objective)
    return objective


def make_objective(name: str, /, **parameters: Any) -> Objective:
    """Make the objective called `name`.

    Args:
        name: a key of `OBJECTIVES`.
        **parameters: the fields of the objective's class. A pair may also be a list, as in configuration
            files.

    Raises:
        ValueError: the name, a parameter or a value is not allowed. The error lists the allowed ones.
    """
    objective = OBJECTIVES.find(name)
    hints = typing.get_type_hints(objective)
    types = {field.name: hints[field.name] for field in fields(objective)}
    for parameter in parameters:
        if parameter not in types:
            raise ValueError(
                f"{name}: parameter {shown(parameter)} is unknown; allowed: "
                f"{nearest_first(parameter, sorted(types))}"
            )
    return objective(
        **{
            key: parse_typed(types[key], value, f"{name}: {key}", ValueError)
            for key, value in parameters.items()
        }
    )
