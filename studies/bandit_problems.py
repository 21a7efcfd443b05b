"""Synthetic problems of choosing mixtures. Gradient descent finds their best schedules.

A problem has eight arms with different learning rates, and each arm saturates. Let a be the mixture of a
decision, x_i the amount learned of arm i, and e the measurement noise:

    x <- (1 - forgetting) x + rates * (transfer a)        loss = floor + height * exp(-x) + e

The mean of the final losses is convex in the mixtures of all decisions, so descent finds the best schedule
and the best constant mixture. The threshold dose is not convex: better schedules than the one that descent
finds may exist. The problems:

- saturation: no transfer; rates differ by a factor of 50;
- one arm: every loss depends on the probability of one arm only;
- transfer: one arm teaches all others, and training on three of the arms teaches nothing;
- abrupt change: like transfer; halfway through the run another arm becomes the teacher, and rates change;
- gradual change: like saturation, but each rate swings by a factor of 10 over the run;
- forgetting: like transfer, and each decision loses 5 % of the amount learned;
- noise: like transfer, with a noise of 0.05 nats instead of 0.01;
- threshold dose: like saturation, but in half of the arms the first 0.3 to 1.2 learned have no effect;
- common trend: like transfer, and every arm also learns without training, more and more slowly;
- delayed returns: like transfer, and each decision shows 1/8 of the effect that is still hidden.

Rates, forgetting, the common trend and delays are defined for 32 decisions. A run with more decisions has
the same totals.
"""

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

ARMS, DECISIONS = 8, 32
SHARPNESS = 20.0


class Instance(NamedTuple):
    """One problem.

    Attributes:
        rates: [decisions, arms], the amount learned in one decision at probability 1.
        transfer: [decisions, arms, arms], how much arm i (row) learns from training on arm j.
        forgetting: the share of the amount learned that a decision loses.
        height: [arms], the total decrease of the loss.
        floor: [arms], the loss at the end of learning.
        noise: [decisions + 1, arms], the noise added to the measured losses.
        trend: [decisions], the amount that every arm learns at a decision without training.
        release: the share of the hidden amount that becomes visible at a decision; 1 = all of it.
        threshold: [arms], the amount to learn before the loss falls.
    """

    rates: np.ndarray
    transfer: np.ndarray
    forgetting: float
    height: np.ndarray
    floor: np.ndarray
    noise: np.ndarray
    trend: np.ndarray
    release: float
    threshold: np.ndarray


class Learned(NamedTuple):
    """The amount learned of each arm.

    Attributes:
        shown: [arms], the amount that the losses show, before any threshold.
        hidden: [arms], the amount that they will show later.
    """

    shown: np.ndarray | jax.Array
    hidden: np.ndarray | jax.Array


