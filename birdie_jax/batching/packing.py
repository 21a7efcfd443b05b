"""Lays out examples in rows: tokens, targets, masks, positions and segments."""

from collections.abc import Sequence

import numpy as np

from birdie_jax.batch import Batch
from birdie_jax.objectives import NO_LABEL, Example
from birdie_jax.vocabulary import PADDING, START

NO_ARM = -1


def packed_length(example: Example) -> int:
    """Return the number of positions of `example`: context, start token, and target without its last token.

    With labels in place, this is the length of the context.
    """
    return len(example.context) + len(example.target)


def layout_example(example: Example, start_id: int = START) -> Batch:
    """Lay out one example as an unpadded row (Birdie paper, appendix E.1).

    Context [4, 5, 6] and target [7, 8, 9] give tokens [4, 5, 6, 1, 7, 8], with labels 7, 8, 9 on the last
    three positions. Context [4, 3, 6] with labels [0, 5, 0] in place gives the tokens of the context, with
    label 5 on the second position.

    Args:
        example: context, target or labels, and arm.
        start_id: the token between context and target.

    Returns:
        A Batch of arrays of shape [length], length = len(context) + len(target).

    Raises:
        ValueError: the example has no position with loss, or both a target and labels.
    """
    return Batch(*(field[0] for field in pack_rows([[example]], packed_length(example), 0, start_id)))


def empty_rows(rows: int, length: int) -> Batch:
    """Return a Batch of `rows` padding rows."""
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


def pack_rows(
    rows: Sequence[Sequence[Example]],
    length: int,
    spacing: int,
    start_id: int = START,
    *,
    num_arms: int = 0,
) -> Batch:
    """Lay out the examples of each row one after another, with `spacing` padding tokens between them.

    Args:
        rows: the examples of each row.
        length: the number of positions in a row.
        spacing: the number of padding positions between two examples.
        start_id: the token between context and target.
        num_arms: the number of arms of a run with several corpora: `arm_ids` is arm + num_arms * corpus.

    Returns:
        A Batch of arrays of shape [len(rows), length].

    Raises:
        ValueError: an example has no position with loss, or both a target and labels, or the examples of a
            row do not fit.
    """
    fields = _padding_fields(len(rows), length)
    count = np.arange(length, dtype=np.int32)
    for row, examples in enumerate(rows):
        begin = 0
        for segment, example in enumerate(examples, start=1):
            context, target = len(example.context), len(example.target)
            labels = example.labels
            if labels is None and target == 0:
                raise ValueError(f"row {row}, example {segment}: the target is empty; it needs a token")
            if labels is not None:
                _check_labels(example, f"row {row}, example {segment}")
            split, end = begin + context, begin + context + target
            if end > length:
                raise ValueError(
                    f"row {row}, example {segment}: ends at position {end}; a row has {length}"
                )
            fields["tokens"][row, begin:split] = example.context
            if labels is None:
                fields["tokens"][row, split] = start_id
                fields["tokens"][row, split + 1 : end] = example.target[:-1]
                fields["targets"][row, split:end] = example.target
                fields["loss_mask"][row, split:end] = True
            else:
                fields["targets"][row, begin:split] = labels
                fields["loss_mask"][row, begin:split] = labels != NO_LABEL
            fields["segment_ids"][row, begin:end] = segment
            fields["positions"][row, begin:end] = count[: context + target]
            fields["bidirectional"][row, begin:split] = True
            fields["arm_ids"][row, begin:end] = example.arm + num_arms * example.corpus
            begin = end + spacing
    return Batch(**fields)


def _check_labels(example: Example, where: str) -> None:
    """Check that an example with labels in place can be laid out."""
    labels = example.labels
    assert labels is not None  # the caller has checked
    if len(example.target):
        raise ValueError(
            f"{where}: found labels in place and a target of {len(example.target)} tokens; allowed: one of "
            "the two"
        )
    if labels.shape != example.context.shape:
        raise ValueError(
            f"{where}: found {len(labels)} labels for {len(example.context)} tokens of context; allowed: "
            "one for each"
        )
    if not (labels != NO_LABEL).any():
        raise ValueError(f"{where}: no token of the context has a label; it needs one")
