"""The law of a class's loss as a function of the shares of a mixture, and its leave-one-out error.

The law is from "Data Mixing Laws" (Ye et al. 2024, arXiv 2403.16952) and Olmix (arXiv 2602.12237):

    loss_c(w) = e_c + exp(a_c + t_c . w)

with w the shares of all stages. For a given e_c it is linear in log(loss - e_c), so ridge regression gives
the fit and its leave-one-out errors in closed form. Squared errors have the weight (loss - e_c)^2. To first
order they are then errors in nats, and a loss near e_c, with an uncertain logarithm, counts little. A
weight is at most four times the median weight, because a proxy that hardly trains on a class can have a
loss far above all others, and would decide the fit alone. Each class uses the floor e_c and the penalty
below with the smallest leave-one-out error.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float64

# Candidates for the floor, as shares of the smallest measured loss.
_FLOORS = np.array([0.0, 0.3, 0.6, 0.8, 0.9, 0.95])
# Candidates for the penalty on squared slopes, for points with a mean weight of 1. With the largest one,
# the fit is nearly the mean.
_PENALTIES = 10.0 ** np.arange(-6.0, 1.5)
_LEAST_LOSS = 1e-6
_LARGEST_WEIGHT = 4.0  # times the median weight

Shares = Float64[np.ndarray, "points features"]
Losses = Float64[np.ndarray, "points classes"]


class Law(NamedTuple):
    """The law of every class.

    Attributes:
        floors: e_c, the lower bound of the loss.
        intercepts: a_c.
        slopes: t_c, by class and share.
        penalties: the penalty on the slopes, chosen by the leave-one-out error.
    """

    floors: Float64[np.ndarray, " classes"]
    intercepts: Float64[np.ndarray, " classes"]
    slopes: Float64[np.ndarray, "classes features"]
    penalties: Float64[np.ndarray, " classes"]

    def predict(self, shares: Shares) -> Losses:
        """Return the loss of each class for each mixture."""
        return self.floors + np.exp(self.intercepts + shares @ self.slopes.T)


def fit_law(shares: Shares, losses: Losses) -> Law:
    """Return the law fitted to proxies.

    Args:
        shares: the shares of each proxy, with its stages concatenated.
        losses: the final loss of each class in each proxy.
    """
    losses = np.maximum(losses, _LEAST_LOSS)
    count, features = shares.shape
    means = shares.mean(axis=0)
    inputs = np.concatenate([shares - means, np.ones((count, 1))], axis=1)
    floors = _FLOORS[:, None] * losses.min(axis=0)
    above = losses.T[:, None] - floors.T[:, :, None]
    logarithms, weights = np.log(above), above**2
    weights = np.minimum(weights, _LARGEST_WEIGHT * np.median(weights, axis=-1, keepdims=True))
    weights /= weights.mean(axis=-1, keepdims=True)
    # Axes: class, floor, penalty.
    products = np.einsum("cfp,pi,pj->cfij", weights, inputs, inputs, optimize=True) / count
    penalised = np.diag(np.append(np.ones(features), 0.0))
    matrices = products[:, :, None] + _PENALTIES[:, None, None] * penalised
    inverses = np.linalg.inv(matrices) / count
    targets = np.einsum("cfp,pi->cfi", weights * logarithms, inputs, optimize=True)
    solutions = np.einsum("cfkij,cfj->cfki", inverses, targets)
    leverages = np.einsum("pi,cfkij,pj->cfkp", inputs, inverses, inputs, optimize=True)
    leverages *= weights[:, :, None]
    residuals = logarithms[:, :, None] - solutions @ inputs.T
    # Each point's prediction by the fit without it. With a leverage of 1, the fit depends on that point
    # alone.
    left_out = logarithms[:, :, None] - residuals / np.maximum(1.0 - leverages, 1e-9)
    predicted = floors.T[:, :, None, None] + np.exp(np.minimum(left_out, 50.0))
    errors = np.abs(predicted - losses.T[:, None, None]).mean(axis=-1)
    best = errors.reshape(len(errors), -1).argmin(axis=1)
    floor, penalty = np.unravel_index(best, errors.shape[1:])
    classes = np.arange(losses.shape[1])
    chosen = solutions[classes, floor, penalty]
    intercepts = chosen[:, -1] - chosen[:, :-1] @ means
    return Law(floors[floor, classes], intercepts, chosen[:, :-1], _PENALTIES[penalty])


def predict_left_out(shares: Shares, losses: Losses) -> Losses:
    """Return the prediction for each proxy from the law of all others, with their floors and penalties."""
    points = np.arange(len(shares))
    found = [
        fit_law(shares[points != point], losses[points != point]).predict(shares[[point]])
        for point in points
    ]
    return np.concatenate(found)


def rank_correlation(one: Float[np.ndarray, " points"], other: Float[np.ndarray, " points"]) -> float:
    """Return Spearman's rank correlation. Equal values are ranked in their given order."""
    ranks = [np.argsort(np.argsort(values, kind="stable")) for values in (one, other)]
    count = len(one)
    return 1.0 - 6.0 * float(((ranks[0] - ranks[1]) ** 2).sum()) / (count * (count**2 - 1))
