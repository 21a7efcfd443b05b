"""Every objective by its name. A new one is one file, and a line in `__init__.py` that imports it."""

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
    """Make the class `objective` known by its `name`; a decorator.

    Raises:
        ValueError: there is another objective of that name.
    """
    OBJECTIVES.register(objective.name, objective)
    return objective


def make_objective(name: str, /, **parameters: Any) -> Objective:
    """Make the objective called `name`.

    Args:
        name: a key of `OBJECTIVES`.
        **parameters: its fields, as its class documents them; a pair may also be given as a list, as
            configuration files have it.

    Raises:
        ValueError: the name, a parameter or its value is not one that is allowed; the error lists those.
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
