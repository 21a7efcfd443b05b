"""The law of a class's loss in the shares of a mixture, fitted to proxies, and how well it predicts.

The law is that of "Data Mixing Laws" (Ye et al. 2024, arXiv 2403.16952) and Olmix (arXiv 2602.12237):

    loss_c(w) = e_c + exp(a_c + t_c . w)

with w the shares of all stages. For a given e_c it is linear in log(loss - e_c), so ridge regression has
its one best fit in closed form, and the error of each point that is left out of it too. Squared errors are
weighted by (loss - e_c)^2: to first order they are then errors in nats, and a loss near e_c, whose
logarithm is uncertain, counts little. Of the floors e_c and penalties below, each class takes those with
the least error of points left out.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float64

# As shares of the least loss that was measured.
_FLOORS = np.array([0.0, 0.3, 0.6, 0.8, 0.9, 0.95])
# On the mean square of a share's effect, with a mean weight of 1. The largest leaves only the mean.
_PENALTIES = 10.0 ** np.arange(-6.0, 1.5)
_LEAST_LOSS = 1e-6

Shares = Float64[np.ndarray, "points features"]
Losses = Float64[np.ndarray, "points classes"]


class Law(NamedTuple):
    """The law of every class.

    Attributes:
        floors: e_c, the loss that no mixture is below.
        intercepts: a_c.
        slopes: t_c, by class and share.
        penalties: the penalty on the slopes, chosen by points left out.
    """

    floors: Float64[np.ndarray, " classes"]
    intercepts: Float64[np.ndarray, " classes"]
    slopes: Float64[np.ndarray, "classes features"]
    penalties: Float64[np.ndarray, " classes"]

    def predict(self, shares: Shares) -> Losses:
        """Return the loss of every class under each mixture."""
        return self.floors + np.exp(self.intercepts + shares @ self.slopes.T)


def fit_law(shares: Shares, losses: Losses) -> Law:
    """Return the law that fits proxies.

    Args:
        shares: the shares of each proxy, its stages one after the other.
        losses: its final loss of each class.
    """
    losses = np.maximum(losses, _LEAST_LOSS)
    count, features = shares.shape
    means = shares.mean(axis=0)
    inputs = np.concatenate([shares - means, np.ones((count, 1))], axis=1)
    floors = _FLOORS[:, None] * losses.min(axis=0)
    above = losses.T[:, None] - floors.T[:, :, None]
    logarithms, weights = np.log(above), above**2
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
    # The prediction of the fit without a point. A leverage of 1: only the point itself decides.
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
    """Return what is predicted of each proxy by the law that all others give, its choices included."""
    points = np.arange(len(shares))
    found = [
        fit_law(shares[points != point], losses[points != point]).predict(shares[[point]])
        for point in points
    ]
    return np.concatenate(found)


def rank_correlation(one: Float[np.ndarray, " points"], other: Float[np.ndarray, " points"]) -> float:
    """Return Spearman's correlation; equal values have ranks in their order."""
    ranks = [np.argsort(np.argsort(values, kind="stable")) for values in (one, other)]
    count = len(one)
    return 1.0 - 6.0 * float(((ranks[0] - ranks[1]) ** 2).sum()) / (count * (count**2 - 1))
