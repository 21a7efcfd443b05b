"""Times of generation, and memory of the cache."""

from collections.abc import Iterator
from dataclasses import dataclass

import jax

from birdie_jax.models import LanguageModel
from birdie_jax.models.registry import architecture_of


def cache_bytes(model: LanguageModel, length: int) -> int:
    """Return the bytes of the model's cache for one row of `length` tokens, computed from shapes."""
    cache = jax.eval_shape(lambda: model.empty_cache(1, length))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(cache))


def cache_grows(model: LanguageModel) -> bool:
    """Return whether the model's cache grows with the length of a row.

    The cache of attention without a window grows. An encoder has no cache.
    """
    if architecture_of(model.config).encoder:
        return False
    return cache_bytes(model, 2) > cache_bytes(model, 1)


@dataclass
class GenerationTimes:
    """Counts of processed tokens, and their seconds without compilation.

    Attributes:
        compile_seconds: the compilation time of new shapes.
        prompt_tokens: the number of prompt tokens prefilled, without padding.
        prefill_seconds: the time spent on prefill.
        decoded_tokens: the number of tokens from the decode loop: all except the first of each answer.
        decode_seconds: the time spent in the decode loop.
        decode_steps: the number of iterations of the loop; each adds one token to every row of the batch.
    """

    compile_seconds: float = 0.0
    prompt_tokens: int = 0
    prefill_seconds: float = 0.0
    decoded_tokens: int = 0
    decode_seconds: float = 0.0
    decode_steps: int = 0


def describe_generation(model: LanguageModel, times: GenerationTimes) -> Iterator[str]:
    """Yield lines about the cache's memory and the speed of compilation, prefill and decoding."""
    if cache_grows(model):
        one, more = cache_bytes(model, 1024), cache_bytes(model, 2048)
        yield f"state: {one:,} bytes a row of 1,024 tokens, {more:,} of 2,048, as computed: it grows"
    else:
        yield f"state: {cache_bytes(model, 1):,} bytes a row as computed, for a context of any length"
    if times.compile_seconds:
        yield f"compiling: {times.compile_seconds:.2f} s"
    if times.prefill_seconds:
        rate = times.prompt_tokens / times.prefill_seconds
        seconds = times.prefill_seconds
        yield f"prefill: {times.prompt_tokens:,} tokens in {seconds:.3f} s, {rate:,.0f} tokens/s"
    if times.decode_steps:
        rate = times.decoded_tokens / times.decode_seconds
        step = 1e3 * times.decode_seconds / times.decode_steps
        seconds, tokens = times.decode_seconds, times.decoded_tokens
        yield f"decode: {tokens:,} tokens in {seconds:.3f} s, {rate:,.0f} tokens/s, {step:.3f} ms a step"
