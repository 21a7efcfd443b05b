"""Tests the two resets of packed rows against a rule for each pair of adjacent tokens."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from birdie_jax.models.layout import causal_layout, continued_layout, packed_layout

LENGTH = 20
resets = jax.jit(packed_layout)

# The parts of a row: (context, target, padding after it).
parts = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3), st.integers(0, 3)), max_size=2)


def row_of(parts, context_at_end):
    """Return a row of the parts; the last sample ends with the row unless `context_at_end` is None."""
    segments, bidirectional = [], []
    for segment, (context, target, padding) in enumerate(parts, start=1):
        segments += [segment] * (context + target) + [0] * padding
        bidirectional += [True] * context + [False] * (target + padding)
    rest = LENGTH - len(segments)
    if context_at_end is None:
        return segments + [0] * rest, bidirectional + [False] * rest
    at_end = [True] * context_at_end + [False] * (rest - context_at_end)
    return segments + [len(parts) + 1] * rest, bidirectional + at_end


def may_pass(segments, bidirectional, source, destination):
    """Return whether `destination` may receive state from its neighbour `source`."""
    if not (0 <= source < len(segments)) or segments[destination] == 0:
        return False
    same_sample = segments[source] == segments[destination]
    return same_sample and (source < destination or bidirectional[destination])


@given(parts, st.none() | st.integers(0, 2))
def test_resets_equal_the_rule_for_each_token(parts, context_at_end):
    segments, bidirectional = row_of(parts, context_at_end)
    layout = jax.device_get(resets(jnp.asarray([segments], jnp.int32), jnp.asarray([bidirectional])))
    for t in range(LENGTH):
        assert layout.forward_reset[0, t] != may_pass(segments, bidirectional, t - 1, t)
        assert layout.reverse_reset[0, t] != may_pass(segments, bidirectional, t + 1, t)
    np.testing.assert_array_equal(layout.segment_ids[0], segments)


def test_rows_are_separate():
    segments, bidirectional = row_of([(2, 2, 0)], 1)
    layout = resets(jnp.asarray([segments] * 3, jnp.int32), jnp.asarray([bidirectional] * 3))
    assert layout.forward_reset[:, 0].all()
    assert layout.reverse_reset[:, -1].all()


def test_decoding_resets_only_the_reverse_direction():
    layout = causal_layout(2, 3)
    assert not layout.forward_reset.any()
    assert layout.reverse_reset.all()
    assert (layout.segment_ids == 1).all()


def test_rows_continue_or_begin_samples():
    """One row continues a context with two tokens and a start token; one begins with two context tokens."""
    in_context = jnp.array([[True, True, False, False], [True] * 4])
    layout = continued_layout(jnp.array([3, 2]), jnp.array([False, True]), in_context)
    assert layout.segment_ids.tolist() == [[1, 1, 1, 0], [1, 1, 0, 0]]
    assert layout.forward_reset.tolist() == [[False] * 4, [True, False, False, False]]
    assert layout.reverse_reset.tolist() == [[False, False, True, True], [False, True, True, True]]
    assert layout.bidirectional.tolist() == [[True, True, False, False], [True, True, False, False]]
    assert layout.skipped.tolist() == [[False, False, False, True], [False, False, True, True]]
