"""A name for the result of a recurrence, which a policy of rematerialisation can keep.

    jax.checkpoint(f, policy=jax.checkpoint_policies.save_only_these_names(RECURRENCE))

A name that is given to the result of an operation with a derivative of its own does not reach what that
derivative keeps, so the operations name it themselves.
"""

from typing import TypeVar

import jax
from jax.ad_checkpoint import checkpoint_name

Arrays = TypeVar("Arrays")

RECURRENCE = "recurrence"


def named(arrays: Arrays) -> Arrays:
    """Return arrays under the name `RECURRENCE`."""
    return jax.tree.map(lambda array: checkpoint_name(array, RECURRENCE), arrays)
