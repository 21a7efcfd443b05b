"""A question with windows of its context, as heads that find spans read them, and the best of their spans.

As Devlin et al. 2019 (sections 4.2 and 4.3) do for SQuAD: `[MASKED_LM] question [SEP] window [SEP]`; a
window without the answer, like a question without one, has its answer at the first position.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Int32, Int64

from birdie_jax.models.span_head import label_of_span
from birdie_jax.tasks.samples import sample_tokens


class Window(NamedTuple):
    """A part of a context behind its question.

    Attributes:
        tokens: int32 [positions], what is read.
        offsets: int64 [positions, 2], the first character of the context that a position stands for, and
            the one behind its last; both -1 on what is no part of the context.
    """

    tokens: Int32[np.ndarray, " positions"]
    offsets: Int64[np.ndarray, "positions 2"]

    def label(self, span: tuple[int, int] | None) -> int:
        """Return the label of the characters `span`, ends excluded; of none, the first position's.

        A span that is not whole within the window is none of it.
        """
        if span is None:
            return label_of_span(0, 0)
        begin, end = self.offsets.T
        within = np.flatnonzero((end > span[0]) & (begin < span[1]) & (end > begin))
        if not len(within) or begin[within[0]] > span[0] or end[within[-1]] < span[1]:
            return label_of_span(0, 0)
        return label_of_span(int(within[0]), int(within[-1]))


class FoundSpan(NamedTuple):
    """The best span of a question, against none at all.

    Attributes:
        span: the characters of the context, the end excluded; None where no span can be.
        score: the sum of its begin's and its end's score.
        null_score: that of the first position, the least of all windows'.
    """

    span: tuple[int, int] | None
    score: float
    null_score: float


def cut_windows(
    question: Int32[np.ndarray, " question"],
    context: Int32[np.ndarray, " tokens"],
    offsets: Int64[np.ndarray, "tokens 2"],
    *,
    max_positions: int,
    stride: int,
) -> list[Window]:
    """Return windows that cover a context, at least one.

    Args:
        question: the tokens of the question, of which there is room for more besides.
        context: the tokens of the context.
        offsets: the characters of each token of the context.
        max_positions: the largest number of positions of a window, question and special tokens counted.
        stride: the number of tokens from the begin of a window to that of the next.

    Raises:
        ValueError: a window has no room for the stride.
    """
    room = max_positions - 3 - len(question)
    if not 0 < stride <= room:
        raise ValueError(f"windows: found room for {room} tokens; allowed: at least the stride, {stride}")
    windows = []
    for begin in range(0, max(len(context) - room + stride, 1), stride):
        part = slice(begin, begin + room)
        tokens = sample_tokens([question, context[part]])
        own = np.full((len(tokens), 2), -1, np.int64)
        own[len(question) + 2 : -1] = offsets[part]
        windows.append(Window(tokens, own))
    return windows


def best_span(
    windows: Sequence[Window], scores: Sequence[Float32[np.ndarray, "_ 2"]], max_answer_tokens: int
) -> FoundSpan:
    """Return the span of the context with the best score in any window.

    Args:
        windows: the windows of a question.
        scores: for each window the two scores of each position.
        max_answer_tokens: the largest number of tokens of a span.
    """
    best, null = FoundSpan(None, -np.inf, np.inf), np.inf
    for window, of_window in zip(windows, scores, strict=True):
        null = min(null, float(of_window[0].sum()))
        begins, ends = of_window.astype(np.float64).T
        # Tokens of single bytes but the last have no character.
        in_context = window.offsets[:, 1] > window.offsets[:, 0]
        total = np.where(in_context, begins, -np.inf)[:, None] + np.where(in_context, ends, -np.inf)[None]
        length = np.arange(len(begins))[None] - np.arange(len(begins))[:, None]
        total[(length < 0) | (length >= max_answer_tokens)] = -np.inf
        begin, end = np.unravel_index(int(total.argmax()), total.shape)
        if total[begin, end] > best.score:
            span = int(window.offsets[begin, 0]), int(window.offsets[end, 1])
            best = FoundSpan(span, float(total[begin, end]), null)
    return best._replace(null_score=null)
