"""Tests that a token's influence in Mamba-2 is the change at the anchor when its entry is zero."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birdie_jax.models.influence import InfluenceRequest, recurrence_influence
from birdie_jax.models.layout import packed_layout
from birdie_jax.models.matrix_influence import MatrixArrays
from birdie_jax.models.selective_influence import SelectiveArrays
from tests.generation.conftest import small_model
from tests.models.test_selective_influence import KINDS, zeroed_entries

HEADS, WIDTH, STATES, LENGTH = 4, 3, 2, 13


def some_arrays(groups, seed=0):
    rng = np.random.default_rng(seed)
    return MatrixArrays(
        steps=rng.uniform(0.01, 0.5, (1, LENGTH, HEADS)),
        u=rng.normal(size=(1, LENGTH, HEADS, WIDTH)),
        A=-np.exp(rng.normal(size=HEADS)),
        B=rng.normal(size=(1, LENGTH, groups, STATES)),
        C=rng.normal(size=(1, LENGTH, groups, STATES)),
    )


def by_channel(arrays, reset, anchor):
    """Return each token's contribution to all states at the anchor, and to the output there, in float64."""
    states, outputs = [], []
    for head in range(HEADS):
        group = head * arrays.B.shape[2] // HEADS
        B, C = arrays.B[:, :, group], arrays.C[:, :, group]
        steps = arrays.steps[:, :, head, None].repeat(WIDTH, axis=2)
        rates = np.full((WIDTH, STATES), arrays.A[head])
        added, _ = zeroed_entries(SelectiveArrays(steps, arrays.u[:, :, head], rates, B, C), reset, anchor)
        states.append(added.reshape(LENGTH, -1))
        outputs.append(np.einsum("n,tne->te", C[0, anchor], added))
    return np.concatenate(states, axis=-1), np.concatenate(outputs, axis=-1)


NORMS = {
    "absolute": lambda influence: np.abs(influence).max(axis=-1),
    "signed": lambda influence: influence.max(axis=-1),
    "l2": lambda influence: np.linalg.norm(influence, axis=-1),
    "relative": lambda influence: np.abs(influence).max(axis=-1) / np.linalg.norm(influence.sum(axis=0)),
}


@pytest.mark.parametrize("groups", [1, 2])
def test_scores_match_zeroed_entries(groups):
    arrays, anchor = some_arrays(groups), LENGTH - 2
    reset = np.arange(LENGTH)[None] == 4
    states, outputs = by_channel(arrays, reset[0], anchor)
    anchors = jnp.arange(LENGTH)[None] == anchor
    given = jax.tree.map(jnp.asarray, arrays)
    for readout, norm in [*KINDS, ("gated", "relative"), ("state", "relative")]:
        request = InfluenceRequest(anchors, readout, norm)
        found = recurrence_influence(request, given, (jnp.asarray(reset),))[0]
        expected = NORMS[norm](outputs if readout == "gated" else states)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6, err_msg=f"{readout} {norm}")
    entry = recurrence_influence(InfluenceRequest(anchors, norm="entry"), given, (jnp.asarray(reset),))[0]
    B = arrays.B.repeat(HEADS // groups, axis=2)
    added = np.einsum("th,thp,thn->thpn", arrays.steps[0], arrays.u[0], B[0])
    np.testing.assert_allclose(entry, np.linalg.norm(added.reshape(LENGTH, -1), axis=-1), rtol=1e-5)


@pytest.mark.parametrize("groups", [1, 2])
def test_reverse_heads_are_scored_at_the_first_token(groups):
    arrays = some_arrays(groups)
    forward_reset = np.arange(LENGTH)[None] == 0
    reverse_reset = np.arange(LENGTH)[None] >= LENGTH - 2
    is_ahead = np.arange(HEADS)[:, None] < HEADS // 2
    ahead = arrays._replace(u=np.where(is_ahead, arrays.u, 0))
    back = arrays._replace(u=np.where(is_ahead, 0, arrays.u)).reversed_in_time()
    _, forward = by_channel(ahead, forward_reset[0], LENGTH - 1)
    _, reverse = by_channel(back, reverse_reset[0, ::-1], LENGTH - 1)
    anchors = jnp.arange(LENGTH)[None] == LENGTH - 1
    request = InfluenceRequest(anchors, directions="both")
    resets = (jnp.asarray(forward_reset), jnp.asarray(reverse_reset))
    found = recurrence_influence(request, jax.tree.map(jnp.asarray, arrays), resets)[0]
    expected = np.maximum(np.abs(forward).max(axis=-1), np.abs(reverse).max(axis=-1)[::-1])
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_gated_deltanet_refuses_influence():
    model, params = small_model("gated_deltanet")
    tokens = jnp.full((1, 4), 300)
    layout = packed_layout(jnp.ones_like(tokens), jnp.ones(tokens.shape, bool))
    layout = layout._replace(influence=InfluenceRequest(tokens > 0))
    with pytest.raises(ValueError, match="found a layer of gated_deltanet, in which a token also changes"):
        jax.eval_shape(lambda: model.apply({"params": params}, tokens, layout, method="hidden"))
