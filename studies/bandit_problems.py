"""Synthetic problems of choosing mixtures; gradient descent finds their best schedules.

Eight arms are learned at different rates, and saturate. With a the mixture of a decision, x_i what arm i
has learned and e the noise of a measurement,

    x <- (1 - forgetting) x + rates * (transfer a)        loss = floor + height * exp(-x) + e

The mean of the final losses is convex in the mixtures of all decisions, so descent finds the best schedule,
and the best constant mixture. With the threshold dose the problem is not convex, and better schedules than
those of descent may exist. The problems:

- saturation: no transfer; rates differ by a factor of 50;
- one arm: every loss falls with the probability of one arm only;
- transfer: one arm teaches all others, and three arms learn nothing from themselves;
- abrupt change: as transfer; in the middle of the run another arm becomes the teacher, and rates change;
- gradual change: as saturation, but each rate swings by a factor of 10 over the run;
- forgetting: as transfer, and 5 % of what is learned is lost at each decision;
- noise: as transfer, with a noise of 0.05 nats instead of 0.01;
- threshold dose: as saturation, but half of the arms show nothing of the first 0.3 to 1.2 that they learn;
- common trend: as transfer, and every arm also learns regardless of the mixture, ever more slowly;
- delayed returns: as transfer, and each decision shows 1/8 of the effect of an action that is still hidden.

Rates, forgetting, the common trend and delays are defined for 32 decisions; a run of more decisions has the
same totals.
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
    """One problem; arrays over decisions come first.

    Attributes:
        rates: [decisions, arms], what is learned at probability 1 in one decision.
        transfer: [decisions, arms, arms], how much arm i (row) learns from training on arm j.
        forgetting: the share of what is learned that is lost at a decision.
        height: [arms], what the loss falls by in the end.
        floor: [arms], where it ends.
        noise: [decisions + 1, arms], what is added to the measured losses.
        trend: [decisions], what every arm learns by itself at a decision.
        release: the share of what is learned and not yet shown that shows at a decision; 1 = all of it.
        threshold: [arms], what must be learned before it shows.
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
    """What the arms have learned.

    Attributes:
        shown: [arms], what the losses show, but for a threshold.
        hidden: [arms], what they will show later.
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
    """Return a problem, of one or two phases with rates and transfer of their own."""
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
    """Return a matrix: one arm teaches all, and three others do not even teach themselves."""
    matrix = np.eye(ARMS)
    order = rng.permutation(ARMS)
    matrix[order[1:4], order[1:4]] = 0
    # Whatever an arm's own rate, it learns from the teacher at a middling one.
    matrix[:, order[0]] = 0.3 / rates
    return matrix


def only_one_teaches(rng: np.random.Generator, rates: np.ndarray) -> np.ndarray:
    """Return a matrix in which one arm teaches all, and the others nothing."""
    matrix = np.zeros((ARMS, ARMS))
    matrix[:, rng.integers(ARMS)] = 0.15 / rates
    return matrix


# In the order of their random numbers: a new one goes to the end.
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
    """Return the problem of a seed."""
    return PROBLEMS[problem](np.random.default_rng((list(PROBLEMS).index(problem), seed)), decisions)


def nothing_learned() -> Learned:
    """Return what is learned before the first decision."""
    return Learned(np.zeros(ARMS), np.zeros(ARMS))


def learned(instance: Instance, before: Learned, decision: int, mixture: np.ndarray) -> Learned:
    """Return what is learned after a decision, from what was learned before it."""
    at = (instance.rates[decision], instance.transfer[decision], instance.trend[decision])
    return _learned(instance, before, at, mixture)


def _learned(instance: Instance, before: Learned, at: tuple, mixture: Any) -> Learned:
    rates, transfer, trend = at
    hidden = before.hidden + rates * (transfer @ mixture)
    kept = (1 - instance.forgetting) * before.shown + trend
    return Learned(kept + instance.release * hidden, (1 - instance.release) * hidden)


def loss_of(instance: Instance, found: Learned) -> np.ndarray:
    """Return the losses, without noise."""
    return np.asarray(_loss_of(instance, found, np))


def _loss_of(instance: Instance, found: Learned, numpy: ModuleType) -> Any:
    beyond = numpy.logaddexp(0, SHARPNESS * (found.shown - instance.threshold)) / SHARPNESS
    shown = numpy.where(instance.threshold > 0, beyond, found.shown)
    return instance.floor + instance.height * numpy.exp(-shown)


@jax.jit
def gains_of(instance: Instance, found: Learned, rates: jax.Array, transfer: jax.Array) -> jax.Array:
    """Return by how much a larger share of each arm lowers the mean loss of the next observation."""

    def mean_loss(mixture: jax.Array) -> jax.Array:
        return jnp.mean(_loss_of(instance, _learned(instance, found, (rates, transfer, 0.0), mixture), jnp))

    return -jax.grad(mean_loss)(jnp.zeros(ARMS))


@functools.partial(jax.jit, static_argnames="is_constant")
def descend(instance: Instance, is_constant: bool) -> jax.Array:
    """Return the best final mean loss over all schedules, or over mixtures that never change."""
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
