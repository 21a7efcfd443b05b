"""Choice of the next token: greedy, or random among the tokens that the filters keep."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

Scores = Float[Array, "rows vocab"]

_EXCLUDED = -jnp.inf
_MIN_TEMPERATURE, _MAX_TEMPERATURE = 1e-6, 1e6
# Minus infinity, as an integer in the order of floats.
_ORDER_OF_EXCLUDED = -0x7F800001


@dataclass(frozen=True)
class Sampling:
    """The rule that chooses the next token; its fields apply in this order.

    Attributes:
        temperature: the divisor of the logits, from 1e-6 to 1e6, which keeps them within float32; 0 chooses
            the most probable token (greedy).
        top_k: the number of most probable tokens to keep, with all ties of the last one; 0: all.
        top_p: the minimum total probability, after top_k and renormalisation, of the smallest set of most
            probable tokens to keep (nucleus sampling; Holtzman et al. 2020, section 3.1); 1: all.
        min_p: the minimum probability of a token to keep, as a share of the most probable token's
            probability (Nguyen et al. 2024, section 3); 0: all.

    Raises:
        ValueError: a field is outside its range, or greedy choice has a filter.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def __post_init__(self):
        finite = math.isfinite(self.temperature)
        _require(finite, "temperature", self.temperature, "a finite number of at least 0")
        _require(self.temperature >= 0, "temperature", self.temperature, "at least 0")
        usable = self.greedy or _MIN_TEMPERATURE <= self.temperature <= _MAX_TEMPERATURE
        allowed = f"0, which is greedy, or from {_MIN_TEMPERATURE:g} to {_MAX_TEMPERATURE:g}"
        _require(usable, "temperature", self.temperature, allowed)
        _require(self.top_k >= 0, "top_k", self.top_k, "at least 0; 0 = no limit")
        _require(0 < self.top_p <= 1, "top_p", self.top_p, "above 0 and at most 1; 1 = no limit")
        _require(0 <= self.min_p <= 1, "min_p", self.min_p, "from 0 to 1; 0 = no limit")
        if self.greedy:
            for field, unused in (("top_k", 0), ("top_p", 1), ("min_p", 0)):
                value = getattr(self, field)
                allowed = f"{unused}, because temperature = 0 chooses greedily"
                _require(value == unused, field, value, allowed)

    @property
    def greedy(self) -> bool:
        """Whether the most probable token is always chosen."""
        return self.temperature == 0


def _require(ok: bool, field: str, value: float | int, allowed: str) -> None:
    if not ok:
        raise ValueError(f"{field}: found {value}; allowed: {allowed}")


GREEDY = Sampling()


def filter_logits(logits: Scores, sampling: Sampling) -> Scores:
    """Return the logits that `sampling` draws from: minus infinity on tokens that a filter excludes.

    Args:
        logits: float32, minus infinity on tokens that are already excluded.
        sampling: the rule; its temperature must be above 0.
    """
    scores = logits / sampling.temperature
    if sampling.top_k:
        threshold = _threshold_score(scores, jnp.ones_like(scores), sampling.top_k)
        scores = jnp.where(scores >= threshold, scores, _EXCLUDED)
    if sampling.top_p < 1:
        threshold = _threshold_score(scores, jax.nn.softmax(scores, axis=-1), sampling.top_p)
        scores = jnp.where(scores >= threshold, scores, _EXCLUDED)
    if sampling.min_p:
        threshold = jnp.max(scores, axis=-1, keepdims=True) + math.log(sampling.min_p)
        scores = jnp.where(scores >= threshold, scores, _EXCLUDED)
    return scores


def _threshold_score(scores: Scores, weights: Scores, min_weight: float | int) -> Float[Array, "rows 1"]:
    """Return the greatest score such that tokens with that score or more weigh at least `min_weight`.

    Bisection over all floats takes 32 sums over the vocabulary, and no sort for every token. The result is
    minus infinity if all tokens together weigh less.
    """
    bits = jax.lax.bitcast_convert_type(scores, jnp.int32)
    # As integers, negative floats have the reverse order.
    order = bits ^ ((bits >> 31) & jnp.int32(0x7FFFFFFF))

    def bisect(_, bounds):
        low, high = bounds
        middle = (low | high) - ((low ^ high) >> 1)
        weight = jnp.sum(jnp.where(order >= middle, weights, 0), axis=-1, keepdims=True)
        return jnp.where(weight >= min_weight, middle, low), jnp.where(
            weight >= min_weight, high, middle - 1
        )

    rows = (scores.shape[0], 1)
    bounds = (jnp.full(rows, _ORDER_OF_EXCLUDED, jnp.int32), jnp.max(order, axis=-1, keepdims=True))
    low, _ = jax.lax.fori_loop(0, 32, bisect, bounds)
    return jax.lax.bitcast_convert_type(low ^ ((low >> 31) & jnp.int32(0x7FFFFFFF)), jnp.float32)


def sample_tokens(
    logits: Scores,
    allowed: Bool[Array, "rows vocab"],
    keys: Key[Array, " rows"],
    indices: Int[Array, " rows"],
    sampling: Sampling,
) -> Int[Array, " rows"]:
    """Return the next token of each row.

    Args:
        logits: float32.
        allowed: true on the tokens that may be chosen in each row.
        keys: the random key of each row's whole answer.
        indices: the index, within each answer, of the token to choose. A row's token depends only on its
            own logits, key and index, not on other rows or on chunks.
        sampling: the rule.
    """
    logits = jnp.where(allowed, logits, _EXCLUDED)
    if sampling.greedy:
        return jnp.argmax(logits, axis=-1).astype(jnp.int32)
    token_keys = jax.vmap(jax.random.fold_in)(keys, indices)
    return jax.vmap(jax.random.categorical)(token_keys, filter_logits(logits, sampling)).astype(jnp.int32)
