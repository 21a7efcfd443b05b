"""Griffin: layers of Hawk and layers of local attention take turns (De et al. 2024, section 3)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from birdie_jax.config_types import RequiredName
from birdie_jax.models.hybrid_config import HybridConfig
from birdie_jax.models.registry import register_model


@dataclass(frozen=True)
class GriffinConfig(HybridConfig):
    """`config.model.griffin`.

    What the layers are like is said by `config.model.hawk` and `config.model.attention`: in the paper
    attention has one head of keys and values, `kv_heads` = 1, and a `window` of 1,024.

    Attributes:
        pattern: the kinds of the first layers, recurrent or attention, with commas between; it is repeated,
            and cut where the model ends.
    """

    section: ClassVar[str] = "griffin"
    has_attention: ClassVar[bool] = True
    kinds: ClassVar[Mapping[str, str]] = {"recurrent": "hawk_mlp", "attention": "transformer"}

    pattern: RequiredName = "recurrent,recurrent,attention"


register_model("griffin", mixer=None, config=GriffinConfig, has_mlp=True)
