"""The base class of all objectives."""

import abc
import functools
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Int32, Integer

from birdie_jax import vocabulary
from birdie_jax.errors import UnsuitableText
from birdie_jax.objectives.checks import MAX_TOKENS, check_integer, is_integer, refusal
from birdie_jax.objectives.example import Example


@dataclass(frozen=True, kw_only=True)
class Objective(abc.ABC):
    """Turns text tokens into an `Example`. It is a pure function of the tokens and the random generator.

    To add an objective, write a file with a subclass and import it in `__init__.py`. The subclass is a
    frozen dataclass with the decorator `@register_objective`. Its fields are the parameters, and its
    `__post_init__` checks them. It defines `name`, `example_length` and `assemble`. If the defaults do not
    fit, it also overrides `structural_minimum`, `text_limit` and `answer_special_tokens`.

    Attributes:
        name: the objective's name in `make_objective`.
        has_context: whether examples have a context. An objective without one cannot have a marker.
        in_place: whether examples have labels on the context and no target. A model that trains only on
            such examples does not learn to write.
        draws_length: whether the number of tokens to read is drawn uniformly from the range that
            `min_length`, `max_length`, the text and the row allow. Otherwise it is that range's maximum.
        prompt_like: the objective that gives `generate` and tasks their prompt format. If empty, they use
            this objective's own format in `birdie_jax.generation.prompt_formats`, if it has one.
        marker: the first token of the context, which identifies the objective to the model. None for none.
        min_length: the minimum number of text tokens that an example may read.
        max_length: the maximum number of text tokens that an example may read. If None, the row sets the
            limit.
    """

    name: ClassVar[str]
    has_context: ClassVar[bool] = True
    in_place: ClassVar[bool] = False
    draws_length: ClassVar[bool] = False
    prompt_like: ClassVar[str] = ""

    marker: int | None = None
    min_length: int = 1
    max_length: int | None = None

    def __post_init__(self):
        if self.marker is not None:
            if not self.has_context:
                raise refusal(self.name, "marker", self.marker, "None, because its context is empty")
            if not is_integer(self.marker) or not 0 < self.marker < vocabulary.NUM_SPECIAL_TOKENS:
                allowed = f"None or a special id, 1..{vocabulary.NUM_SPECIAL_TOKENS - 1}"
                raise refusal(self.name, "marker", self.marker, allowed)
        check_integer(self.name, "min_length", self.min_length, 1)
        if self.max_length is not None:
            check_integer(self.name, "max_length", self.max_length, 1)
            if self.max_length < self.minimum_tokens:
                allowed = f"None or at least {self.minimum_tokens}, the fewest tokens it can use"
                raise refusal(self.name, "max_length", self.max_length, allowed)

    @property
    def structural_minimum(self) -> int:
        """Minimum number of text tokens that the objective's format needs, independent of `min_length`."""
        return 1

    @property
    def minimum_tokens(self) -> int:
        """Minimum number of text tokens in an example."""
        return max(self.structural_minimum, self.min_length)

    @abc.abstractmethod
    def example_length(self, count: int) -> int:
        """Return the maximum length, context plus target, of an example of `count` text tokens.

        The result must not decrease as `count` grows, and must not be below `count`.
        """

    def max_loss_positions(self, length: int, spacing: int) -> int:
        """Return the maximum number of loss positions in a row that holds only examples of this objective.

        If it is well below `length`, the model computes its head on only this many positions of a row.

        Args:
            length: positions in a row.
            spacing: padding positions between two examples.
        """
        del spacing
        return length

    def with_vocabulary(self, num_pieces: int) -> "Objective":
        """Return the objective for a tokenizer of `num_pieces` pieces. Most objectives return themselves.

        Raises:
            ValueError: the objective requires more pieces.
        """
        del num_pieces
        return self

    def answer_special_tokens(self, context: Int32[np.ndarray, " context"]) -> tuple[int, ...]:
        """Return the special tokens that an answer to a prompt in this objective's format may contain.

        Generation chooses no other special token. The default is END alone. An objective overrides this if
        its targets contain others.

        Args:
            context: the context of the prompt; empty if the format has none.
        """
        del context
        return (vocabulary.END,)

    @abc.abstractmethod
    def assemble(
        self, tokens: Int32[np.ndarray, " tokens"], rng: np.random.Generator, ends_document: bool
    ) -> Example:
        """Make an example of all `tokens`. There are at least `minimum_tokens` of them."""

    def text_limit(self, length: int) -> int:
        """Return the maximum number of text tokens whose examples always fit `length` positions, or 0."""
        return _largest_fitting(self, length)

    def draw_length(self, available: int, rng: np.random.Generator, length: int | None = None) -> int:
        """Draw the number of text tokens that the next example reads.

        Args:
            available: the number of text tokens that are available.
            rng: source of the draw. Objectives that do not draw their length do not use it.
            length: positions in a row, which the example must fit; None for no limit.

        Returns:
            At least `minimum_tokens`, at most `available`, `max_length` and `text_limit(length)`.

        Raises:
            UnsuitableText: `available` or the row allows fewer than `minimum_tokens`.
        """
        limit = self.text_limit(MAX_TOKENS if length is None else length)
        minimum = self.minimum_tokens
        if available < minimum:
            raise UnsuitableText(
                f"{self.name}: the text has {available} tokens; it needs at least {minimum}"
            )
        if limit < minimum:
            raise UnsuitableText(
                f"{self.name}: rows of {length} hold {limit} tokens of its text; "
                f"it needs at least {minimum}"
            )
        maximum = min(available, limit)
        if self.max_length is not None:
            maximum = min(maximum, self.max_length)
        return int(rng.integers(minimum, maximum + 1)) if self.draws_length else maximum

    def build(
        self, tokens: Integer[np.ndarray, " tokens"], rng: np.random.Generator, ends_document: bool = False
    ) -> Example:
        """Build an example of all `tokens`.

        Args:
            tokens: any integer dtype, `[tokens]`, ids of ordinary text (256 and up).
            rng: source of every random choice.
            ends_document: whether the document ends with the last token. Open-ended objectives then append
                END.

        Raises:
            UnsuitableText: no example can be built from these tokens.
        """
        if len(tokens) < self.minimum_tokens:
            raise UnsuitableText(
                f"{self.name}: the text has {len(tokens)} tokens; it needs at least {self.minimum_tokens}"
            )
        return self.assemble(tokens.astype(np.int32, copy=False), rng, ends_document)

    def __call__(
        self,
        tokens: Integer[np.ndarray, " tokens"],
        rng: np.random.Generator,
        ends_document: bool = False,
        length: int | None = None,
    ) -> Example:
        """Draw a length, and build an example of that many tokens from the start of `tokens`.

        Args:
            tokens: any integer dtype, `[tokens]`, ids of ordinary text (256 and up).
            rng: source of every random choice.
            ends_document: whether the document ends with the last of `tokens`. It has an effect only if the
                example reads all of them.
            length: positions in a row, which the example must fit; None for no limit.

        Raises:
            UnsuitableText: no example can be built from this text within `length`.
        """
        count = self.draw_length(len(tokens), rng, length)
        return self.build(tokens[:count], rng, ends_document and count == len(tokens))

    @property
    def marker_length(self) -> int:
        """Positions that the marker takes: 1, or 0 if there is no marker."""
        return 0 if self.marker is None else 1


@functools.lru_cache(maxsize=1 << 14)
def _largest_fitting(objective: Objective, length: int) -> int:
    low, high = 0, max(length, 0)
    while low < high:
        middle = (low + high + 1) // 2
        if objective.example_length(middle) <= length:
            low = middle
        else:
            high = middle - 1
    return low


def surround(
    before: int | None, tokens: Int32[np.ndarray, " tokens"], after: int | None
) -> Int32[np.ndarray, " surrounded"]:
    """Return a copy of `tokens` with `before` in front and `after` at the end. None adds no token."""
    first = 0 if before is None else 1
    result = np.empty(first + len(tokens) + (0 if after is None else 1), np.int32)
    if before is not None:
        result[0] = before
    result[first : first + len(tokens)] = tokens
    if after is not None:
        result[-1] = after
    return result
