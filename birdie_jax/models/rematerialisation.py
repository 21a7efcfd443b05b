"""What a block keeps for the gradient, and what is computed again: the values of `config.model.remat`.

A kept product costs the bytes of its result and saves its FLOPs; a kept recurrence saves a pass over its
inputs. The names below mark these results where they are made.
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
"""The policy of each value of `config.model.remat`, from what keeps the most to what keeps the least.

- none: keeps everything; nothing is computed again.
- recurrences: keeps the matrix products and what the recurrence of a mixer gives.
- dots: keeps the matrix products.
- mixer: keeps the products of mixers; those into the inner width of an MLP are computed again.
- full: keeps the input of each block.
- offload: keeps the input of each block in the memory of the host. The results of products are not sent
  there: they take longer on the way than to compute again (docs/launch_presets.md).
"""


CHOICES = tuple(level for level in LEVELS if level != "none")
"""What `auto` chooses from on an accelerator, the least computed again first.

To keep everything is no choice: it moves more bytes and saves no product (docs/launch_presets.md has the
figures).
"""


def policy_of(remat: str) -> Callable[..., Any] | None:
    """Return the policy of a value of `config.model.remat`; None: everything is kept.

    Where `auto` has not been resolved, as in a model that only generates, it is that of `full`.
    """
    return LEVELS["full" if remat == AUTO else remat]
