"""What generation kept and how fast it was, in words."""

from collections.abc import Iterator

from birdie_jax.generation.generator import Generator
from birdie_jax.generation.state_size import state_bytes, state_grows


def summary(generator: Generator) -> Iterator[str]:
    """Yield lines about state memory and the speed of reading and writing."""
    times = generator.times
    model = generator.model
    if state_grows(model):
        one, more = state_bytes(model, 1024), state_bytes(model, 2048)
        yield f"state: {one:,} bytes a row of 1,024 tokens, {more:,} of 2,048, as computed: it grows"
    else:
        yield f"state: {state_bytes(model, 1):,} bytes a row as computed, for a context of any length"
    if times.compile_seconds:
        yield f"compiling: {times.compile_seconds:.2f} s"
    if times.read_seconds:
        rate = times.prompt_tokens / times.read_seconds
        seconds = times.read_seconds
        yield f"prefill: {times.prompt_tokens:,} tokens in {seconds:.3f} s, {rate:,.0f} tokens/s"
    if times.steps:
        rate = times.written_tokens / times.write_seconds
        step = 1e3 * times.write_seconds / times.steps
        seconds, tokens = times.write_seconds, times.written_tokens
        yield f"decode: {tokens:,} tokens in {seconds:.3f} s, {rate:,.0f} tokens/s, {step:.3f} ms a step"
