"""The mixtures of a search: the shares that each proxy trains on.

Point 0 has the configuration's own shares, and point 1 has equal shares. All other points are drawn from
Dirichlet distributions of several strengths, as in RegMix (Liu et al. 2024, arXiv 2407.01492). Their mean
is the mean of points 0 and 1, so the search also tries large shares of a class with a small own share.
Stages are drawn independently, which separates early from late effects of a class.

A point depends only on the seed and its own number. A search with more proxies keeps the earlier points.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

# Strength 1 around equal shares is uniform over all mixtures. A larger strength stays nearer to the mean.
_MIN_STRENGTH, _MAX_STRENGTH = 0.5, 8.0
# The minimum share of a class in a drawn mixture. With no share at all, the loss of a class contains no
# information on small shares.
_MIN_SHARE = 0.001
# The numbers of the points that are not drawn.
_OWN, _UNIFORM = 0, 1

Mixtures = Float64[np.ndarray, "points stages classes"]


@dataclass(frozen=True)
class Design:
    """The mixtures of a search.

    Attributes:
        classes: the names of the classes in the mixtures.
        own: the configuration's own shares of these classes; they sum to 1.
        stages: the number of mixtures of a point, each for an equal part of the run.
        seed: the seed of the points.
    """

    classes: tuple[str, ...]
    own: tuple[float, ...]
    stages: int
    seed: int

    @property
    def features(self) -> int:
        """The number of shares in a point."""
        return self.stages * len(self.classes)

    def points(self, count: int) -> Mixtures:
        """Return the first `count` points."""
        own, uniform = np.array(self.own), np.full(len(self.classes), 1 / len(self.classes))
        fixed = {_OWN: np.tile(own, (self.stages, 1)), _UNIFORM: np.tile(uniform, (self.stages, 1))}
        return np.stack(
            [fixed[number] if number in fixed else self._draw(number) for number in range(count)]
        )

    def _draw(self, number: int) -> Float64[np.ndarray, "stages classes"]:
        random = np.random.default_rng((self.seed, number))
        size = len(self.classes)
        strength = np.exp(random.uniform(np.log(_MIN_STRENGTH), np.log(_MAX_STRENGTH)))
        mean = (np.array(self.own) + 1 / size) / 2
        drawn = random.standard_gamma(strength * size * mean, (self.stages, size))
        drawn /= drawn.sum(axis=-1, keepdims=True)
        return _MIN_SHARE + (1 - size * _MIN_SHARE) * drawn


def stages_text(classes: tuple[str, ...], mixture: Float64[np.ndarray, "stages classes"]) -> str:
    """Return a mixture in the format of `bandit.stages`."""
    stages = []
    for number, shares in enumerate(mixture):
        # Not rounded, because a start that is rounded up takes effect one decision late.
        start = number / len(mixture) if number else 0
        listed = ", ".join(f"{name}={share:.5g}" for name, share in zip(classes, shares, strict=True))
        stages.append(f"{start}: {listed}")
    return "; ".join(stages)
