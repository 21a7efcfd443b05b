"""The findings recover the best mixture of a known law, and warn about unreliable results."""

import json
from dataclasses import replace

import numpy as np
import pytest

from birdie_jax.mixture_search.design import Design
from birdie_jax.mixture_search.findings import Findings
from birdie_jax.mixture_search.page import loss_rows, render_page, share_rows, text_table, with_shares
from birdie_jax.mixture_search.regression import Law, fit_law, predict_left_out, rank_correlation

CLASSES = ("causal_lm", "copying", "prefix_lm", "selective_copying")
OWN = (0.85, 0.05, 0.05, 0.05)


def synthetic(proxies=40, stages=1, noise=0.005, seed=0):
    """Return the findings of proxies with losses from a known law, and the law."""
    random = np.random.default_rng(seed)
    design = Design(CLASSES, OWN, stages, 0)
    slopes = random.normal(0, 0.4, (len(CLASSES), design.features))
    for stage in range(stages):
        slopes[np.arange(4), 4 * stage + np.arange(4)] -= 4.0 / stages
    law = Law(random.uniform(0.2, 2, 4), random.uniform(0, 1, 4), slopes, np.zeros(4))
    losses = law.predict(design.points(proxies).reshape(proxies, -1))
    losses += noise * random.normal(size=losses.shape)
    weights = np.full(4, 0.25)
    return Findings(design, CLASSES, weights, proxies, np.arange(proxies), losses), law


@pytest.fixture(scope="module", params=[1, 2], ids="{} stages".format)
def found(request):
    return synthetic(stages=request.param, proxies=40 if request.param == 1 else 60)


def test_the_found_mixture_is_near_the_optimum_of_a_known_law(found):
    findings, law = found

    def objective(shares):
        return law.predict(shares.reshape(-1, findings.design.features)).mean(axis=1)

    # The best of many mixtures that no proxy uses.
    best = objective(findings.design.points(3000)[100:]).min()
    reached = objective(findings.found.shares)[0]
    own = objective(findings.own.shares)[0]
    # As a share of the possible gain over the configuration's own shares. Sixty proxies leave gaps.
    assert (reached - best) / (own - best) < (0.03 if findings.design.stages == 1 else 0.12)
    assert reached < objective(findings.shares).min()
    assert findings.objective(findings.found.predicted) == pytest.approx(reached, abs=0.02)


def test_leave_one_out_predictions_are_accurate(found):
    findings, _ = found
    assert findings.rank_correlation > 0.95
    assert findings.error < 0.01
    assert findings.warnings() == []


def test_a_point_does_not_affect_its_own_prediction():
    findings, _ = synthetic(proxies=12)
    shares = findings.shares.reshape(12, -1)
    changed = findings.losses.copy()
    changed[5] += 1.0
    before, after = (predict_left_out(shares, losses) for losses in (findings.losses, changed))
    np.testing.assert_array_equal(before[5], after[5])
    assert np.abs(before - after).max() > 0.01


def test_fit_law_recovers_a_law_without_noise():
    findings, law = synthetic(noise=0.0)
    simulated = findings.design.points(500)[100:, 0]
    expected = law.predict(simulated)
    fitted = fit_law(findings.shares[:, 0], findings.losses).predict(simulated)
    assert np.abs(fitted - expected).mean() < 0.01 * (expected.max() - expected.min())


def test_a_proxy_far_above_the_law_does_not_decide_the_fit():
    findings, law = synthetic(noise=0.0)
    simulated = findings.design.points(500)[100:, 0]
    expected = law.predict(simulated)
    losses = findings.losses.copy()
    losses[5] += 4 * (expected.max() - expected.min())
    fitted = fit_law(findings.shares[:, 0], losses).predict(simulated)
    assert np.abs(fitted - expected).mean() < 0.2 * (expected.max() - expected.min())


def test_noise_causes_a_warning():
    findings, _ = synthetic()
    noise = np.random.default_rng(0).normal(2.0, 0.1, findings.losses.shape)
    warnings = replace(findings, losses=noise).warnings()
    assert warnings[0].startswith("the law does not predict the order of proxies left out: ")
    assert warnings[0].endswith(", below 0.5; do not rely on the found mixture")


