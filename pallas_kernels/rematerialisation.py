"""A checkpoint name for the results of recurrences, for rematerialisation policies.

    jax.checkpoint(f, policy=jax.checkpoint_policies.save_only_these_names(RECURRENCE))

Each operation names its own results, because a name that a caller adds does not reach the residuals of a
custom derivative.
"""

from typing import TypeVar

import jax
from jax.ad_checkpoint import checkpoint_name

Arrays = TypeVar("Arrays")

RECURRENCE = "recurrence"


def named(arrays: Arrays) -> Arrays:
    """Give arrays the checkpoint name `RECURRENCE`."""
    return jax.tree.map(lambda array: checkpoint_name(array, RECURRENCE), arrays)
