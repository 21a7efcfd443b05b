"""Documents that the tests of objectives share."""

import numpy as np
import pytest


@pytest.fixture
def distinct_text():
    return np.arange(1000, 1400, dtype=np.int32)


@pytest.fixture
def natural_text():
    ranks = np.arange(1, 2001)
    probabilities = 1.0 / ranks
    rng = np.random.default_rng(20241112)
    return (256 + rng.choice(2000, size=1500, p=probabilities / probabilities.sum())).astype(np.int32)
