"""The cache of one layer within the cache of all layers, for loops over layers."""

from typing import Protocol, runtime_checkable

import jax
from jaxtyping import Array, Int, PyTree

from birdie_jax.models.registry import Cache


@runtime_checkable
class InPlaceCache(Protocol):
    """A cache that a layer updates for one token within the cache of all layers, without a copy."""

    def of_layer(self, layer: Int[Array, ""]) -> Cache:
        """Return the cache that a layer reads, if this one has all layers on its leading axis."""
        ...

    def with_layer(self, layer: Int[Array, ""], new: Cache) -> "InPlaceCache":
        """Return the cache of all layers with the cache `new` that the layer returned."""
        ...


def cache_of_layer(stacked: Cache, layer: Int[Array, ""]) -> Cache:
    """Return the cache that a layer reads for one token; `stacked` has layers on its leading axis."""
    return stacked.of_layer(layer) if isinstance(stacked, InPlaceCache) else slice_layer(stacked, layer)


def cache_with_layer(stacked: Cache, layer: Int[Array, ""], new: Cache) -> Cache:
    """Return the cache of all layers with the cache `new` that a layer returned."""
    if isinstance(stacked, InPlaceCache):
        return stacked.with_layer(layer, new)
    return update_layer(stacked, layer, new)


def slice_layer(stacked: PyTree[Array], layer: Int[Array, ""]) -> PyTree[Array]:
    """Return a layer's part of arrays with layers on the leading axis."""
    return jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, layer, keepdims=False), stacked)


def update_layer(stacked: PyTree[Array], layer: Int[Array, ""], new: PyTree[Array]) -> PyTree[Array]:
    """Return arrays with layers on the leading axis, with the part `new` of a layer."""

    def update(leaf, one):
        return jax.lax.dynamic_update_index_in_dim(leaf, one, layer, 0)

    return jax.tree.map(update, stacked, new)
