"""The arithmetic between log lines and plots."""

import re

import numpy as np
import pytest

from birdie_jax.reporting import curves, page_text
from birdie_jax.reporting.metrics_table import MetricsTable
from birdie_jax.reporting.sections.bandit_decisions import draw_heatmaps, probability_heatmap
from birdie_jax.reporting.sections.scalars import wall_seconds
from birdie_jax.reporting.svg import default_style

NAN = float("nan")


def test_bins_are_weighted_by_tokens_and_skip_missing_values():
    values = np.array([[1.0, NAN], [3.0, 5.0], [2.0, NAN], [NAN, NAN], [4.0, NAN]])
    tokens = np.array([[1.0, 0.0], [3.0, 2.0], [1.0, 0.0], [NAN, NAN], [1.0, 0.0]])
    binned = curves.bin_lines(np.array([10, 20, 30, 40, 50]), values, tokens, max_points=2)
    assert binned.lines_per_bin == 2
    np.testing.assert_allclose(binned.steps, [20, 50])
    np.testing.assert_allclose(binned.values, [[2.5, 5.0], [3.0, NAN]])


def test_group_mean_is_over_all_tokens_of_the_group():
    binned = curves.bin_group(np.array([10]), np.array([[1.0, 4.0, NAN]]), np.array([[3.0, 1.0, 9.0]]))
    np.testing.assert_allclose(binned.values, [[1.75]])


def test_binning_no_lines():
    binned = curves.bin_lines(np.array([10]), np.array([[NAN]]), np.array([[1.0]]))
    assert binned.steps.shape == (0,)
    assert binned.values.shape == (0, 1)


def test_smoothing_keeps_the_middle_of_a_line_and_constants():
    line = np.arange(20.0)
    np.testing.assert_allclose(curves.smooth(line, 5)[2:-2], line[2:-2])
    with_gap = np.where(line == 7, NAN, 3.0)
    np.testing.assert_allclose(curves.smooth(with_gap, 4), 3.0)
    np.testing.assert_allclose(curves.smooth(line, 1), line)


def test_mixture_after_a_decision_is_on_the_next_line():
    # The decision's own line (row 2) still has the old mixture; no line follows the last one.
    probability = np.array([[NAN, NAN], [0.5, 0.5], [0.5, 0.5], [0.9, 0.1], [0.9, 0.1]])
    after = curves.mixture_after(probability, np.array([0, 2, 4]))
    np.testing.assert_allclose(after, [[0.5, 0.5], [0.9, 0.1], [0.9, 0.1]])
    assert curves.changed_rows(probability).tolist() == [1, 3, 4]


def test_effective_arms():
    mixture = np.array([[0.25, 0.25, 0.25, 0.25], [1.0, 0.0, 0.0, 0.0], [0.5, 0.5, NAN, 0.0]])
    np.testing.assert_allclose(curves.effective_arms(mixture), [4.0, 1.0, 2.0])


def table(**scalars):
    columns = {name.replace("__", "/"): np.array(values) for name, values in scalars.items()}
    return MetricsTable(np.arange(len(next(iter(columns.values())))), columns, {}, ())


def test_wall_time_sums_the_starts():
    elapsed = [NAN, 35.0, 36.0, 41.0]
    times = {"time__stepping": [NAN, 33.0, 67.0, 72.0], "time__lost_steps": [NAN, 0.0, 4.0, 4.0]}
    logged = table(elapsed_seconds=elapsed, **times, time__between_starts=[NAN, 0.0, 900.0, 900.0])
    assert wall_seconds(logged) == pytest.approx(76.0)


def test_wall_time_of_a_run_without_time_use_sums_what_its_clock_shows():
    assert wall_seconds(table(elapsed_seconds=[NAN, 10.0, 20.0, 5.0, 15.0])) == pytest.approx(35.0)
    assert wall_seconds(table(elapsed_seconds=[10.0, 20.0, 40.0])) == pytest.approx(40.0)
    assert np.isnan(wall_seconds(table(loss=[1.0])))


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (page_text.count(1_403_000_000), "1.4 B"),
        (page_text.count(9_999), "9,999"),
        (page_text.count(999_400_000), "999 M"),
        (page_text.count(999_981_056), "1,000 M"),
        (page_text.count(NAN), "–"),
        (page_text.duration(59.96), "60.0 s"),
        (page_text.duration(7_325.0), "2 h 2 min"),
        (page_text.duration(200_000.0), "2 d 7 h"),
        (page_text.percent(0.00001), "<0.1 %"),
        (page_text.percent(0.0), "0.0 %"),
        (page_text.fixed(-0.5), "−0.500"),
    ],
)
def test_numbers(written, expected):
    assert written == expected


def test_long_text_is_folded_and_cut_without_breaking_a_special_token():
    head = "x" * (page_text.VISIBLE - 3)
    text = head + "[MASK_12]" + "y" * 5_000
    page = str(page_text.render_text(text))
    assert page.startswith(head + '<b class="token">[MASK_12]</b><details>')
    kept = sum(map(len, re.findall("y{50,}", page)))
    assert kept <= page_text.KEPT
    cut = int(re.search(r"… ([0-9,]+) more characters are not", page)[1].replace(",", ""))
    assert cut + kept == 5_000
    assert "<details>" not in page_text.render_text("z" * page_text.VISIBLE)


def test_rows_of_a_heat_map_match_their_names():
    values, names, classes = np.array([[0.1, 0.2, 0.7], [0.3, 0.6, 0.1]]), ("a", "b", "c"), (1, 0, 1)
    by_class = [1, 0, 2]

    def drawn(order):
        heatmap = probability_heatmap(values[:, order], "share")
        arms = [names[arm] for arm in order], [classes[arm] for arm in order]
        return draw_heatmaps([heatmap], *arms, np.array([10, 20]))

    with default_style():
        assert drawn([0, 1, 2]) == drawn(by_class)
