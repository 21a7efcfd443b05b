"""T5's random span noise, which span corruption and both full span corruption objectives use.

Source: Raffel et al. 2020, section 3.1.4, and the noise mask of its published code. For example, a text of
568 tokens at rate 0.15 and mean span 3 gives 512 input tokens and 114 target tokens.
"""

import functools
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int32, Int64

from birdie_jax import vocabulary
from birdie_jax.errors import UnsuitableText
from birdie_jax.objectives.checks import MAX_TOKENS, check_number
from birdie_jax.objectives.objective import Objective

_SENTINELS = np.arange(
    vocabulary.FIRST_SENTINEL, vocabulary.FIRST_SENTINEL + vocabulary.NUM_SENTINELS, dtype=np.int32
)


def noise_counts(count: int, rate: float, mean_span: float) -> tuple[int, int]:
    """Return the number of noise tokens and of noise spans in `count` tokens, at least 2.

    Nothing is random. The number of spans is rounded as in T5. Each span has at least one noise token and
    follows at least one kept token.
    """
    noise = min(max(round(count * rate), 1), count - 1)
    spans = min(max(round(noise / mean_span), 1), noise, count - noise)
    return noise, spans


def random_composition(total: int, parts: int, rng: np.random.Generator) -> Int64[np.ndarray, " parts"]:
    """Split `total` into `parts` positive integers. All such splits are equally likely."""
    edges = np.empty(parts + 1, np.int64)
    edges[0] = 0
    edges[-1] = total
    if parts > 1:
        cuts = rng.choice(total - 1, parts - 1, replace=False, shuffle=False)
        cuts.sort()
        edges[1:-1] = cuts + 1
    return edges[1:] - edges[:-1]


@dataclass(frozen=True)
class SpanNoise:
    """The noise spans of a text.

    Attributes:
        lengths: int64 `[2 * spans]`, the lengths of the parts: kept, noise, kept, noise, ...
        starts: int64 `[2 * spans]`, the position in the text at which each part starts.
        is_noise: bool `[tokens]`, whether each token is noise.
        sentinels: int32 `[spans]`, the sentinel of each noise span, in the order of the text.
    """

    lengths: Int64[np.ndarray, " parts"]
    starts: Int64[np.ndarray, " parts"]
    is_noise: Bool[np.ndarray, " tokens"]
    sentinels: Int32[np.ndarray, " spans"]


@dataclass(frozen=True, kw_only=True)
class NoisedObjective(Objective):
    """Base class of objectives whose context replaces each noise span of the text with one sentinel.

    Attributes:
        rate: share of the text's tokens that are noise.
        mean_span: mean length of a noise span, in tokens.
    """

    rate: float = 0.15
    mean_span: float = 3.0

    def __post_init__(self):
        check_number(self.name, "rate", self.rate, "a number above 0 and below 1", lambda x: 0 < x < 1)
        allowed = f"a number of at least 1 and at most {MAX_TOKENS:,}"
        check_number(self.name, "mean_span", self.mean_span, allowed, lambda x: 1 <= x <= MAX_TOKENS)
        super().__post_init__()

    @property
    def structural_minimum(self) -> int:
        """One noise token and one kept token."""
        return 2

    def text_limit(self, length: int) -> int:
        """Return the maximum number of text tokens that fit `length` and have enough sentinels."""
        return min(super().text_limit(length), _sentinel_limit(self.rate, self.mean_span))

    def draw_noise(self, count: int, rng: np.random.Generator) -> SpanNoise:
        """Draw the noise spans of a text of `count` tokens.

        Raises:
            UnsuitableText: the text has more noise spans than there are sentinels.
        """
        noise, spans = noise_counts(count, self.rate, self.mean_span)
        if spans > vocabulary.NUM_SENTINELS:
            raise UnsuitableText(
                f"{self.name}: a text of {count} tokens has {spans} noise spans; there are "
                f"{vocabulary.NUM_SENTINELS} sentinels"
            )
        lengths = np.empty(2 * spans, np.int64)
        lengths[1::2] = random_composition(noise, spans, rng)
        lengths[0::2] = random_composition(count - noise, spans, rng)
        parts = np.zeros(2 * spans, np.bool_)
        parts[1::2] = True
        return SpanNoise(lengths, lengths.cumsum() - lengths, parts.repeat(lengths), _SENTINELS[:spans])

    def corrupt(
        self, tokens: Int32[np.ndarray, " tokens"], noise: SpanNoise
    ) -> Int32[np.ndarray, " corrupted"]:
        """Return the context: the marker, then `tokens` with each noise span replaced by its sentinel."""
        first_of_noise = noise.starts[1::2]
        replaced = tokens.copy()
        replaced[first_of_noise] = noise.sentinels
        keep = ~noise.is_noise
        keep[first_of_noise] = True
        kept = replaced[keep]
        return kept if self.marker is None else np.concatenate((np.array([self.marker], np.int32), kept))


@functools.lru_cache(maxsize=1 << 12)
def _sentinel_limit(rate: float, mean_span: float) -> int:
    low, high = 2, MAX_TOKENS
    while low < high:
        middle = (low + high + 1) // 2
        if noise_counts(middle, rate, mean_span)[1] <= vocabulary.NUM_SENTINELS:
            low = middle
        else:
            high = middle - 1
    return low
