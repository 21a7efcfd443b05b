"""Packing: the paper's worked example, and properties of every row."""

import re
from itertools import pairwise

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from birdie_jax.batching.packing import empty_rows, layout_example, pack_rows, packed_length
from birdie_jax.models.layout import packed_layout
from birdie_jax.objectives import Example

START = 1


def example(context, target, arm=0):
    return Example(np.array(context, np.int32), np.array(target, np.int32), arm)


token_lists = st.lists(st.integers(2, 999), max_size=6)
examples = st.builds(example, token_lists, token_lists.filter(len), st.integers(0, 5))
packings = st.tuples(st.lists(st.lists(examples, max_size=4), min_size=1, max_size=3), st.integers(0, 4))


def pack(rows, spacing, slack=3):
    length = slack + max(sum(packed_length(e) + spacing for e in row) for row in rows)
    return pack_rows(rows, length, spacing)


class TestWorkedExample:
    """Birdie paper, appendix E.1."""

    batch = layout_example(example([4, 5, 6], [7, 8, 9], arm=2), start_id=START)

    @pytest.mark.parametrize(
        ("field", "expected"),
        [
            ("tokens", [4, 5, 6, 1, 7, 8]),
            ("loss_mask", [0, 0, 0, 1, 1, 1]),
            ("bidirectional", [1, 1, 1, 0, 0, 0]),
            ("segment_ids", [1, 1, 1, 1, 1, 1]),
            ("positions", [0, 1, 2, 3, 4, 5]),
            ("arm_ids", [2, 2, 2, 2, 2, 2]),
        ],
    )
    def test_field(self, field, expected):
        np.testing.assert_array_equal(getattr(self.batch, field), expected)

    def test_labels(self):
        np.testing.assert_array_equal(self.batch.targets[-3:], [7, 8, 9])

    def test_resets(self):
        layout = packed_layout(
            jnp.asarray(self.batch.segment_ids)[None], jnp.asarray(self.batch.bidirectional)[None]
        )
        np.testing.assert_array_equal(layout.reverse_reset[0], [0, 0, 0, 1, 1, 1])
        np.testing.assert_array_equal(layout.forward_reset[0], [1, 0, 0, 0, 0, 0])


def test_two_samples_are_packed_in_a_row_of_twelve():
    batch = pack_rows([[example([4, 5], [6, 7], arm=3), example([], [8, 9], arm=0)]], 12, spacing=2)
    expected = {
        "tokens": [4, 5, 1, 6, 0, 0, 1, 8, 0, 0, 0, 0],
        "targets": [0, 0, 6, 7, 0, 0, 8, 9, 0, 0, 0, 0],
        "loss_mask": [0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 0, 0],
        "segment_ids": [1, 1, 1, 1, 0, 0, 2, 2, 0, 0, 0, 0],
        "positions": [0, 1, 2, 3, 0, 0, 0, 1, 0, 0, 0, 0],
        "bidirectional": [1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        "arm_ids": [3, 3, 3, 3, -1, -1, 0, 0, -1, -1, -1, -1],
    }
    for field, values in expected.items():
        np.testing.assert_array_equal(getattr(batch, field)[0], values, err_msg=field)


def in_place(context, labels, arm=0):
    return Example(
        np.array(context, np.int32), np.empty(0, np.int32), arm, labels=np.array(labels, np.int32)
    )


def test_labels_in_place_need_no_start_token():
    """A row may also contain a sample with a target."""
    masked = in_place([31, 3, 601, 700, 11], [0, 600, 0, 602, 0], arm=1)
    assert packed_length(masked) == 5
    batch = pack_rows([[masked, example([4], [8, 9], arm=2)]], 10, spacing=1)
    expected = {
        "tokens": [31, 3, 601, 700, 11, 0, 4, 1, 8, 0],
        "targets": [0, 600, 0, 602, 0, 0, 0, 8, 9, 0],
        "loss_mask": [0, 1, 0, 1, 0, 0, 0, 1, 1, 0],
        "segment_ids": [1, 1, 1, 1, 1, 0, 2, 2, 2, 0],
        "positions": [0, 1, 2, 3, 4, 0, 0, 1, 2, 0],
        "bidirectional": [1, 1, 1, 1, 1, 0, 1, 0, 0, 0],
        "arm_ids": [1, 1, 1, 1, 1, -1, 2, 2, 2, -1],
    }
    for field, values in expected.items():
        np.testing.assert_array_equal(getattr(batch, field)[0], values, err_msg=field)
    layout = packed_layout(jnp.asarray(batch.segment_ids), jnp.asarray(batch.bidirectional))
    np.testing.assert_array_equal(layout.reverse_reset[0], [0, 0, 0, 0, 1, 1, 0, 1, 1, 1])
    np.testing.assert_array_equal(layout.forward_reset[0], [1, 0, 0, 0, 0, 1, 1, 0, 0, 1])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (in_place([4, 5], [0, 0]), "no token of the context has a label; it needs one"),
        (in_place([], []), "no token of the context has a label; it needs one"),
        (
            Example(np.array([4], np.int32), np.array([5, 6], np.int32), labels=np.array([7], np.int32)),
            "found labels in place and a target of 2 tokens; allowed: one of the two",
        ),
    ],
)
def test_unusable_labels_are_refused(wrong, message):
    with pytest.raises(ValueError, match=f"^{re.escape('row 0, example 1: ' + message)}$"):
        pack_rows([[wrong]], 8, spacing=0)


