"""Mappings between models of `transformers` and of this project: configurations and tensors."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import ml_collections
import numpy as np
from jaxtyping import Float

from birdie_jax.config import Config, ModelConfig, parse_config, to_dict
from birdie_jax.errors import ConfigError, InteropError, shown
from birdie_jax.storage.typed import parse_typed
from birdie_jax.vocabulary import NUM_SPECIAL_TOKENS

# Without a start token a prompt begins a text, as in causal language modelling.
_ARMS = {"causal_lm": {"objective": "causal_lm"}}


def read_built(described: Mapping[str, Any], built: Mapping[str, Any], path: Path) -> None:
    """Check the settings that support only one value. Files may omit them.

    Args:
        described: the contents of a config.json.
        built: name -> value of each such setting.
        path: the file, for messages.

    Raises:
        InteropError: a setting has another value.
    """
    for name, value in built.items():
        if described.get(name, value) != value:
            raise InteropError(
                f"{path}: {name}: found {shown(described[name])}, which is not supported; "
                f"allowed: {value!r}"
            )


def check_model(fields: Sequence[tuple[str, Any, Any]], theirs: str) -> None:
    """Check the fields of a model that another program supports with one value only.

    Args:
        fields: the name of each field, its value and the value in the other program.
        theirs: the other program, for messages.

    Raises:
        InteropError: a field has another value.
    """
    for name, found, allowed in fields:
        if found != allowed:
            raise InteropError(f"{name}: found {found!r}; allowed: {allowed!r}, as in {theirs}")


Settings = TypeVar("Settings")


def read_fields(kind: type[Settings], described: Mapping[str, Any], path: Path, **derived: Any) -> Settings:
    """Return the settings of a config.json that are fields of `kind`, a dataclass.

    Args:
        kind: the dataclass; a field without a default must be in the file, or derived.
        described: the contents of the file.
        path: the file, for messages.
        derived: fields that other settings give if the file lacks them.

    Raises:
        InteropError: a field is missing or unusable, or differs from its derived value.
    """
    fields = dataclasses.fields(cast(Any, kind))
    given = {field.name: described[field.name] for field in fields if field.name in described}
    defaults = {field.name: field.default for field in fields if field.default is not dataclasses.MISSING}
    for name, value in derived.items():
        if given.setdefault(name, value) != value:
            raise InteropError(
                f"{path}: {name}: found {shown(given[name])}; allowed: {shown(value)}, which other "
                "fields give"
            )
    return parse_typed(kind, defaults | given, str(path), InteropError)


def ratio_of(size: int, width: int) -> int | float:
    """Return r such that `transformers`, which computes int(r * width), finds `size`.

    The rounded quotient can give a product just below `size`, which int() would reduce by one.
    """
    nearest = size / width
    above = math.nextafter(nearest, math.inf)
    ratio = next((one for one in (nearest, above) if one * width == size), above)
    return int(ratio) if ratio == int(ratio) else ratio


def width_of(ratio: int | float, width: int) -> int | float:
    """Return int(ratio * width), as `transformers` computes it; an infinite number stays."""
    size = ratio * width
    return int(size) if math.isfinite(size) else size


def foreign_config(
    model: ModelConfig, *, vocab_size: int, end_token: int | None, conv_taps: int, path: Path
) -> Config:
    """Return the configuration of a model whose token i is token 256 + i here. It has no other tokens.

    Args:
        model: the architecture, except the fields that this function sets.
        vocab_size: the number of the model's tokens.
        end_token: the id of the model's end-of-text token.
        conv_taps: the number of taps of the model's short convolution.
        path: the file of the model, for messages.

    Raises:
        InteropError: the model has no end-of-text token, or this program does not support a field.
    """
    if end_token is None or not 0 <= end_token < vocab_size:
        raise InteropError(
            f"{path}: eos_token_id: found {end_token}; allowed: the id of the token that ends "
            f"a text, below vocab_size = {vocab_size}"
        )
    model = dataclasses.replace(
        model,
        start_token=False,
        end_token=NUM_SPECIAL_TOKENS + end_token,
        min_predicted_id=NUM_SPECIAL_TOKENS,
        max_predicted_id=NUM_SPECIAL_TOKENS + vocab_size - 1,
    )
    config = Config(model=model)
    spacing = max(config.batching.spacing, conv_taps - 1)
    config = dataclasses.replace(
        config,
        batching=dataclasses.replace(config.batching, spacing=spacing),
        objectives=dataclasses.replace(config.objectives, arms=_ARMS),
    )
    try:
        return parse_config(ml_collections.ConfigDict(to_dict(config)))
    except ConfigError as error:
        raise InteropError(f"{path}: {error}") from error


Tensor = Float[np.ndarray, "..."]


class Form(NamedTuple):
    """The conversion of a tensor in both directions.

    Attributes:
        to_ours: their tensor -> our tensor.
        to_theirs: our tensor -> their tensor.
    """

    to_ours: Callable[[Tensor], Tensor]
    to_theirs: Callable[[Tensor], Tensor]


class Counterpart(NamedTuple):
    """A tensor of a `transformers` model and its counterpart here.

    Attributes:
        theirs: the name of their tensor.
        ours: the names of our tensors. Their tensor stacks them.
        form: the conversion of each of our tensors.
    """

    theirs: str
    ours: tuple[str, ...]
    form: Form

    def take_apart(self, tensor: Tensor, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
        """Split their tensor into ours, which have the given `shapes`."""
        rows = [Counterpart(self.theirs, (name,), self.form).shape(shapes)[0] for name in self.ours]
        parts = np.split(tensor, np.cumsum(rows)[:-1])
        return {name: self.form.to_ours(part) for name, part in zip(self.ours, parts, strict=True)}

    def put_together(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Join our tensors into theirs."""
        return np.concatenate([self.form.to_theirs(tensors[name]) for name in self.ours])

    def shape(self, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
        """Return the shape of their tensor, given the shapes of ours."""
        # A broadcast array takes no memory.
        parts = [
            self.form.to_theirs(np.broadcast_to(np.float32(0), shapes[name])).shape for name in self.ours
        ]
        return (sum(part[0] for part in parts), *parts[0][1:])


SAME = Form(lambda tensor: tensor, lambda tensor: tensor)
# Their maps are [outputs, inputs]; our maps are [inputs, outputs].
MAP = Form(lambda tensor: tensor.T, lambda tensor: tensor.T)
# Their taps are [channels, 1, taps], oldest input first. Our taps are [taps, channels], newest input first.
TAPS = Form(lambda tensor: tensor[:, 0, ::-1].T, lambda tensor: tensor.T[:, None, ::-1])


def of_layer(parts: tuple[Counterpart, ...], theirs: str, layer: int) -> tuple[Counterpart, ...]:
    """Return the tensors of a layer.

    Args:
        parts: the tensors of any layer, with names relative to the layer.
        theirs: their name of the layer, without its number.
        layer: the number of the layer.
    """
    return tuple(
        Counterpart(
            f"{theirs}.{layer}.{one.theirs}",
            tuple(f"layers.{layer}.{name}" for name in one.ours),
            one.form,
        )
        for one in parts
    )
