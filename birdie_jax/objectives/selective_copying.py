"""Selective copying (EMNLP paper, section 3.2 and Table 1): find spans by the text around them."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Int32

from birdie_jax import vocabulary
from birdie_jax.errors import UnsuitableText
from birdie_jax.objectives.checks import check_flag, check_integer_range, is_integer
from birdie_jax.objectives.example import Example
from birdie_jax.objectives.objective import Objective
from birdie_jax.objectives.registry import register_objective


class UniqueRuns:
    """Measures how long a run of tokens must be to occur only once in a text.

    Args:
        tokens: int32 `[tokens]`, nonnegative ids.
        max_length: the length of the longest run to request.
    """

    def __init__(self, tokens: Int32[np.ndarray, " tokens"], max_length: int):
        self._tokens = tokens
        # Ids are not negative, so a run that leaves the text never equals one inside it, and the code
        # below needs no bounds checks.
        self._padded = np.full(len(tokens) + 2 * max_length, -1, np.int32)
        self._padded[max_length : max_length + len(tokens)] = tokens
        self._offset = max_length

    def min_unique_length(self, position: int, step: int, max_length: int) -> int:
        """Return the length of the shortest unique run from `position`; 0 if it exceeds `max_length`.

        Args:
            position: the position in the text at which the run starts.
            step: 1 for a run that extends to the right of `position`, -1 for one that extends to the left.
            max_length: the length of the longest run to try.
        """
        matches = np.flatnonzero(self._tokens == self._tokens[position])
        matches += self._offset
        place = position + self._offset
        for length in range(1, max_length):
            if len(matches) == 1:
                return length
            move = step * length
            matches = matches[self._padded[matches + move] == self._padded[place + move]]
        return max_length if len(matches) == 1 else 0


_SPAN_START, _SPAN_END, _CONTEXT, _SEPARATOR, _DONE = (
    np.array([token], np.int32)
    for token in (
        vocabulary.SPAN_START,
        vocabulary.SPAN_END,
        vocabulary.CONTEXT,
        vocabulary.SEPARATOR,
        vocabulary.DONE,
    )
)

# Number of places that a placement proposes beyond the requested spans. On natural text, one placement
# is then nearly always enough.
_SPARE_PLACES = 4
_PLACEMENTS = 8

_Piece = tuple[int, int, int, int]


@register_objective
@dataclass(frozen=True, kw_only=True)
class SelectiveCopying(Objective):
    """The context has a text and the delimiters of some of its spans; the target is the spans.

    Context, query first: marker, then for each span [START] start delimiter [END] end delimiter, then
    [CONTEXT] and the text. Query last: marker, [CONTEXT], the text, then the same queries. Target: the
    spans in the order of the queries, with [SEP] between them, then [DONE].

    A start delimiter is the text right before its span, and an end delimiter is the text right after it.
    Spans with their delimiters are disjoint pieces of the text, in random order in the queries. Every
    delimiter occurs exactly once in the text, so every query has exactly one answer. A delimiter that is
    not unique at its drawn length becomes longer, up to its maximum length. If that is not enough, another
    span replaces its span.

    The length of the text is drawn uniformly. The default lengths are from the published code.

    Attributes:
        spans: the number of spans to copy, or a pair (low, high) to draw it from.
        query_first: whether the queries precede the text.
        span_length: the minimum and maximum number of tokens in a span. The number is drawn uniformly.
        start_delimiter_length: the minimum and maximum number of tokens in a start delimiter.
        end_delimiter_length: the minimum and maximum number of tokens in an end delimiter.
    """

    name: ClassVar[str] = "selective_copying"
    draws_length: ClassVar[bool] = True

    marker: int | None = vocabulary.SELECTIVE_COPYING
    spans: int | tuple[int, int] = (1, 4)
    query_first: bool = True
    span_length: tuple[int, int] = (8, 16)
    start_delimiter_length: tuple[int, int] = (1, 8)
    end_delimiter_length: tuple[int, int] = (1, 4)

    def __post_init__(self):
        if is_integer(self.spans):
            object.__setattr__(self, "spans", (self.spans, self.spans))
        for field in ("spans", "span_length", "start_delimiter_length", "end_delimiter_length"):
            check_integer_range(self.name, field, getattr(self, field), 1)
        check_flag(self.name, "query_first", self.query_first)
        super().__post_init__()

    @property
    def _spans_range(self) -> tuple[int, int]:
        return (self.spans, self.spans) if isinstance(self.spans, int) else self.spans

    @property
    def _max_piece_length(self) -> int:
        return self.span_length[1] + self.start_delimiter_length[1] + self.end_delimiter_length[1]

    @property
    def structural_minimum(self) -> int:
        """Room for the maximum number of spans, each with its delimiters at maximum length."""
        return self._spans_range[1] * self._max_piece_length

    def example_length(self, count: int) -> int:
        """Return the length with the maximum number of spans, at maximum length.

        A span takes its own tokens, the tokens of its delimiters, [START], [END], and [SEP] or [DONE].
        """
        return self.marker_length + 1 + count + self._spans_range[1] * (self._max_piece_length + 3)

    def answer_special_tokens(self, context: Int32[np.ndarray, " context"]) -> tuple[int, ...]:
        """Return [DONE], and [SEP] if the context requests several spans."""
        several = np.count_nonzero(context == vocabulary.SPAN_START) > 1
        return (vocabulary.SEPARATOR, vocabulary.DONE) if several else (vocabulary.DONE,)

    def assemble(
        self, tokens: Int32[np.ndarray, " tokens"], rng: np.random.Generator, ends_document: bool
    ) -> Example:
        """Make the example. The spans, the lengths of delimiters and the order of queries are random."""
        low, high = self._spans_range
        pieces = self._choose_pieces(tokens, int(rng.integers(low, high + 1)), rng)
        queries, answers = [], []
        for start_delimiter, span, end_delimiter, end in pieces:
            queries += (_SPAN_START, tokens[start_delimiter:span], _SPAN_END, tokens[end_delimiter:end])
            answers += (tokens[span:end_delimiter], _SEPARATOR)
        answers[-1] = _DONE
        text = [_CONTEXT, tokens]
        marker = [] if self.marker is None else [np.array([self.marker], np.int32)]
        parts = marker + (queries + text if self.query_first else text + queries)
        return Example(np.concatenate(parts), np.concatenate(answers))

    def _choose_pieces(
        self, tokens: Int32[np.ndarray, " tokens"], wanted: int, rng: np.random.Generator
    ) -> list[_Piece]:
        """Return, for each query, the starts of the three parts of its piece, and the end of the piece."""
        start_low, start_high = self.start_delimiter_length
        end_low, end_high = self.end_delimiter_length
        span_low, span_high = self.span_length
        places = min(len(tokens) // self._max_piece_length, wanted + _SPARE_PLACES)
        runs = UniqueRuns(tokens, max(start_high, end_high))
        for _ in range(_PLACEMENTS):
            span_lengths = rng.integers(span_low, span_high + 1, places)
            start_lengths = rng.integers(start_low, start_high + 1, places).tolist()
            end_lengths = rng.integers(end_low, end_high + 1, places).tolist()
            # Each place has room for delimiters of maximum length, so a longer delimiter cannot reach
            # the next piece. The rest of the text is split at random between the places.
            rooms = span_lengths + (start_high + end_high)
            room_ends = rooms.cumsum()
            gaps = rng.integers(0, len(tokens) - int(room_ends[-1]) + 1, places)
            gaps.sort()
            first = (gaps + room_ends - rooms + start_high).tolist()
            last = (gaps + room_ends - end_high).tolist()
            pieces = []
            for place in rng.permutation(places).tolist():
                before = runs.min_unique_length(first[place] - 1, -1, start_high)
                after = runs.min_unique_length(last[place], 1, end_high) if before else 0
                if not after:
                    continue
                span, end_delimiter = first[place], last[place]
                start_delimiter = span - max(before, start_lengths[place])
                end = end_delimiter + max(after, end_lengths[place])
                pieces.append((start_delimiter, span, end_delimiter, end))
                if len(pieces) == wanted:
                    return pieces
        raise UnsuitableText(
            f"{self.name}: {_PLACEMENTS} placements in the text of {len(tokens)} tokens found no {wanted} "
            "spans with delimiters that occur there once"
        )