def test_a_gain_within_the_error_causes_a_warning():
    findings, _ = synthetic()
    losses = findings.losses.copy()
    losses[0] = findings.found.predicted - 0.2
    *_, warning = replace(findings, losses=losses).warnings()
    assert warning.startswith("the predicted gain over the configuration's own shares")
    assert "is within the mean error of a prediction" in warning


def test_few_proxies_cause_a_warning():
    findings, _ = synthetic(proxies=14)
    assert findings.warnings()[0] == (
        "14 proxies are few for 4 shares; 15 or more are recommended: --proxies=15"
    )


def test_the_found_shares_are_within_the_range_of_the_proxies():
    """The best mixture of this steep law is far from every proxy."""
    findings, _ = synthetic(proxies=12)
    steep = replace(findings, losses=2.0 + np.exp(-findings.shares[:, 0, :1]) * np.ones(4))
    shares = steep.found.shares[0]
    assert shares[0] > findings.shares[:, 0, 0].max() - 0.05
    assert (shares <= findings.shares[:, 0].max(axis=0)).all()
    assert (shares >= findings.shares[:, 0].min(axis=0)).all()


def test_weights_of_the_objective_change_the_mixture():
    findings, _ = synthetic()
    copying = replace(findings, weights=np.array([0.0, 1.0, 0.0, 0.0]))
    assert copying.found.shares[0, 1] > max(
        findings.found.shares[0, 1], 0.95 * findings.shares[:, 0, 1].max()
    )
    assert findings.found.shares.sum() == pytest.approx(1.0)


def test_results_name_unfinished_proxies():
    findings, _ = synthetic(proxies=20)
    kept = np.array([number for number in range(20) if number not in (0, 7)])
    part = replace(findings, numbers=kept, losses=findings.losses[kept])
    found = json.loads(json.dumps(part.to_json()))
    assert found["unfinished"] == [0, 7]
    assert [one["number"] for one in found["proxies"]] == kept.tolist()
    own, _, best, mixture = found["mixtures"]
    assert own["losses"] is None and mixture["losses"] is None
    assert best["objective"] == min(one["objective"] for one in found["proxies"])
    assert share_rows(part)[-2].cells[0] == ""


def test_the_page_shows_tables_and_plots(found):
    findings, _ = found
    page = render_page(findings, "a <search>", "configs/tiny.py", "python -m birdie_jax.train")
    assert page.count("<svg ") == 1 + findings.design.stages + len(CLASSES)
    assert "a &lt;search&gt;" in page and "proxy 0: " in page
    assert ("stage 2" in page) == (findings.design.stages == 2)
    assert len(share_rows(findings)) == findings.design.features + 2
    assert [row.name for row in loss_rows(findings)] == list(CLASSES)
    lines = text_table(findings).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert lines[0].split()[-1] == "found"


def test_two_classes_have_curves_and_no_surface():
    classes = CLASSES[:2]
    design = Design(classes, (0.9, 0.1), 1, 0)
    losses = 2.0 + np.exp(-design.points(12)[:, 0])
    page = render_page(
        Findings(design, classes, np.full(2, 0.5), 12, np.arange(12), losses), "two", "base", "command"
    )
    assert page.count("<svg ") == 1 + len(classes)
    assert "two largest classes" not in page


def test_other_shares_keep_the_proportions_of_the_rest():
    mixture = np.array([[0.5, 0.3, 0.2], [0.2, 0.2, 0.6]])
    varied = with_shares(mixture, 0, [0], np.array([[0.0], [0.5], [0.9]]))
    np.testing.assert_allclose(varied[:, 0], [[0, 0.6, 0.4], [0.5, 0.3, 0.2], [0.9, 0.06, 0.04]])
    np.testing.assert_array_equal(varied[:, 1], mixture[[1, 1, 1]])


@pytest.mark.parametrize(
    ("other", "expected"), [([1, 2, 3, 4], 1.0), ([4, 3, 2, 1], -1.0), ([1, 3, 2, 4], 0.8)]
)
def test_rank_correlation_returns_known_values(other, expected):
    found = rank_correlation(np.array([0.1, 5.0, 5.1, 90.0]), np.array(other, float))
    assert found == pytest.approx(expected)
