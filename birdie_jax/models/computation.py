"""The fields that define a model's computation, and that parameter names and shapes do not show."""

from dataclasses import fields
from typing import Any

from birdie_jax.config_sections import ModelConfig
from birdie_jax.errors import shown
from birdie_jax.models.registry import mixer_config
from birdie_jax.storage.workdir import differences


def computation_of(model: ModelConfig) -> dict[str, Any]:
    """Return the fields that define what a model computes, by their paths below `config.model`.

    They exclude `free_fields` and the fields that its mixer does not read.
    """
    own = {field.name: getattr(model, field.name) for field in fields(model)}
    derived = {"embedding_scale": model.embedding_scale or model.features**0.5}
    kept = {name: value for name, value in (own | derived).items() if name not in model.free_fields}
    return kept | mixer_config(model).computation(model)


def computation_differences(one: ModelConfig, other: ModelConfig) -> list[tuple[str, Any, Any]]:
    """Return (field, value in one, value in the other) where the computations of two models differ."""
    return differences(computation_of(one), computation_of(other))


def told_differences(before: ModelConfig, now: ModelConfig) -> str:
    """Describe how a model's computation differs from that of the model it starts from; empty if equal."""
    return "; ".join(
        f"config.model.{name}: it has {shown(old)}, this run {shown(new)}"
        for name, old, new in computation_differences(before, now)
    )
