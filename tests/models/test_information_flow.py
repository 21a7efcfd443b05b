"""Tests which tokens the logits of a position depend on, from gradients for every pair of positions."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.conftest import ENCODER_KINDS, KINDS, compiled
from tests.quick_jit import quick_jit

# With attention the context does not read the start token.
ATTENTION = ("transformer", "stack_attention", "gated_attention")


@pytest.fixture(params=KINDS + ENCODER_KINDS)
def kind(request):
    """Return the name and direction of a model, also of encoders."""
    return request.param


@pytest.fixture
def dependence(kind, make, packed):
    """Return [position, source]: the gradient norm of a position's logits in a source's embedding."""
    name, bidirectional = kind
    model, variables = make(name=name, bidirectional=bidirectional)
    params = variables["params"]
    weights = jax.random.normal(jax.random.key(1), params["head"].shape[:1])

    def scores(rows):
        table = params["embedding"].at[packed.tokens[0]].set(rows)
        return model.apply({"params": {**params, "embedding": table}}, packed)[0] @ weights

    jacobian = quick_jit(jax.jacrev(scores))(params["embedding"][packed.tokens[0]])
    return np.asarray(jnp.linalg.norm(jacobian, axis=-1))


def allowed(segments, in_context, position, source, bidirectional, *, start=True):
    """Return whether `position` may depend on `source`, by the paper's rules for whole samples."""
    if position == source:
        return True
    if segments[position] != segments[source] or segments[position] == 0:
        return False
    if source < position:
        return True
    # The context reads itself. With a recurrence it also reads the start token (`start`), which follows it
    # and reveals nothing about the target.
    is_start = (
        not in_context[source] and in_context[source - 1] and segments[source - 1] == segments[source]
    )
    return bidirectional and in_context[position] and (in_context[source] or (start and is_start))


def test_information_flows_exactly_where_allowed(dependence, kind, packed):
    segments, in_context = np.asarray(packed.segment_ids[0]), np.asarray(packed.bidirectional[0])
    positions = range(len(segments))
    name, bidirectional = kind
    flows = partial(allowed, segments, in_context, bidirectional=bidirectional, start=name not in ATTENTION)
    expected = np.array([[flows(i, j) for j in positions] for i in positions])
    np.testing.assert_array_equal(dependence != 0, expected)
    assert dependence[expected].min() > 1e-6


def test_packed_samples_have_the_same_logits_as_alone(kind, make, pack, samples):
    """With and without spacing between samples, and with and without padding after them."""
    name, bidirectional = kind
    model, variables = make(name=name, bidirectional=bidirectional)
    full_row = (*samples, samples[0])
    lone = pack([[lengths] for lengths in full_row])
    alone = compiled(model)(variables, lone)
    assert sum(map(sum, full_row)) == lone.tokens.shape[1]
    for row, spacing in ((samples, 3), (samples, 0), (full_row, 0)):
        batch = pack([row, [], [], []], spacing=spacing)
        together = compiled(model)(variables, batch)[0]
        for number, lengths in enumerate(row):
            count, where = sum(lengths), batch.segment_ids[0] == number + 1
            np.testing.assert_array_equal(batch.tokens[0][where], lone.tokens[number, :count])
            np.testing.assert_allclose(together[where], alone[number, :count], rtol=1e-5, atol=1e-5)
