"""The findings of a search: the law fitted to its proxies, its test on points left out, and a mixture."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from birdie_jax.mixture_search.design import Design
from birdie_jax.mixture_search.regression import Law, fit_law, predict_left_out, rank_correlation

# Without the point itself, and with two others: fewer have no leave-one-out.
MIN_PROXIES = 3
# As RegMix does: of many mixtures that cost nothing the mean of the best. Each lies between two proxies, as
# the law says little about shares far from all that were tried.
_SIMULATED, _AVERAGED, _MIXED = 100_000, 100, 2
_MIN_CORRELATION = 0.5
# Olmix finds this many runs to be enough for its law.
_RUNS_A_PARAMETER = 3

Losses = Float64[np.ndarray, " measured"]


@dataclass(frozen=True)
class NamedMixture:
    """A mixture that the page and the command show.

    Attributes:
        name: what it is.
        shares: its shares, by stage and class.
        predicted: the law's loss of each class that is measured.
        losses: the loss of each of them at the end of its proxy; None where no proxy has trained on it.
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
        measured: the names of the classes whose losses are measured.
        weights: the weight of each in the objective; they sum to 1.
        planned: the number of proxies of the search.
        numbers: the numbers of the finished proxies.
        losses: the final loss of each of them and each measured class.
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
        """The law that fits them all."""
        return fit_law(self._features, self.losses)

    @cached_property
    def left_out(self) -> Float64[np.ndarray, "proxies measured"]:
        """The prediction for each proxy by the law that is fitted to the others."""
        return predict_left_out(self._features, self.losses)

    @cached_property
    def rank_correlation(self) -> float:
        """The rank correlation of the objective with its prediction by the other proxies."""
        return rank_correlation(self.objectives(self.left_out), self.objectives(self.losses))

    @cached_property
    def error(self) -> float:
        """The mean absolute error of these predictions."""
        return float(np.abs(self.objectives(self.left_out - self.losses)).mean())

    @cached_property
    def mixtures(self) -> Sequence[NamedMixture]:
        """The configuration's own shares, equal ones, those of the best proxy, and those that are found."""
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
        """The mixture that the law takes for the best."""
        return self.mixtures[-1]

    def _named(self, name: str, shares: Float64[np.ndarray, "stages classes"], number: int) -> NamedMixture:
        rows = self.losses[self.numbers == number]
        losses = rows[0] if len(rows) else None
        return NamedMixture(name, shares, self.law.predict(shares.reshape(1, -1))[0], losses)

    def _find(self) -> Float64[np.ndarray, "stages classes"]:
        """Return the mean of the best of many mixtures of proxies: of nothing beyond what was tried."""
        random = np.random.default_rng(self.design.seed)
        proxies = random.integers(len(self.numbers), size=(_SIMULATED, _MIXED))
        parts = random.dirichlet(np.ones(_MIXED), _SIMULATED)
        simulated = np.einsum("sm,smtc->stc", parts, self.shares[proxies])
        predicted = self.objectives(self.law.predict(simulated.reshape(_SIMULATED, -1)))
        return simulated[np.argpartition(predicted, _AVERAGED)[:_AVERAGED]].mean(axis=0)

    def objective(self, losses: Losses) -> float:
        """Return the objective of the losses of a mixture; lower is better."""
        return float(losses @ self.weights)

    def objectives(self, losses: Float64[np.ndarray, "points measured"]) -> Float64[np.ndarray, " points"]:
        """Return the objective of the losses of each of several mixtures."""
        return losses @ self.weights

    def warnings(self) -> list[str]:
        """Return what speaks against the found mixture, a sentence each."""
        found = []
        asked = _RUNS_A_PARAMETER * (self.design.features + 1)
        if len(self.numbers) < asked:
            found.append(
                f"{len(self.numbers)} proxies are few for {self.design.features} shares; "
                f"{asked} or more are recommended: --proxies={asked}"
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
        """Return everything as JSON has it."""
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