def make_instance(
    rng: np.random.Generator,
    decisions: int = DECISIONS,
    *,
    spread: float = 1.7,
    transfer: Callable[[np.random.Generator, np.ndarray], np.ndarray] | None = None,
    changes: bool = False,
    swings: bool = False,
    forgetting: float = 0.0,
    noise: float = 0.01,
    trend: float = 0.0,
    release: float = 1.0,
    has_threshold: bool = False,
) -> Instance:
    """Return a problem with one or two phases; each phase has its own rates and transfer."""
    share = DECISIONS / decisions

    def phase() -> tuple[np.ndarray, np.ndarray]:
        rates = 10 ** rng.permutation(np.linspace(-spread, 0, ARMS))
        return rates, np.eye(ARMS) if transfer is None else transfer(rng, rates)

    phases = [phase()]
    phases.append(phase() if changes else phases[0])
    halves = [decisions // 2, decisions - decisions // 2]
    rates, between = (np.repeat(np.stack(both), halves, axis=0) for both in zip(*phases, strict=True))
    if swings:
        angle = np.pi * np.arange(decisions)[:, None] / decisions + rng.uniform(0, 2 * np.pi, ARMS)
        rates = rates * 10 ** (0.5 * np.sin(angle))
    height, floor = rng.uniform(1, 4, ARMS), rng.uniform(0.1, 2, ARMS)
    errors = noise * rng.normal(size=(decisions + 1, ARMS))
    has_one = rng.permutation(ARMS) < ARMS // 2
    return Instance(
        rates * share,
        between,
        1.0 - (1.0 - forgetting) ** share,
        height,
        floor,
        errors,
        trend * share * np.exp(-np.arange(decisions) * share / 6),
        1.0 - (1.0 - release) ** share,
        np.where(has_one & has_threshold, rng.uniform(0.3, 1.2, ARMS), 0.0),
    )


def one_teacher(rng: np.random.Generator, rates: np.ndarray) -> np.ndarray:
    """Return a transfer matrix: one arm teaches all, three teach nothing, and the rest teach themselves."""
    matrix = np.eye(ARMS)
    order = rng.permutation(ARMS)
    matrix[order[1:4], order[1:4]] = 0
    # Dividing by the rate makes every arm learn from the teacher at the same speed.
    matrix[:, order[0]] = 0.3 / rates
    return matrix


def only_one_teaches(rng: np.random.Generator, rates: np.ndarray) -> np.ndarray:
    """Return a transfer matrix: one arm teaches all, and the others teach nothing."""
    matrix = np.zeros((ARMS, ARMS))
    matrix[:, rng.integers(ARMS)] = 0.15 / rates
    return matrix


# The position of a problem seeds its random numbers: append new problems at the end.
PROBLEMS: dict[str, Callable[[np.random.Generator, int], Instance]] = {
    "abrupt change": functools.partial(make_instance, transfer=one_teacher, changes=True),
    "forgetting": functools.partial(make_instance, transfer=one_teacher, forgetting=0.05),
    "gradual change": functools.partial(make_instance, swings=True),
    "noise": functools.partial(make_instance, transfer=one_teacher, noise=0.05),
    "one arm": functools.partial(make_instance, transfer=only_one_teaches),
    "saturation": make_instance,
    "transfer": functools.partial(make_instance, transfer=one_teacher),
    "threshold dose": functools.partial(make_instance, has_threshold=True),
    "common trend": functools.partial(make_instance, transfer=one_teacher, trend=0.2),
    "delayed returns": functools.partial(make_instance, transfer=one_teacher, release=0.125),
}


def instance_of(problem: str, seed: int, decisions: int = DECISIONS) -> Instance:
    """Return the instance of a problem for a seed."""
    return PROBLEMS[problem](np.random.default_rng((list(PROBLEMS).index(problem), seed)), decisions)


def nothing_learned() -> Learned:
    """Return the amounts learned before the first decision: zeros."""
    return Learned(np.zeros(ARMS), np.zeros(ARMS))


def learned(instance: Instance, before: Learned, decision: int, mixture: np.ndarray) -> Learned:
    """Return the amounts learned after a decision, given the amounts before it."""
    at = (instance.rates[decision], instance.transfer[decision], instance.trend[decision])
    return _learned(instance, before, at, mixture)


def _learned(instance: Instance, before: Learned, at: tuple, mixture: Any) -> Learned:
    rates, transfer, trend = at
    hidden = before.hidden + rates * (transfer @ mixture)
    kept = (1 - instance.forgetting) * before.shown + trend
    return Learned(kept + instance.release * hidden, (1 - instance.release) * hidden)


def loss_of(instance: Instance, found: Learned) -> np.ndarray:
    """Return the losses without noise."""
    return np.asarray(_loss_of(instance, found, np))


def _loss_of(instance: Instance, found: Learned, numpy: ModuleType) -> Any:
    beyond = numpy.logaddexp(0, SHARPNESS * (found.shown - instance.threshold)) / SHARPNESS
    shown = numpy.where(instance.threshold > 0, beyond, found.shown)
    return instance.floor + instance.height * numpy.exp(-shown)


@jax.jit
def gains_of(instance: Instance, found: Learned, rates: jax.Array, transfer: jax.Array) -> jax.Array:
    """Return the decrease of the next mean loss per unit of each arm's share."""

    def mean_loss(mixture: jax.Array) -> jax.Array:
        return jnp.mean(_loss_of(instance, _learned(instance, found, (rates, transfer, 0.0), mixture), jnp))

    return -jax.grad(mean_loss)(jnp.zeros(ARMS))


@functools.partial(jax.jit, static_argnames="is_constant")
def descend(instance: Instance, is_constant: bool) -> jax.Array:
    """Return the best final mean loss over all schedules, or over constant mixtures."""
    decisions = len(instance.rates)

    def final_loss(logits):
        mixtures = jnp.broadcast_to(jax.nn.softmax(logits), (decisions, ARMS))

        def step(found, inputs):
            *at, mixture = inputs
            return _learned(instance, found, tuple(at), mixture), None

        nothing = Learned(jnp.zeros(ARMS), jnp.zeros(ARMS))
        inputs = (instance.rates, instance.transfer, instance.trend, mixtures)
        found, _ = jax.lax.scan(step, nothing, inputs)
        return jnp.mean(_loss_of(instance, found, jnp))

    logits = jnp.zeros((1 if is_constant else decisions, ARMS))
    optimizer = optax.adam(optax.cosine_decay_schedule(0.3, 3000))

    def update(carry, _):
        logits, moments = carry
        change, moments = optimizer.update(jax.grad(final_loss)(logits), moments)
        return (optax.apply_updates(logits, change), moments), None

    (logits, _), _ = jax.lax.scan(update, (logits, optimizer.init(logits)), length=3000)
    return final_loss(logits)
