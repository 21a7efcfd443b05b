"""The state of a model after the tokens of one sample, copied to the host to resume later."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from birdie_jax.errors import SavedStateError
from birdie_jax.models.language_model import LanguageModel


class SavedState(NamedTuple):
    """The state of a recurrent model after the tokens it has read, of constant size.

    Attributes:
        cache: the model's cache for one row, numpy arrays with layers on the leading axis.
        tokens: the number of tokens read: the context, and optionally the start token and a prefix of the
            target.
        context_tokens: the number of these tokens in the context.
        checksum: the CRC-32 of the tokens read, as little-endian int32.
    """

    cache: PyTree[np.ndarray]
    tokens: int
    context_tokens: int
    checksum: int

    @property
    def started(self) -> bool:
        """Whether the start token was read. Then the next tokens belong to the target, not the context."""
        return self.tokens > self.context_tokens


def stack_states(states: Sequence[SavedState]) -> PyTree[np.ndarray]:
    """Return one cache with the states as its rows."""
    return jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=1), *(one.cache for one in states))


def name_cache(cache: PyTree) -> dict[str, np.ndarray | jax.Array | jax.ShapeDtypeStruct]:
    """Return the arrays of a cache by name, such as `state` and `conv_tail`, without empty arrays."""
    leaves = jax.tree_util.tree_leaves_with_path(cache)
    named = {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}
    return {name: leaf for name, leaf in named.items() if leaf.size}


def cache_shapes(model: LanguageModel) -> PyTree[jax.ShapeDtypeStruct]:
    """Return the shapes and types of the cache of a recurrent model for one row."""
    return jax.eval_shape(lambda: model.empty_cache(1, 1))


def cache_from_names(model: LanguageModel, named: Mapping[str, np.ndarray]) -> PyTree[np.ndarray]:
    """Return the cache with these arrays: the inverse of `name_cache`.

    Raises:
        SavedStateError: an array is missing or unknown, or differs in shape or type from the model's cache.
    """
    shapes = cache_shapes(model)
    wanted = name_cache(shapes)
    if named.keys() != wanted.keys():
        raise SavedStateError(f"found the arrays {sorted(named)}; allowed: {sorted(wanted)}")
    for name, leaf in wanted.items():
        found = named[name]
        if (found.shape, found.dtype) != (leaf.shape, leaf.dtype):
            raise SavedStateError(
                f"array {name!r} is {found.dtype}{list(found.shape)}; "
                f"allowed: {leaf.dtype}{list(leaf.shape)}"
            )

    def find(path, leaf):
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        return named[name] if leaf.size else np.zeros(leaf.shape, jnp.dtype(leaf.dtype))

    return jax.tree_util.tree_map_with_path(find, shapes)
