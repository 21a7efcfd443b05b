"""Masked language modelling (Devlin et al. 2019, section 3.1): predict the hidden tokens of a text."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from jaxtyping import Int32, Int64

from birdie_jax import vocabulary
from birdie_jax.errors import UnsuitableText
from birdie_jax.objectives.checks import check_integer, check_number, refusal
from birdie_jax.objectives.example import NO_LABEL, Example
from birdie_jax.objectives.objective import Objective, surround
from birdie_jax.objectives.registry import register_objective


@register_objective
@dataclass(frozen=True, kw_only=True)
class MaskedLM(Objective):
    """Context: marker, the text with some tokens replaced, [SEP]; labels: the original tokens, in place.

    The objective chooses a share `rate` of the text's tokens, at least one, without replacement. A chosen
    token becomes [MASK] with probability `mask_share`, becomes a random token with probability
    `random_share`, and otherwise stays. The model predicts all chosen tokens. There is no target: the model
    reads the whole example in both directions.

    The marker and [SEP] replace [CLS] and [SEP] of Devlin et al. They are never chosen. Random tokens are
    never special tokens, whereas published code for this objective draws from the whole vocabulary.

    Attributes:
        rate: the share of the text's tokens to predict.
        mask_share: the share of chosen tokens that become [MASK].
        random_share: the share of chosen tokens that become a random token.
        num_pieces: the number of the tokenizer's pieces; random tokens are uniform over them. A row stream
            fills in the number for its text. If None, random tokens come from the text itself.
    """

    name: ClassVar[str] = "masked_lm"
    in_place: ClassVar[bool] = True

    marker: int | None = vocabulary.MASKED_LM
    # A text of a few tokens gives little to predict a token from. At least one token of every text is
    # chosen, so with very short texts the share of positions with loss would be far above `rate`.
    min_length: int = 8
    rate: float = 0.15
    mask_share: float = 0.8
    random_share: float = 0.1
    num_pieces: int | None = None

    def __post_init__(self):
        allowed = "a number above 0 and at most 1"
        check_number(self.name, "rate", self.rate, allowed, lambda rate: 0 < rate <= 1)
        for field in ("mask_share", "random_share"):
            allowed = "a number from 0 to 1"
            check_number(self.name, field, getattr(self, field), allowed, lambda share: 0 <= share <= 1)
        # In binary floating point, the sum of 0.7 and 0.3 may not be exactly 1.
        if self.mask_share + self.random_share > 1 + 1e-9:
            allowed = f"at most 1 - mask_share = {1 - self.mask_share:g}"
            raise refusal(self.name, "random_share", self.random_share, allowed)
        if self.num_pieces is not None:
            check_integer(self.name, "num_pieces", self.num_pieces, 1)
        super().__post_init__()

    def with_vocabulary(self, num_pieces: int) -> "MaskedLM":
        """Return the objective with `num_pieces` set, if it is None.

        Raises:
            ValueError: the objective's own number is larger, so it would draw tokens outside the model's
                vocabulary.
        """
        if self.num_pieces is None:
            return replace(self, num_pieces=num_pieces)
        if self.num_pieces > num_pieces:
            allowed = f"None or at most {num_pieces}, the pieces of the text's tokenizer"
            raise refusal(self.name, "num_pieces", self.num_pieces, allowed)
        return self

    def example_length(self, count: int) -> int:
        """Return the exact length of an example of `count` tokens: the text, the marker and [SEP]."""
        return self.marker_length + count + 1

    def max_loss_positions(self, length: int, spacing: int) -> int:
        """Return the maximum number of loss positions in a packed row.

        The examples of a row, each followed by its spacing, take at most `length + spacing` positions. The
        bound multiplies this number by the largest share of labels in an example of any length.
        """
        limit = self.text_limit(length)
        if self.max_length is not None:
            limit = min(limit, self.max_length)
        if limit < self.minimum_tokens:
            return 0
        counts = np.arange(self.minimum_tokens, limit + 1)
        labels = _labels_of(counts, self.rate)
        taken = counts + (self.example_length(0) + spacing)
        # Integers, because rounding must not make the bound too small.
        return min(int((labels * (length + spacing) // taken).max()), length)

    def assemble(
        self, tokens: Int32[np.ndarray, " tokens"], rng: np.random.Generator, ends_document: bool
    ) -> Example:
        """Make the example. The chosen tokens and their replacements are random."""
        del ends_document
        (ordinary,) = np.nonzero(tokens >= vocabulary.NUM_SPECIAL_TOKENS)
        if not len(ordinary):
            raise UnsuitableText(f"{self.name}: the text has no ordinary token; it needs at least 1")
        count = int(_labels_of(np.array([len(ordinary)]), self.rate)[0])
        chosen = rng.choice(ordinary, count, replace=False, shuffle=False)
        draw = rng.random(count)
        if self.num_pieces is None:
            random_tokens = tokens[rng.choice(ordinary, count)]
        else:
            random_tokens = rng.integers(self.num_pieces, size=count) + vocabulary.NUM_SPECIAL_TOKENS
        is_mask = draw < self.mask_share
        is_random = ~is_mask & (draw < self.mask_share + self.random_share)
        shown = tokens.copy()
        shown[chosen[is_mask]] = vocabulary.MASK
        shown[chosen[is_random]] = random_tokens[is_random]
        labels = np.full(self.example_length(len(tokens)), NO_LABEL, np.int32)
        labels[self.marker_length + chosen] = tokens[chosen]
        context = surround(self.marker, shown, vocabulary.SEPARATOR)
        return Example(context, np.empty(0, np.int32), labels=labels)


def _labels_of(counts: Int64[np.ndarray, " lengths"], rate: float) -> Int64[np.ndarray, " lengths"]:
    """Return the number of labels for each number of tokens: the share `rate`, rounded, at least one."""
    return np.maximum(np.rint(counts * rate).astype(np.int64), 1)
