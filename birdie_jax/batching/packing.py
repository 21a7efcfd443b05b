"""Examples to rows: which position each token of a sample has, and what the model may know about it."""

from collections.abc import Sequence

import numpy as np

from birdie_jax.batch import Batch
from birdie_jax.objectives import Example
from birdie_jax.vocabulary import PADDING, START

NO_ARM = -1


def packed_length(example: Example) -> int:
    """Return how many positions `example` covers: its context, the start token, its target but for one."""
    return len(example.context) + len(example.target)


def layout_example(example: Example, start_id: int = START) -> Batch:
    """Lay one example out as an unpadded row (Birdie paper, appendix E.1).

    Context [4, 5, 6] and target [7, 8, 9] give tokens [4, 5, 6, 1, 7, 8], and labels 7, 8, 9 on the last
    three positions.

    Args:
        example: context, target and arm.
        start_id: the token between context and target.

    Returns:
        A Batch of arrays of shape [length], length = len(context) + len(target).

    Raises:
        ValueError: the target is empty.
    """
    return Batch(*(field[0] for field in pack_rows([[example]], packed_length(example), 0, start_id)))


def empty_rows(rows: int, length: int) -> Batch:
    """Return a Batch of `rows` rows of padding."""
    return Batch(**_padding_fields(rows, length))


def _padding_fields(rows: int, length: int) -> dict[str, np.ndarray]:
    shape = (rows, length)
    return {
        "tokens": np.full(shape, PADDING, np.int32),
        "targets": np.full(shape, PADDING, np.int32),
        "loss_mask": np.zeros(shape, bool),
        "segment_ids": np.zeros(shape, np.int32),
        "positions": np.zeros(shape, np.int32),
        "bidirectional": np.zeros(shape, bool),
        "arm_ids": np.full(shape, NO_ARM, np.int32),
    }


def pack_rows(rows: Sequence[Sequence[Example]], length: int, spacing: int, start_id: int = START) -> Batch:
    """Lay the examples of each row out side by side, with `spacing` padding tokens between two.

    Returns:
        A Batch of arrays of shape [len(rows), length].

    Raises:
        ValueError: a target is empty, or a row's examples do not fit.
    """
    fields = _padding_fields(len(rows), length)
    count = np.arange(length, dtype=np.int32)
    for row, examples in enumerate(rows):
        begin = 0
        for segment, example in enumerate(examples, start=1):
            context, target = len(example.context), len(example.target)
            if target == 0:
                raise ValueError(f"row {row}, example {segment}: the target is empty; it needs a token")
            split, end = begin + context, begin + context + target
            if end > length:
                raise ValueError(
                    f"row {row}, example {segment}: ends at position {end}; a row has {length}"
                )
            fields["tokens"][row, begin:split] = example.context
            fields["tokens"][row, split] = start_id
            fields["tokens"][row, split + 1 : end] = example.target[:-1]
            fields["targets"][row, split:end] = example.target
            fields["loss_mask"][row, split:end] = True
            fields["segment_ids"][row, begin:end] = segment
            fields["positions"][row, begin:end] = count[: context + target]
            fields["bidirectional"][row, begin:split] = True
            fields["arm_ids"][row, begin:end] = example.arm
            begin = end + spacing
    return Batch(**fields)
