"""Information flow and redundancy by layer, dense and pruned (Simba, Figures 2 and 5, appendix A.2)."""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int32, PyTree

from birdie_jax.array_types import Activations
from birdie_jax.models import LanguageModel
from birdie_jax.objectives import Objective
from birdie_jax.pruning import PrunedLayer, PruningSettings, pruned_hidden
from birdie_jax.pruning.pruned_prefill import PromptRows
from birdie_jax.pruning_cost.pruned_prompts import make_rows, protected_count

BINS = 5


@dataclass(frozen=True)
class LayerFlow:
    """What the layers of one pass do with tokens, means over windows.

    Attributes:
        flow: for each layer and each of `BINS` equal parts of the prompt, the mean influence of a token
            that the layer has read, as a share of the norm of the output at the last token; NaN where none
            is left.
        redundancy: for each layer, the mean cosine of what the block gives for adjacent tokens.
        mixer_redundancy: the same of what its sequence mixer gives.
    """

    flow: Float[np.ndarray, "layers bins"]
    redundancy: Float[np.ndarray, " layers"]
    mixer_redundancy: Float[np.ndarray, " layers"]


def measure_flow(
    model: LanguageModel,
    params: PyTree,
    objective: Objective,
    contexts: Int32[np.ndarray, "windows context"],
    settings: PruningSettings,
) -> LayerFlow:
    """Return the flow of windows, which are read at once.

    Args:
        model: a model whose layers give scores.
        params: its parameters.
        objective: the form in which contexts are read.
        contexts: the tokens of the contexts.
        settings: the settings of pruning, by the absolute value of channels that run forward.

    Raises:
        PruningError: the settings are others, or the layers give no scores.
    """
    rows = make_rows(objective, contexts, np.arange(len(contexts)))
    measure = jax.jit(partial(_flow_sums, model, settings, protected_count(rows, settings)))
    sums = [
        jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), layer) for layer in measure(params, rows)
    ]
    with np.errstate(invalid="ignore"):
        flow = np.array([influence / count for influence, count, *_ in sums])
    redundancy, mixed, pairs = (np.array([layer[part] for layer in sums]) for part in (2, 3, 4))
    pairs = np.maximum(pairs, 1)
    return LayerFlow(flow, redundancy / pairs, mixed / pairs)


def _flow_sums(
    model: LanguageModel, settings: PruningSettings, protected: int, params: PyTree, rows: PromptRows
) -> list[tuple[Array, ...]]:
    """Return for each layer the sums that means are made of: of influence, tokens, cosines, and pairs."""
    cache = model.empty_cache(*rows.tokens.shape)
    _, _, layers = pruned_hidden(model, params, rows, cache, settings, protected=protected, traced=True)
    return [_layer_sums(layer, rows.tokens.shape[1]) for layer in layers]


def _layer_sums(layer: PrunedLayer, length: int) -> tuple[Array, ...]:
    assert layer.trace is not None  # asked for
    real = layer.segment_ids > 0
    parts = jnp.where(real, layer.index * BINS // length, BINS).reshape(-1)
    influence = jnp.where(real, layer.trace.influence, 0.0).reshape(-1)
    pairs = real[:, 1:] & real[:, :-1]
    return (
        jnp.zeros(BINS + 1).at[parts].add(influence)[:BINS],
        jnp.zeros(BINS + 1).at[parts].add(1.0)[:BINS],
        _cosine_sum(layer.trace.output, pairs),
        _cosine_sum(layer.trace.mixed, pairs),
        pairs.sum(),
    )


def _cosine_sum(vectors: Activations, pairs: Bool[Array, "rows _"]) -> Float[Array, ""]:
    """Return the sum of the cosines of adjacent tokens' vectors, over the pairs that count."""
    vectors = vectors.astype(jnp.float32)
    norms = jnp.maximum(jnp.linalg.norm(vectors, axis=-1), jnp.finfo(jnp.float32).tiny)
    products = jnp.sum(vectors[:, 1:] * vectors[:, :-1], axis=-1)
    return jnp.sum(jnp.where(pairs, products / norms[:, 1:] / norms[:, :-1], 0.0))
