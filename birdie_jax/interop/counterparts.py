"""Tensors of models of `transformers` beside those of the same models here: names and forms."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32

Tensor = Float32[np.ndarray, "..."]


class Form(NamedTuple):
    """How a tensor is written here and there.

    Attributes:
        to_ours: their tensor -> ours.
        to_theirs: our tensor -> theirs.
    """

    to_ours: Callable[[Tensor], Tensor]
    to_theirs: Callable[[Tensor], Tensor]


class Counterpart(NamedTuple):
    """A tensor of theirs, and what it is here.

    Attributes:
        theirs: its name there.
        ours: the names of its parts here; theirs has them one below the other.
        form: how each part is written.
    """

    theirs: str
    ours: tuple[str, ...]
    form: Form

    def take_apart(self, tensor: Tensor) -> dict[str, Tensor]:
        """Return our tensors of theirs."""
        parts = np.split(tensor, len(self.ours))
        return {name: self.form.to_ours(part) for name, part in zip(self.ours, parts, strict=True)}

    def put_together(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return their tensor of ours."""
        return np.concatenate([self.form.to_theirs(tensors[name]) for name in self.ours])

    def shape(self, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
        """Return the shape of their tensor for those of ours."""
        # Takes no memory, whatever the shape.
        parts = [
            self.form.to_theirs(np.broadcast_to(np.float32(0), shapes[name])).shape for name in self.ours
        ]
        return (sum(part[0] for part in parts), *parts[0][1:])


SAME = Form(lambda tensor: tensor, lambda tensor: tensor)
# Maps are [outputs, inputs] there, and [inputs, outputs] here.
MAP = Form(lambda tensor: tensor.T, lambda tensor: tensor.T)
# [channels, 1, taps] there, the tap of the oldest input first; [taps, channels] here, that of the newest.
TAPS = Form(lambda tensor: tensor[:, 0, ::-1].T, lambda tensor: tensor.T[:, None, ::-1])


def of_layer(parts: tuple[Counterpart, ...], theirs: str, layer: int) -> tuple[Counterpart, ...]:
    """Return the tensors of a layer.

    Args:
        parts: those of any layer, by their names within it.
        theirs: the name of the layer there, without its number.
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
