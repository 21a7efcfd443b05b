"""All FLOP figures in the Simba paper, to the printed digit."""

import pytest

from birdie_jax.planning.simba_flops import MAMBA_SIZES, PYTHIA_SIZES, mamba_flops, pythia_flops
from birdie_jax.pruning.settings import linear_shares

TERA, TEBI = 1e12, 2.0**40
SIMBA = {
    (0.1, TERA): {"130m": 0.23, "370m": 0.75, "790m": 1.67, "1.4b": 2.95, "2.8b": 6.07},
    (0.1, TEBI): {"130m": 0.21, "370m": 0.68, "790m": 1.52, "1.4b": 2.68, "2.8b": 5.52},
    (0.7, TEBI): {"130m": 0.39, "370m": 1.15, "790m": 2.47},
}
MAMBA = {
    TERA: {"130m": 0.53, "370m": 1.51, "790m": 3.24, "1.4b": 5.60, "2.8b": 11.31},
    TEBI: {"130m": 0.48, "370m": 1.38, "790m": 2.94, "1.4b": 5.09, "2.8b": 10.28},
}
PYTHIA = {
    TERA: {"160m": 0.66, "410m": 1.86, "1b": 4.27, "1.4b": 6.19, "2.8b": 12.21},
    TEBI: {"160m": 0.60, "410m": 1.69, "1b": 3.88, "1.4b": 5.63, "2.8b": 11.11},
}
PRINTED = [
    *((keep, unit, printed) for (keep, unit), printed in SIMBA.items()),
    *((1.0, unit, printed) for unit, printed in MAMBA.items()),
    *((None, unit, printed) for unit, printed in PYTHIA.items()),
]


@pytest.mark.parametrize(("keep", "unit", "printed"), PRINTED)
def test_every_figure_of_the_paper(keep, unit, printed):
    """A pruned Mamba, a dense Mamba, and Pythia."""
    for name, figure in printed.items():
        if keep is None:
            flops = pythia_flops(*PYTHIA_SIZES[name])
        else:
            size = MAMBA_SIZES[name]
            flops = mamba_flops(size, linear_shares(keep, size.layers))
        assert round(flops / unit, 2) == figure, name


def test_shares_of_dense_flops():
    """The shares on the axis of the paper's figure 6, for the largest size."""
    size = MAMBA_SIZES["2.8b"]
    dense = mamba_flops(size, [1.0] * size.layers)
    found = [
        round(mamba_flops(size, linear_shares(keep, size.layers)) / dense, 2) for keep in (0.9, 0.5, 0.1)
    ]
    assert found == [0.95, 0.74, 0.54]
