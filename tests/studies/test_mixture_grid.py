"""Tests the grid of fixed mixtures: its shares, its choice of the best, and its page."""

import numpy as np
import pytest

from birdie_jax.config import parse_config
from birdie_jax.config_flag import load_config
from birdie_jax.objectives import make_mixture
from birdie_jax.resolve import configured_mixture
from studies.class_objective import BEST_FIXED, GROUPS, stage_of
from studies.mixture_grid import (
    FRESH_SEEDS,
    GRID,
    MixtureGrid,
    Run,
    best_fixed,
    best_mixtures,
    objective,
    quarter_objective,
)
from studies.results import write_result
from studies.steering import GRID_RESULTS

MIXTURE = make_mixture("small_models", 256)


def result(value):
    """Return a result with the objective `value` at the end and `value + 1` at a quarter."""
    arms = len(MIXTURE.names)
    return {
        "arms": sorted(MIXTURE.names),
        "steps": [500, 1000, 1500, 2000],
        "validation_loss": [[value + 1] * arms, *[[value] * arms] * 3],
    }


def test_the_grid_has_every_composition_of_six_parts():
    assert len(set(GRID)) == len(GRID) == 28 and {sum(mixture) for mixture in GRID} == {6}
    assert {name for classes in GROUPS.values() for name in classes} == set(MIXTURE.groups)


@pytest.mark.parametrize("mixture", [(6, 0, 0), (0, 6, 0), (0, 0, 6), (2, 1, 3)])
def test_a_configuration_has_the_shares_of_its_mixture(mixture, tmp_path):
    study = MixtureGrid(MixtureGrid.scales["small"], tmp_path, tmp_path, "stdlib")
    config = load_config("configs/tiny.py")
    config.update_from_flattened_dict(study.settings(Run("small", *mixture, 3)))
    parsed = parse_config(config)
    assert parsed.seed == 3 and parsed.objectives.shares_of == "target_tokens"
    assert configured_mixture(parsed).arms
    stage = parsed.bandit.stages.removeprefix("0: ")
    shares = dict(part.split("=") for part in stage.split(", "))
    for sixths, classes in zip(mixture, GROUPS.values(), strict=True):
        assert sum(float(shares.get(name, 0)) for name in classes) == pytest.approx(sixths, abs=1e-5)
    assert stage_of(mixture) == parsed.bandit.stages


def test_the_objective_weights_classes_equally():
    groups = dict(zip(MIXTURE.names, MIXTURE.groups, strict=True))
    losses = {name: 2.0 if group == "short_copying" else 1.0 for name, group in groups.items()}
    arms = sorted(losses)
    found = objective({"arms": arms, "validation_loss": [[losses[arm] for arm in arms]]})
    assert found == pytest.approx(1 + 1 / 9)


def test_the_quarter_objective_uses_a_quarter_of_the_steps():
    steps = [0, 100, 200, 300, 400, 500, 2000]
    arms = list(MIXTURE.names)
    losses = [[float(step)] * len(arms) for step in steps]
    assert quarter_objective({"arms": arms, "steps": steps, "validation_loss": losses}) == 500


def test_the_best_four_run_again_after_the_grid(tmp_path):
    study = MixtureGrid(MixtureGrid.scales["small"], tmp_path / "results", tmp_path, "stdlib")
    runs = list(study.runs())
    assert len(runs) == 28
    for number, run in enumerate(runs):
        assert best_mixtures(study.read_results()) == [] and len(list(study.runs())) == 28
        write_result(
            study.result_file(run),
            {"study": study.name, "run": run._asdict(), "circumstances": {}},
            result(2 + number / 10),
        )
    again = list(study.runs())[28:]
    assert [run.mixture for run in again[:4]] == [run.mixture for run in runs[:4]]
    assert sorted({run.seed for run in again}) == list(FRESH_SEEDS) and len(again) == 16
    for run, value in zip(again[:8], np.linspace(1, 2, 8), strict=True):
        write_result(
            study.result_file(run),
            {"study": study.name, "run": run._asdict(), "circumstances": {}},
            result(value),
        )
    page = tmp_path / "page.md"
    study.write_page(page)
    text = page.read_text()
    assert "| 0/6 | 0/6 | 6/6 | 2.000 | 3.000 |" in text
    assert "The best four, fresh seeds" in text and "1.000, 1.571" in text
    assert (tmp_path / "page_small_grid.png").exists()


def test_the_recorded_runs_determine_the_best_fixed_mixture(tmp_path):
    grid = MixtureGrid(MixtureGrid.scales["small"], GRID_RESULTS, tmp_path, "stdlib")
    assert best_fixed(grid.read_results()) == BEST_FIXED
