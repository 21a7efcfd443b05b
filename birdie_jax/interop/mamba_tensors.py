"""The names and forms of Mamba's tensors in `transformers`, and in this project."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32

EMBEDDING, HEAD = "backbone.embeddings.weight", "lm_head.weight"
# As the authors' own program writes it.
EMBEDDING_OF_AUTHORS = "backbone.embedding.weight"

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

LAYER = (
    Counterpart("norm.weight", ("mixer_norm.scale",), SAME),
    Counterpart("mixer.in_proj.weight", ("mixer.input.kernel", "mixer.output_gate.kernel"), MAP),
    Counterpart("mixer.conv1d.weight", ("mixer.convolution.kernel",), TAPS),
    Counterpart("mixer.conv1d.bias", ("mixer.convolution.bias",), SAME),
    Counterpart("mixer.x_proj.weight", ("mixer.selection.kernel",), MAP),
    Counterpart("mixer.dt_proj.weight", ("mixer.step.kernel",), MAP),
    Counterpart("mixer.dt_proj.bias", ("mixer.step_bias",), SAME),
    Counterpart("mixer.A_log", ("mixer.A_log",), SAME),
    Counterpart("mixer.D", ("mixer.D",), SAME),
    Counterpart("mixer.out_proj.weight", ("mixer.out.kernel",), MAP),
)
"""The tensors of a layer; rows of in_proj are those of x, then those of z."""

OUTSIDE = (Counterpart("backbone.norm_f.weight", ("final_norm.scale",), SAME),)
"""The tensors outside of the layers, but for the embedding and the head, whose rows differ."""


def counterparts(layers: int) -> tuple[Counterpart, ...]:
    """Return all tensors of a model but its embedding and head."""
    return OUTSIDE + tuple(
        Counterpart(
            f"backbone.layers.{layer}.{one.theirs}",
            tuple(f"layers.{layer}.{name}" for name in one.ours),
            one.form,
        )
        for layer in range(layers)
        for one in LAYER
    )
