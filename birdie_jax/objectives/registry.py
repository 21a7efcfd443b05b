"""Every objective by its name; a new one is one file and one line here."""

from dataclasses import fields

from birdie_jax.objectives.causal_lm import CausalLM
from birdie_jax.objectives.checks import conform
from birdie_jax.objectives.copying import Copying
from birdie_jax.objectives.deshuffling import Deshuffling
from birdie_jax.objectives.fill_in_the_middle import FillInTheMiddle
from birdie_jax.objectives.full_span_corruption import FullSpanCorruption
from birdie_jax.objectives.full_span_corruption_deshuffling import FullSpanCorruptionDeshuffling
from birdie_jax.objectives.objective import Objective
from birdie_jax.objectives.prefix_lm import PrefixLM
from birdie_jax.objectives.selective_copying import SelectiveCopying
from birdie_jax.objectives.span_corruption import SpanCorruption

OBJECTIVES: dict[str, type[Objective]] = {
    objective.name: objective
    for objective in (
        CausalLM,
        PrefixLM,
        SpanCorruption,
        FullSpanCorruption,
        FullSpanCorruptionDeshuffling,
        Deshuffling,
        Copying,
        SelectiveCopying,
        FillInTheMiddle,
    )
}


def make_objective(name: str, **parameters) -> Objective:
    """Make the objective called `name`.

    Args:
        name: a key of `OBJECTIVES`.
        **parameters: its fields, as its class documents them; a pair may also be given as a list, as
            configuration files have it.

    Raises:
        ValueError: the name, a parameter or its value is not one that is allowed; the error lists those.
    """
    if name not in OBJECTIVES:
        raise ValueError(f"objective {name!r} is unknown; allowed: {', '.join(OBJECTIVES)}")
    objective = OBJECTIVES[name]
    types = {field.name: field.type for field in fields(objective)}
    for parameter in parameters:
        if parameter not in types:
            raise ValueError(
                f"{name}: parameter {parameter!r} is unknown; allowed: {', '.join(sorted(types))}"
            )
    return objective(**{key: conform(name, key, value, types[key]) for key, value in parameters.items()})
