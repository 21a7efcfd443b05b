"""Tests the recall study: its sequences, its sizes, and a run with its page."""

import jax
import numpy as np
import pytest

from birdie_jax.models import build_model
from birdie_jax.models.language_model import parameter_shapes
from birdie_jax.models.layer_stacks import make_mixer
from studies.recall import (
    MIXERS,
    SCALES,
    TABLE_ROWS,
    WIDE,
    Recall,
    Run,
    best_rates,
    draw_batch,
    mixer,
    model_config,
)
from tests.studies.test_small_studies import write_page

SMALL, SMOKE = SCALES["small"], SCALES["smoke"]


def test_only_queried_values_have_loss_and_follow_their_keys():
    batch = draw_batch(SMALL, SMALL.pairs, np.random.default_rng(0))
    sizes = set()
    for row in range(SMALL.rows):
        samples = int(batch.segment_ids[row].max())
        pairs = SMALL.length // samples // 4
        sizes.add(pairs)
        for start in range(0, SMALL.length, 4 * pairs):
            sample = row, slice(start, start + 4 * pairs)
            assert len(set(batch.segment_ids[sample].tolist())) == 1
            assert batch.positions[sample].tolist() == list(range(4 * pairs))
            tokens, targets = batch.tokens[sample], batch.targets[sample]
            keys, values = tokens[: 2 * pairs : 2], tokens[1 : 2 * pairs : 2]
            value_of = dict(zip(keys.tolist(), values.tolist(), strict=True))
            queried = np.flatnonzero(batch.loss_mask[sample])
            assert sorted(tokens[queried].tolist()) == sorted(value_of)
            assert [value_of[key] for key in tokens[queried].tolist()] == targets[queried].tolist()
            assert queried.min() >= 2 * pairs
    assert sizes == set(SMALL.pairs)


SIZES = [
    (name, state)
    for name in MIXERS
    for state in SMALL.states
    if name != "transformer" and mixer(name, state) is not None
]


@pytest.mark.parametrize(("name", "state"), SIZES)
def test_a_layer_has_the_state_size_of_its_run(name, state):
    config = model_config(Run("small", name, state, 1e-3, 0))
    cache = make_mixer(config, parent=None).empty_cache(1)
    assert cache.state.size == pytest.approx(state, rel=0.1)


def test_mixers_have_similar_numbers_of_parameters():
    counts = {}
    for name in MIXERS:
        for state in SMALL.states:
            if mixer(name, state) is None:
                continue
            config = model_config(Run("small", name, state, 1e-3, 0))
            shapes = parameter_shapes(build_model(config, TABLE_ROWS))
            counts[name, state] = sum(leaf.size for leaf in jax.tree.leaves(shapes))
    narrow = [count for (name, _), count in counts.items() if name not in WIDE]
    assert max(narrow) < 3.5 * min(narrow)


def test_the_page_has_a_line_for_each_run(tmp_path):
    study = Recall(SMOKE, tmp_path / "results", tmp_path / "workdirs", "")
    run = next(run for run in study.runs() if run.mixer == "gated_ssm_plus")
    study.finish(run)
    assert not study.folder(run).exists()
    (result,) = study.read_results().values()
    assert 0 <= result["recalled"] <= 1
    assert [step for step, _ in result["curve"]] == [1, 2, 3, 4]
    page = write_page(study, tmp_path)
    assert "| gated_ssm_plus | 512 |" in page and "page_smoke_states.png" in page


def test_the_best_rate_has_results_of_all_seeds():
    def result(recalled):
        return {"recalled": recalled, "parameters": 7}

    runs = {
        Run("small", "mamba", 512, 1e-3, 0): result(0.5),
        Run("small", "mamba", 512, 1e-3, 1): result(0.6),
        Run("small", "mamba", 512, 2e-3, 0): result(0.9),
        Run("small", "mamba", 512, 4e-3, 0): result(0.2),
        Run("small", "mamba", 512, 4e-3, 1): result(0.1),
    }
    assert best_rates(runs) == {("mamba", 512): (1e-3, [0.5, 0.6], 7)}


def test_a_size_with_several_seeds_has_an_interval(tmp_path):
    circumstances = {"machine": {"cores_used": 1}, "commit": "abcdef", "date": "2026-11-27T08:00:00"}
    results = {
        Run("small", "mamba", 512, 1e-3, seed): {
            "recalled": recalled,
            "parameters": 7,
            "circumstances": circumstances,
        }
        for seed, recalled in enumerate((0.4, 0.5, 0.6))
    }
    study = Recall(SMALL, tmp_path, tmp_path, "")
    assert "| 50 % (25 .. 75) | 40, 50, 60 |" in study.tables(results)[0]
