"""The rematerialisation policies of a block: the values of `config.model.remat`.

A policy selects the results that a block keeps for the gradient; the others are computed again. A kept
product costs the bytes of its result and saves its FLOPs. A kept recurrence saves a pass over its inputs.
The names below mark these results.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import jax

from pallas_kernels.rematerialisation import RECURRENCE

PROJECTION, MLP_PROJECTION = "projection", "mlp_projection"
BLOCK_INPUT = "block_input"
AUTO = "auto"

_keep_only = jax.checkpoint_policies.save_only_these_names

LEVELS: Mapping[str, Callable[..., Any] | None] = MappingProxyType(
    {
        "none": None,
        "recurrences": _keep_only(PROJECTION, MLP_PROJECTION, RECURRENCE),
        "dots": _keep_only(PROJECTION, MLP_PROJECTION),
        "mixer": _keep_only(PROJECTION),
        "full": jax.checkpoint_policies.nothing_saveable,
        "offload": jax.checkpoint_policies.save_and_offload_only_these_names(
            names_which_can_be_saved=[],
            names_which_can_be_offloaded=[BLOCK_INPUT],
            offload_src="device",
            offload_dst="pinned_host",
        ),
    }
)
"""The policy of each value of `config.model.remat`, from the most kept results to the least.

- none: keeps everything.
- recurrences: keeps the matrix products and the outputs of recurrences.
- dots: keeps the matrix products.
- mixer: keeps the products of mixers; the products into the inner width of an MLP are computed again.
- full: keeps the input of each block.
- offload: keeps the input of each block in host memory. It does not offload products, because the transfer
  takes longer than computing them again (docs/launch_presets.md).
"""


CHOICES = tuple(level for level in LEVELS if level != "none")
"""The levels that `auto` tries on an accelerator, from the least recomputation to the most.

`none` is not included: it moves more bytes and saves no product (docs/launch_presets.md has the figures).
"""


def policy_of(remat: str) -> Callable[..., Any] | None:
    """Return the policy of a value of `config.model.remat`; None keeps everything.

    If `auto` is not resolved, as in a model that only generates, the policy is that of `full`.
    """
    return LEVELS["full" if remat == AUTO else remat]
