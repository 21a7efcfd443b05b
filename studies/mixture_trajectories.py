"""Whether trajectories of the search's proxies predict better than their final losses.

RegMix-D (arXiv 2606.18663; we know its title) uses trajectories to find a mixture that changes during a
run. The regression here is our own. Between two validations the logarithm of a class's loss falls by

    a_ck + b_c . w + d_c . sqrt(w) + f_c . log L

with a constant a_ck for each interval k, w the shares in this interval, and L the losses of all classes
before it. So it predicts a run with any shares in any interval, though proxies keep theirs.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Float64

from birdie_jax.mixture_search.findings import Findings
from birdie_jax.mixture_search.regression import predict_left_out, rank_correlation
from studies.class_objective import losses_of_classes
from studies.steering import TWO_BATCHES, UNIFORM, class_shares, objectives
from studies.steering import Results as SteeringResults

# Candidates for the penalty on squared slopes. The one with the smallest leave-one-out error of J is used.
_PENALTIES = (1e-5, 1e-4, 1e-3, 1e-2)
STAGES = (1, 2, 4)
_DESCENT_STEPS, _RATE = 500, 0.1
# The logit of the best proxy where the descent starts; all others are 0.
_START = 4.0
# Rows at quarters of a run need a validation there.
MIN_VALIDATIONS = 5
_PARTS = {"a quarter": 0.25, "a half": 0.5, "three quarters": 0.75, "the whole": 1.0}
# It validates two batches.
_PUBLISHED = "published"

Losses = Float64[np.ndarray, "points times classes"]
Shares = Float64[np.ndarray, "points classes"]


class Trajectory(NamedTuple):
    """The regression.

    Attributes:
        first: the losses before the first step.
        intercepts: a, by interval and class.
        slopes: b, d and f, one below the other, by class.
    """

    first: Float[Array, " classes"]
    intercepts: Float[Array, "intervals classes"]
    slopes: Float[Array, "features classes"]

    @jax.jit
    def final(self, shares: Float[Array, "intervals classes"]) -> Float[Array, " classes"]:
        """Return the losses after the last interval."""

        def step(
            logs: Float[Array, " classes"], now: tuple[Float[Array, " classes"], Float[Array, " classes"]]
        ) -> tuple[Float[Array, " classes"], None]:
            intercept, of_interval = now
            return logs + intercept + _features(of_interval, logs) @ self.slopes, None

        return jnp.exp(jax.lax.scan(step, jnp.log(self.first), (self.intercepts, shares))[0])


def _features(shares: Any, logs: Any) -> Float[Array, "... features"]:
    return jnp.concatenate([shares, jnp.sqrt(shares), logs], axis=-1)


def trajectories(results: Mapping[Any, Mapping[str, Any]], classes: tuple[str, ...]) -> Losses:
    """Return the losses of each run at each validation, by class."""
    return np.array(
        [
            [
                [of_class[name] for name in classes]
                for losses in result["validation_loss"]
                for of_class in [losses_of_classes(dict(zip(result["arms"], losses, strict=True)))]
            ]
            for result in results.values()
        ]
    )


def fit(shares: Shares, losses: Losses, penalty: float) -> Trajectory:
    """Return the ridge regression of runs that keep their shares."""
    logs = np.log(losses)
    before, falls = logs[:, :-1], np.diff(logs, axis=1)
    points, intervals, classes = falls.shape
    each = np.broadcast_to(shares[:, None], before.shape)
    inputs = np.asarray(_features(each, before), np.float64)
    # The intercepts of intervals carry no penalty, so they are those of centred data.
    means, mean_falls = inputs.mean(axis=0), falls.mean(axis=0)
    centred = (inputs - means).reshape(points * intervals, -1)
    matrix = centred.T @ centred + penalty * len(centred) * np.eye(centred.shape[1])
    slopes = np.linalg.solve(matrix, centred.T @ (falls - mean_falls).reshape(-1, classes))
    return Trajectory(
        jnp.asarray(losses[:, 0].mean(axis=0)),
        jnp.asarray(mean_falls - means @ slopes),
        jnp.asarray(slopes),
    )


class Fitted(NamedTuple):
    """The regression of a search.

    Attributes:
        trajectory: fitted to all finished proxies.
        rank_correlation: between J and its leave-one-out prediction.
        error: the mean absolute error of the leave-one-out prediction of J.
        schedules: the predicted J of the best schedule, by its number of stages.
    """

    trajectory: Trajectory
    rank_correlation: float
    error: float
    schedules: Mapping[int, float]


def fit_trajectories(findings: Findings, losses: Losses) -> Fitted:
    """Return the regression with the penalty that has the smallest leave-one-out error of J."""
    shares, measured = findings.shares[:, 0], findings.objectives(losses[:, -1])

    def left_out(penalty: float) -> Float64[np.ndarray, " points"]:
        found = [
            fit(np.delete(shares, at, 0), np.delete(losses, at, 0), penalty).final(
                jnp.broadcast_to(shares[at], (losses.shape[1] - 1, shares.shape[1]))
            )
            for at in range(len(shares))
        ]
        return findings.objectives(np.array(found, np.float64))

    predictions = {penalty: left_out(penalty) for penalty in _PENALTIES}
    errors = {
        penalty: float(np.abs(predicted - measured).mean()) for penalty, predicted in predictions.items()
    }
    penalty = min(errors, key=errors.__getitem__)
    trajectory = fit(shares, losses, penalty)
    best = int(measured.argmin())
    return Fitted(
        trajectory,
        rank_correlation(predictions[penalty], measured),
        errors[penalty],
        {stages: best_schedule(trajectory, shares, best, stages, findings.weights) for stages in STAGES},
    )


def best_schedule(
    found: Trajectory, proxies: Shares, best: int, stages: int, weights: Float64[np.ndarray, " classes"]
) -> float:
    """Return the predicted J of the best schedule of equal stages, each a blend of proxies.

    Args:
        found: the regression.
        proxies: the shares of the proxies.
        best: the number of the proxy where gradient descent starts.
        stages: the number of stages.
        weights: the weights of the classes in J.
    """
    intervals = len(found.intercepts)

    def predicted(logits: Float[Array, "stages points"]) -> Float[Array, ""]:
        shares = jax.nn.softmax(logits) @ proxies
        return found.final(shares[jnp.arange(intervals) * stages // intervals]) @ weights

    optimiser = optax.adam(_RATE)
    start = jnp.zeros((stages, len(proxies))).at[:, best].set(_START)

    @jax.jit
    def descend(logits: Float[Array, "stages points"]) -> Float[Array, " steps"]:
        def step(state: Any, _: None) -> tuple[Any, Float[Array, ""]]:
            logits, memory = state
            value, gradient = jax.value_and_grad(predicted)(logits)
            updates, memory = optimiser.update(gradient, memory)
            return (logits + updates, memory), value

        return jax.lax.scan(step, (logits, optimiser.init(logits)), None, _DESCENT_STEPS)[1]

    return float(descend(start).min())


class EarlyRow(NamedTuple):
    """How J after a part of a run orders the proxies.

    Attributes:
        part: the part of the run.
        measured: the rank correlation of J then with J at the end.
        by_law: the same for the leave-one-out prediction of J then.
    """

    part: str
    measured: float
    by_law: float


def early_rows(findings: Findings, losses: Losses) -> list[EarlyRow]:
    """Return a row for each quarter of a run."""
    final = findings.objectives(losses[:, -1])
    last = losses.shape[1] - 1
    rows = []
    for name, part in _PARTS.items():
        then = losses[:, round(part * last)]
        by_law = findings.objectives(predict_left_out(findings.shares[:, 0], then))
        rows.append(
            EarlyRow(
                name, rank_correlation(findings.objectives(then), final), rank_correlation(by_law, final)
            )
        )
    return rows


class OfContender(NamedTuple):
    """J of a contender less J of equal shares, mean over seeds.

    Attributes:
        measured: from the runs.
        by_law: predicted by the law of final losses, from the mean shares.
        by_trajectories: predicted from the shares in each interval.
    """

    measured: float
    by_law: float
    by_trajectories: float


def of_contenders(findings: Findings, found: Trajectory, steering: SteeringResults) -> list[OfContender]:
    """Return predictions for contenders, which the regression has not seen; not those with two batches."""
    shares: dict[str, list[Float64[np.ndarray, "intervals classes"]]] = {}
    for run, result in steering.items():
        names, of_decisions = class_shares(result)
        in_order = of_decisions[:, [names.index(name) for name in findings.measured]]
        at = np.searchsorted(result["steps"][: len(in_order)], np.arange(result["steps"][-1]), side="right")
        parts = np.array_split(in_order[at - 1], len(found.intercepts))
        shares.setdefault(run.contender, []).append(np.array([part.mean(axis=0) for part in parts]))
    by_trajectories = {
        name: np.mean([findings.objective(np.asarray(found.final(run), np.float64)) for run in runs])
        for name, runs in shares.items()
    }
    by_law = {
        name: np.mean(findings.objectives(findings.law.predict(np.mean(runs, axis=1))))
        for name, runs in shares.items()
    }
    measured = {name: np.mean(list(values.values())) for name, values in objectives(steering).items()}
    return [
        OfContender(*(float(each[name] - each[UNIFORM]) for each in (measured, by_law, by_trajectories)))
        for name in shares
        if name not in (UNIFORM, TWO_BATCHES, _PUBLISHED)
    ]