def test_fields_have_the_types_of_a_batch():
    batch = pack_rows([[example([4], [5])]], 4, spacing=0)
    boolean = {"loss_mask", "bidirectional"}
    for field, values in batch._asdict().items():
        assert values.dtype == (bool if field in boolean else np.int32), field
        assert values.shape == (1, 4)


@given(packings)
def test_every_example_can_be_read_back(packing):
    rows, spacing = packing
    batch = pack(rows, spacing)
    for row, row_examples in enumerate(rows):
        assert batch.segment_ids[row].max() == len(row_examples)
        for segment, original in enumerate(row_examples, start=1):
            (where,) = np.nonzero(batch.segment_ids[row] == segment)
            bidirectional, tokens = batch.bidirectional[row, where], batch.tokens[row, where]
            written = tokens[~bidirectional]
            np.testing.assert_array_equal(tokens[bidirectional], original.context)
            assert written[0] == START
            np.testing.assert_array_equal(written[1:], original.target[:-1])
            np.testing.assert_array_equal(
                batch.targets[row, where][batch.loss_mask[row, where]], original.target
            )
            np.testing.assert_array_equal(batch.positions[row, where], np.arange(len(where)))
            assert set(batch.arm_ids[row, where]) == {original.arm}


@given(packings)
def test_samples_are_separated_by_the_spacing(packing):
    rows, spacing = packing
    batch = pack(rows, spacing)
    for row, row_examples in enumerate(rows):
        starts_and_ends = [
            np.nonzero(batch.segment_ids[row] == segment)[0][[0, -1]]
            for segment in range(1, len(row_examples) + 1)
        ]
        gaps = [later[0] - earlier[1] - 1 for earlier, later in pairwise(starts_and_ends)]
        assert gaps == [spacing] * max(len(row_examples) - 1, 0)


@given(packings)
def test_positions_outside_samples_are_padding(packing):
    batch = pack(*packing)
    outside, nothing = batch.segment_ids == 0, empty_rows(*batch.tokens.shape)
    for field in batch._fields:
        values = getattr(batch, field)[outside]
        np.testing.assert_array_equal(values, getattr(nothing, field)[outside], err_msg=field)


@pytest.mark.parametrize(
    ("rows", "length", "spacing", "message"),
    [
        ([[], [([4], [])]], 9, 0, "row 1, example 1: the target is empty; it needs a token"),
        ([[([4], [5, 6])]], 2, 0, "row 0, example 1: ends at position 3; a row has 2"),
        ([[([4], [5]), ([4], [5])]], 6, 3, "row 0, example 2: ends at position 7; a row has 6"),
    ],
)
def test_unpackable_examples_are_refused(rows, length, spacing, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        pack_rows([[example(*parts) for parts in row] for row in rows], length, spacing)


def test_a_row_can_be_filled_to_its_last_position():
    assert (
        pack_rows([[example([4], [5]), example([6], [7])]], 7, 3).segment_ids[0, [0, -1]] == [1, 2]
    ).all()
