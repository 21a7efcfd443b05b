"""Shared code of side-by-side benchmarks: training steps, decoding, and timing in turns."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import optax


def trainer(params: Any, loss: Callable) -> Callable:
    """Return a function of tokens that takes a training step and updates its own state."""
    optimizer = optax.adamw(1e-4)
    state = [jax.tree.map(jnp.array, params), optimizer.init(params)]

    @partial(jax.jit, donate_argnums=(0, 1))
    def train(params, moments, tokens):
        value, gradient = jax.value_and_grad(loss)(params, tokens)
        updates, moments = optimizer.update(gradient, moments, params)
        return optax.apply_updates(params, updates), moments, value

    def call(tokens):
        *state[:], value = train(*state, tokens)
        return value

    return call


def decoder(params: Any, step: Callable, count: int) -> Callable:
    """Return a function (token, position, cache) that decodes `count` tokens."""

    @jax.jit
    def decode(params, token, position, cache):
        def decode_token(carried, offset):
            token, cache = carried
            token, cache = step(params, token, position + offset, cache)
            return (token, cache), token

        return jax.lax.scan(decode_token, (token, cache), jnp.arange(count))[1]

    return partial(decode, params)


def in_turns(functions: Sequence[Callable], rounds: int) -> list[float]:
    """Return the median seconds of each function; all are called once before."""
    for function in functions:
        jax.block_until_ready(function())
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(rounds):
        for function, seconds in zip(functions, times, strict=True):
            start = time.perf_counter()
            jax.block_until_ready(function())
            seconds.append(time.perf_counter() - start)
    return [median(seconds) for seconds in times]
