"""Dropout whose mask is a function of keys of rows, of position, feature and layer, and of nothing else.

So a mask is the same however a batch is divided over devices and processes, and in however many parts its
gradient is accumulated.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from birdie_jax.array_types import Activations

# One key for each row of a batch, or of a part of it.
RowKeys = Key[Array, " rows"]
# The same for each layer.
LayerKeys = Key[Array, "layers rows"]


def keys_of_layers(row_keys: RowKeys, layers: int) -> LayerKeys:
    """Return the key of each row in each of `layers` layers."""
    fold = jax.vmap(jax.random.fold_in, in_axes=(0, None))
    return jax.vmap(fold, in_axes=(None, 0))(row_keys, jnp.arange(layers))


def dropout(x: Activations, rate: float, row_keys: RowKeys | None, branch: int) -> Activations:
    """Return `x` with a share `rate` of its values zero and the others divided by 1 - rate.

    Srivastava et al. 2014; scaled while training, so that nothing is to be done afterwards.

    Args:
        x: the output of a branch of a block.
        rate: the probability that a value becomes zero.
        row_keys: the key of each row of `x` in this layer; None: `x` as it is.
        branch: the number of the branch within its block, by which masks differ.
    """
    if row_keys is None or rate == 0:
        return x

    def keep(key: Array) -> Array:
        return jax.random.bernoulli(jax.random.fold_in(key, branch), 1 - rate, x.shape[1:])

    return jnp.where(jax.vmap(keep)(row_keys), x / (1 - rate), jnp.zeros((), x.dtype))
