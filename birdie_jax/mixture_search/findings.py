"""The findings of a search: the fitted law, its leave-one-out test, and the best mixture."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from birdie_jax.mixture_search.design import Design
from birdie_jax.mixture_search.regression import Law, fit_law, predict_left_out, rank_correlation

# Leave-one-out needs two points in addition to the one left out.
MIN_PROXIES = 3
# As in RegMix, the result is the mean of the best of many simulated mixtures. Each is a blend of two
# proxies, because the law is unreliable for shares far from all proxies.
_SIMULATED, _AVERAGED, _MIXED = 100_000, 100, 2
_MIN_CORRELATION = 0.5
# According to Olmix, this number of runs per parameter is enough for its law.
_RUNS_A_PARAMETER = 3

Losses = Float64[np.ndarray, " measured"]


@dataclass(frozen=True)
class NamedMixture:
    """A mixture that the page and the command show.

    Attributes:
        name: the name to show.
        shares: its shares, by stage and class.
        predicted: the law's prediction of the loss of each measured class.
        losses: the final loss of each measured class; None if no proxy has trained on the mixture.
    """

    name: str
    shares: Float64[np.ndarray, "stages classes"]
    predicted: Losses
    losses: Losses | None


@dataclass(frozen=True)
class Findings:
    """The findings from the finished proxies of a search.

    Attributes:
        design: the mixtures of the search.
        measured: the names of the classes with measured losses.
        weights: the weight of each measured class in the objective; they sum to 1.
        planned: the number of proxies of the search.
        numbers: the numbers of the finished proxies.
        losses: the final losses, by finished proxy and measured class.
    """

    design: Design
    measured: tuple[str, ...]
    weights: Losses
    planned: int
    numbers: Int64[np.ndarray, " proxies"]
    losses: Float64[np.ndarray, "proxies measured"]

    @cached_property
    def shares(self) -> Float64[np.ndarray, "proxies stages classes"]:
        """The shares of the finished proxies."""
        return self.design.points(self.planned)[self.numbers]

    @cached_property
    def _features(self) -> Float64[np.ndarray, "proxies features"]:
        return self.shares.reshape(len(self.numbers), -1)

    @cached_property
    def law(self) -> Law:
        """The law fitted to all finished proxies."""
        return fit_law(self._features, self.losses)

    @cached_property
    def left_out(self) -> Float64[np.ndarray, "proxies measured"]:
        """The prediction for each proxy from the law fitted to all other proxies."""
        return predict_left_out(self._features, self.losses)

    @cached_property
    def rank_correlation(self) -> float:
        """The rank correlation between the objective and its leave-one-out prediction."""
        return rank_correlation(self.objectives(self.left_out), self.objectives(self.losses))

    @cached_property
    def error(self) -> float:
        """The mean absolute error of the leave-one-out prediction of the objective."""
        return float(np.abs(self.objectives(self.left_out - self.losses)).mean())

    @cached_property
    def mixtures(self) -> Sequence[NamedMixture]:
        """The own mixture, the uniform mixture, the mixture of the best proxy, and the found mixture."""
        own, uniform = self.design.points(2)
        best = int(np.argmin(self.objectives(self.losses)))
        return [
            self._named("own", own, 0),
            self._named("uniform", uniform, 1),
            self._named(f"best proxy, {self.numbers[best]}", self.shares[best], int(self.numbers[best])),
            self._named("found", self._find(), -1),
        ]

    @property
    def own(self) -> NamedMixture:
        """The configuration's own shares."""
        return self.mixtures[0]

    @property
    def found(self) -> NamedMixture:
        """The mixture that the law predicts to be best."""
        return self.mixtures[-1]

    def _named(self, name: str, shares: Float64[np.ndarray, "stages classes"], number: int) -> NamedMixture:
        rows = self.losses[self.numbers == number]
        losses = rows[0] if len(rows) else None
        return NamedMixture(name, shares, self.law.predict(shares.reshape(1, -1))[0], losses)

    def _find(self) -> Float64[np.ndarray, "stages classes"]:
        """Return the mean of the best blends of two proxies, which is within the range of the proxies."""
        random = np.random.default_rng(self.design.seed)
        proxies = random.integers(len(self.numbers), size=(_SIMULATED, _MIXED))
        parts = random.dirichlet(np.ones(_MIXED), _SIMULATED)
        simulated = np.einsum("sm,smtc->stc", parts, self.shares[proxies])
        predicted = self.objectives(self.law.predict(simulated.reshape(_SIMULATED, -1)))
        return simulated[np.argpartition(predicted, _AVERAGED)[:_AVERAGED]].mean(axis=0)

    def objective(self, losses: Losses) -> float:
        """Return the objective of a mixture from its losses; lower is better."""
        return float(losses @ self.weights)

    def objectives(self, losses: Float64[np.ndarray, "points measured"]) -> Float64[np.ndarray, " points"]:
        """Return the objective of each mixture from its losses."""
        return losses @ self.weights

    def warnings(self) -> list[str]:
        """Return reasons against the found mixture, one sentence each."""
        found = []
        needed = _RUNS_A_PARAMETER * (self.design.features + 1)
        if len(self.numbers) < needed:
            found.append(
                f"{len(self.numbers)} proxies are few for {self.design.features} shares; "
                f"{needed} or more are recommended: --proxies={needed}"
            )
        if self.rank_correlation < _MIN_CORRELATION:
            found.append(
                f"the law does not predict the order of proxies left out: rank correlation "
                f"{self.rank_correlation:.2f}, below {_MIN_CORRELATION}; do not rely on the found mixture"
            )
        own = self.own.predicted if self.own.losses is None else self.own.losses
        gain = self.objective(own) - self.objective(self.found.predicted)
        if gain < self.error:
            found.append(
                f"the predicted gain over the configuration's own shares, {gain:.4f}, is within the mean "
                f"error of a prediction, {self.error:.4f}"
            )
        return found

    def to_json(self) -> dict[str, Any]:
        """Return all findings as a JSON object."""
        by_class = np.abs(self.left_out - self.losses).mean(axis=0)
        return {
            "classes": list(self.design.classes),
            "stages": self.design.stages,
            "seed": self.design.seed,
            "objective": self._by_class(self.weights),
            "proxies": [
                {
                    "number": int(number),
                    "shares": shares.tolist(),
                    "losses": self._by_class(losses),
                    "objective": self.objective(losses),
                    "left_out_objective": self.objective(left_out),
                }
                for number, shares, losses, left_out in zip(
                    self.numbers, self.shares, self.losses, self.left_out, strict=True
                )
            ],
            "unfinished": sorted(set(range(self.planned)) - set(self.numbers.tolist())),
            "law": {
                name: {
                    "floor": float(self.law.floors[row]),
                    "intercept": float(self.law.intercepts[row]),
                    "slopes": self.law.slopes[row].reshape(self.shares.shape[1:]).tolist(),
                    "penalty": float(self.law.penalties[row]),
                }
                for row, name in enumerate(self.measured)
            },
            "cross_validation": {
                "rank_correlation": self.rank_correlation,
                "mean_absolute_error": self.error,
                "mean_absolute_error_by_class": self._by_class(by_class),
            },
            "warnings": self.warnings(),
            "mixtures": [
                {
                    "name": one.name,
                    "shares": one.shares.tolist(),
                    "predicted_objective": self.objective(one.predicted),
                    "objective": None if one.losses is None else self.objective(one.losses),
                    "predicted_losses": self._by_class(one.predicted),
                    "losses": None if one.losses is None else self._by_class(one.losses),
                }
                for one in self.mixtures
            ],
        }

    def _by_class(self, values: Losses) -> Mapping[str, float]:
        return dict(zip(self.measured, values.tolist(), strict=True))
