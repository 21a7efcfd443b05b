"""A checkpoint name for the results of recurrences, for rematerialisation policies.

    jax.checkpoint(f, policy=jax.checkpoint_policies.save_only_these_names(RECURRENCE))

Each operation names its own results: a name given outside an operation with a custom derivative does not
reach the residuals of that derivative.
"""

from typing import TypeVar

import jax
from jax.ad_checkpoint import checkpoint_name

Arrays = TypeVar("Arrays")

RECURRENCE = "recurrence"


def named(arrays: Arrays) -> Arrays:
    """Give arrays the checkpoint name `RECURRENCE`."""
    return jax.tree.map(lambda array: checkpoint_name(array, RECURRENCE), arrays)
