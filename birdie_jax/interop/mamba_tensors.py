"""The names and forms of Mamba's tensors in `transformers`, and in this project."""

from itertools import chain

from birdie_jax.config import ModelConfig
from birdie_jax.interop.counterparts import MAP, SAME, TAPS, Counterpart, of_layer

EMBEDDING = "backbone.embeddings.weight"
# As the authors' own program writes it.
EMBEDDING_OF_AUTHORS = "backbone.embedding.weight"

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


def counterparts(model: ModelConfig) -> tuple[Counterpart, ...]:
    """Return all tensors of a model but its embedding and head."""
    layers = [of_layer(LAYER, "backbone.layers", layer) for layer in range(model.layers)]
    return OUTSIDE + tuple(chain.from_iterable(layers))
