"""The names and forms of RecurrentGemma's tensors in `transformers`, and in this project."""

from itertools import chain

from birdie_jax.config import ModelConfig
from birdie_jax.interop.counterparts import MAP, SAME, TAPS, Counterpart, Form, of_layer
from birdie_jax.models.attention import AttentionConfig
from birdie_jax.models.hawk import HawkConfig
from birdie_jax.models.layer_stacks import layer_configs
from birdie_jax.models.registry import mixer_config

EMBEDDING = "model.embed_tokens.weight"


def _map(theirs: str, ours: str) -> tuple[Counterpart, Counterpart]:
    """Return a map and its bias."""
    return (
        Counterpart(f"{theirs}.weight", (f"{ours}.kernel",), MAP),
        Counterpart(f"{theirs}.bias", (f"{ours}.bias",), SAME),
    )


# The norms' weights are what is added to 1, here as there (`model.norm_offset`).
EVERY_LAYER = (
    Counterpart("temporal_pre_norm.weight", ("mixer_norm.scale",), SAME),
    Counterpart("channel_pre_norm.weight", ("mlp_norm.scale",), SAME),
    *_map("mlp_block.gate_proj", "mlp.gate"),
    *_map("mlp_block.up_proj", "mlp.in"),
    *_map("mlp_block.down_proj", "mlp.out"),
)
"""The tensors that layers of both kinds have."""

ATTENTION_LAYER = (
    *(
        Counterpart(f"temporal_block.{theirs}_proj.weight", (f"mixer.{ours}.kernel",), MAP)
        for theirs, ours in (("q", "query"), ("k", "key"), ("v", "value"))
    ),
    *_map("temporal_block.o_proj", "mixer.out"),
)
"""The further tensors of a layer of attention."""

OUTSIDE = (Counterpart("model.final_norm.weight", ("final_norm.scale",), SAME),)
"""The tensors outside of the layers, but for the embedding and the head, whose rows differ."""


def recurrent_layer(heads: int) -> tuple[Counterpart, ...]:
    """Return the further tensors of a recurrent layer whose gates have `heads` blocks."""
    # [heads, channels of a head] there.
    by_head = Form(lambda tensor: tensor.reshape(-1), lambda tensor: tensor.reshape(heads, -1))
    gates = (("input_gate", "input_gate"), ("recurrent_gate", "recurrence_gate"))
    return (
        *_map("temporal_block.linear_y", "mixer.output_gate"),
        *_map("temporal_block.linear_x", "mixer.input"),
        *_map("temporal_block.linear_out", "mixer.out"),
        Counterpart("temporal_block.conv_1d.weight", ("mixer.convolution.kernel",), TAPS),
        Counterpart("temporal_block.conv_1d.bias", ("mixer.convolution.bias",), SAME),
        Counterpart("temporal_block.rg_lru.recurrent_param", ("mixer.rg_lru.decay",), SAME),
        *(
            Counterpart(f"temporal_block.rg_lru.{theirs}_{what}", (f"mixer.rg_lru.{ours}.{name}",), form)
            for theirs, ours in gates
            for what, name, form in (("weight", "kernel", SAME), ("bias", "bias", by_head))
        ),
    )


def counterparts(model: ModelConfig) -> tuple[Counterpart, ...]:
    """Return all tensors of a model but its embedding and head."""
    recurrent = recurrent_layer(model.section(HawkConfig).heads)
    layers = (
        of_layer(
            EVERY_LAYER
            + (ATTENTION_LAYER if isinstance(mixer_config(kind), AttentionConfig) else recurrent),
            "model.layers",
            layer,
        )
        for layer, kind in enumerate(layer_configs(model))
    )
    return OUTSIDE + tuple(chain.from_iterable(layers))
