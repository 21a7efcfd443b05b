"""Tests the search of the verdict: its proxies, its law, and its page."""

import numpy as np
import pytest

from birdie_jax.bandit.policies.staged import parse_stages
from birdie_jax.config import parse_config
from birdie_jax.config_flag import load_config
from birdie_jax.resolve import configured_mixture
from studies.class_objective import SEARCHED, class_of_arm, stage_of
from studies.mixture_grid import FIRST_SEED, MixtureGrid, objective
from studies.mixture_search import PROXIES, MixtureSearch
from studies.pages import MEASUREMENTS
from studies.results import write_result


@pytest.fixture
def study(tmp_path):
    return MixtureSearch(MixtureSearch.scales["small"], tmp_path / "results", tmp_path, "stdlib")


def shares_of(study, run):
    ((start, shares),) = parse_stages(study.settings(run)["bandit.stages"])
    assert start == 0
    return shares


def test_a_proxy_trains_on_its_point_of_the_design(study):
    design, _ = study.design()
    points = design.points(PROXIES)[:, 0]
    assert design.classes == tuple(sorted(set(class_of_arm().values())))
    for run, point in zip(study.runs(), points, strict=True):
        assert list(shares_of(study, run).values()) == pytest.approx(point, rel=1e-4)
    config = load_config("configs/tiny.py")
    config.update_from_flattened_dict(study.settings(run))
    parsed = parse_config(config)
    assert (parsed.bandit.policy, parsed.objectives.shares_of) == ("staged", "target_tokens")
    assert configured_mixture(parsed).arms


def test_the_found_mixture_avoids_the_class_that_costs_all_others(study):
    harmful = "deshuffling"
    arms = sorted(class_of_arm())
    for number, run in enumerate(study.runs()):
        loss = 1 + np.exp(shares_of(study, run)[harmful])
        write_result(
            study.result_file(run),
            {
                "study": study.name,
                "run": run._asdict(),
                "circumstances": {"seconds": {"training": 360}},
            },
            {"arms": arms, "validation_loss": [[9.0] * len(arms), [loss] * len(arms)]},
        )
        if number == 1:
            assert study.tables(study.read_results()) == [] == list(study.figures(study.read_results()))
    findings = study.findings(study.read_results())
    own, found = (one.shares[0] for one in (findings.own, findings.found))
    place = findings.design.classes.index(harmful)
    assert found[place] < own[place] / 4
    page = study.results.parent / "page.md"
    study.write_page(page)
    text = page.read_text()
    assert "32 proxies, 3.20 hours of a core" in text and "Not run" not in text
    assert "| objective, measured | 2.1175 | 2.1175 |" in text
    assert (page.parent / "page_small_search.png").exists()


@pytest.fixture
def recorded(tmp_path):
    """Return the findings of the recorded proxies."""
    search = MixtureSearch(
        MixtureSearch.scales["small"], MEASUREMENTS / "mixture_search", tmp_path, "stdlib"
    )
    return search.findings(search.read_results())


def test_the_recorded_proxies_determine_the_searched_mixture(recorded):
    ((start, shares),) = parse_stages(SEARCHED)
    assert start == 0 and tuple(shares) == recorded.design.classes
    assert list(shares.values()) == pytest.approx(recorded.found.shares[0], abs=1e-3)


def test_the_law_of_the_recorded_proxies_predicts_the_grid(recorded, tmp_path):
    """Both have one seed and one setting; the law has seen none of the grid's mixtures."""
    grid = MixtureGrid(MixtureGrid.scales["small"], MEASUREMENTS / "mixture_grid", tmp_path, "stdlib")
    measured = {
        run.mixture: objective(result)
        for run, result in grid.read_results().items()
        if run.seed == FIRST_SEED and all(run.mixture)
    }
    shares = [parse_stages(stage_of(mixture))[0][1] for mixture in measured]
    features = np.array([[of_class[name] for name in recorded.design.classes] for of_class in shares])
    features /= features.sum(axis=1, keepdims=True)
    errors = recorded.objectives(recorded.law.predict(features)) - list(measured.values())
    assert len(errors) == 10
    assert np.abs(errors).mean() == pytest.approx(0.024, abs=1e-3)
