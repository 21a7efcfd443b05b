"""Windows of documents, summaries of cells, parts of texts, and cosines of adjacent tokens."""

import jax.numpy as jnp
import numpy as np
import pytest

from birdie_jax.config import ModelConfig
from birdie_jax.errors import ConfigError, PromptError
from birdie_jax.generation import Prompt
from birdie_jax.generation.prompt import max_protected, prompt_as_read
from birdie_jax.objectives import make_objective
from birdie_jax.pruning import LayerTrace, PrunedLayer, PruningSettings
from birdie_jax.pruning_cost.cells import Cell, CellFolder, StudySettings, cells_table, summarise_cells
from birdie_jax.pruning_cost.pruned_prompts import (
    BINS,
    ReadPart,
    _layer_sums,
    make_rows,
    protected_count,
    read_parts,
)
from birdie_jax.pruning_cost.study import choose_windows
from birdie_jax.storage import make_path
from birdie_jax.vocabulary import START
from tests.trained_workdirs import small_tokenizer


def documents():
    return iter([np.arange(1000, 1033), np.arange(2000, 2009), np.arange(3000, 3021)])


def test_windows_do_not_overlap_and_contexts_end_together():
    windows = choose_windows(documents(), 4, context=7, continuation=3, seed=0)
    assert windows.tokens.tolist() == [
        list(range(first, first + 10)) for first in sorted(windows.tokens[:, 0].tolist())
    ]
    assert set(windows.tokens[:, 0].tolist()) < {1000, 1010, 1020, 3000, 3010}
    assert [owner * 1000 + 1000 for owner in windows.documents] == (
        windows.tokens[:, 0] // 1000 * 1000
    ).tolist()
    np.testing.assert_array_equal(windows.contexts(7)[:, -2:], windows.contexts(2))
    np.testing.assert_array_equal(windows.contexts(2)[:, -1] + 1, windows.continuations[:, 0])
    with pytest.raises(ConfigError, match=r"--windows: found 6 of 10 tokens, .*; the text has 5"):
        choose_windows(documents(), 6, context=7, continuation=3, seed=0)
    # Without a number, all windows of the text are used, at most 300.
    for length, count in ((10, 5), (20, 2), (2, 30)):
        given = {"context": length - 1, "continuation": 1, "seed": 0}
        assert len(choose_windows(documents(), None, **given).tokens) == count
    many = iter([np.arange(700)])
    assert len(choose_windows(many, None, context=1, continuation=1, seed=0).tokens) == 300
    with pytest.raises(ConfigError, match=r"--windows: found 1 of 40 tokens, .* the text has 0"):
        choose_windows(documents(), None, context=39, continuation=1, seed=0)


def test_prompts_protect_the_start_token_in_any_place():
    contexts, numbers = np.full((2, 5), 300, np.int32), np.arange(2)
    prefix = make_rows(ModelConfig(), make_objective("prefix_lm", marker=3), contexts, numbers)
    causal = make_rows(ModelConfig(), make_objective("causal_lm"), contexts, numbers)
    assert prefix.tokens[0].tolist() == [3, *[300] * 5, START]
    assert causal.tokens[0].tolist() == [START, *[300] * 5]
    assert prefix.bidirectional.sum() == 12 and not causal.bidirectional.any()
    assert prefix.prunable.sum() == 12 and causal.prunable.sum() == 10
    assert protected_count(prefix, PruningSettings(keep_first=True)) == 2
    assert protected_count(prefix, PruningSettings(keep_first=False)) == 1
    assert protected_count(causal, PruningSettings(keep_first=False)) == 2
    with pytest.raises(PromptError, match=r"--objective: found copying, .* allowed: prefix_lm, causal_lm"):
        make_rows(ModelConfig(), make_objective("copying"), contexts, numbers)


@pytest.mark.parametrize("begin", [0, 258])
def test_a_model_without_a_start_token_reads_the_prompts_of_generate(begin):
    model = ModelConfig(bidirectional=False, start_token=False, begin_token=begin, end_token=257)
    contexts = np.full((2, 5), 300, np.int32)
    rows = make_rows(model, make_objective("causal_lm"), contexts, np.arange(2))
    prompt = prompt_as_read(Prompt(np.empty(0, np.int32), contexts[0]), model)
    assert rows.tokens.tolist() == [prompt.tokens.tolist()] * 2
    assert START not in prompt.tokens
    assert rows.prunable.all() and rows.bidirectional.all()
    assert protected_count(rows, PruningSettings()) == max_protected(prompt)


def cell(policy, losses, context=4):
    return Cell("run", "f" * 64, policy, 1.0 if policy == "dense" else 0.5, context, losses, 2.0, 3.0)


def test_differences_are_paired_and_resampled_by_document():
    cells = [
        cell("dense", [1.0, 2.0, 5.0]),
        cell("influence", [1.5, 2.5, 5.5]),
        cell("random", [2.0, 2.0, 7.0]),
    ]
    dense, influence, random = summarise_cells(cells, np.array([4, 4, 9]))
    assert dense.loss.mean == pytest.approx(8 / 3)
    # The difference is equal in every window, so no resample of pairs changes it.
    for end in (influence.from_dense.mean, influence.from_dense.low, influence.from_dense.high):
        assert end == pytest.approx(0.5)
    assert influence.from_influence is None and dense.from_influence is None
    assert random.from_influence.mean == pytest.approx(0.5)
    header, *lines = cells_table([dense, influence, random]).splitlines()
    assert header.split()[:4] == ["policy", "keep", "context", "loss"]
    assert lines[0].split() == ["dense", "1", "4", "2.6667", "0.00", "0.00"]
    assert "+0.5000 [+0.0000, +1.5000]" in lines[2]
    # Whole documents are resampled: one has the differences 0.5 and -0.5, the other 1.5.
    assert (random.from_influence.low, random.from_influence.high) == pytest.approx((0.0, 1.5))


def test_a_folder_with_other_settings_is_refused(tmp_path):
    settings = {"parameters_sha256": "a", "objective": "prefix_lm", "windows_sha256": "b", "windows": 3}
    settings |= {"longest_context": 4, "continuation": 2, "pruning": [], "format_version": 1}
    folder = CellFolder(make_path(tmp_path), StudySettings(**settings))
    found = cell("random", [1.0, 2.0, 3.5])
    folder.write(found)
    again = CellFolder(make_path(tmp_path), StudySettings(**settings))
    assert again.read(found.parameters_sha256, "random", 0.5, 4) == found
    assert again.read(found.parameters_sha256, "random", 0.4, 4) is None
    for name, value, flag in (("windows", 5, "windows"), ("windows_sha256", "c", "text")):
        with pytest.raises(ConfigError, match=f"--{flag}: .*settings.json was started with {name}"):
            CellFolder(make_path(tmp_path), StudySettings(**settings | {name: value}))


def test_parts_of_a_text_join_to_the_text():
    tokenizer = small_tokenizer()
    tokens = tokenizer.encode("abc abc <b> caf\u00e9 no").tolist()
    layers = [number // 3 % 3 for number in range(len(tokens))]
    parts = read_parts(tokenizer, [START, *tokens], [3, *layers])
    assert parts[0].layers == 3
    assert "".join(part.text for part in parts[1:]) == tokenizer.decode(tokens)
    assert read_parts(tokenizer, tokens, [2] * len(tokens)) == [ReadPart(tokenizer.decode(tokens), 2)]


def test_sums_of_a_layer_match_a_loop():
    rng = np.random.default_rng(0)
    length, kept = 12, 7
    output, mixed = rng.normal(size=(2, kept, 4)), rng.normal(size=(2, kept, 4))
    influence = rng.uniform(size=(2, kept))
    index = np.stack([np.sort(rng.choice(length, kept, replace=False)) for _ in range(2)])
    segments = np.ones((2, kept), np.int32)
    segments[0, :2] = 0
    trace = LayerTrace(*(jnp.asarray(one, jnp.float32) for one in (output, mixed, influence)))
    found = _layer_sums(PrunedLayer(jnp.asarray(index), jnp.asarray(segments), trace), length)
    flow, counts, cosines = np.zeros(BINS), np.zeros(BINS), np.zeros(2)
    pairs = 0
    for row in range(2):
        for token in range(kept):
            if segments[row, token]:
                part = index[row, token] * BINS // length
                flow[part] += influence[row, token]
                counts[part] += 1
                if token and segments[row, token - 1]:
                    pairs += 1
                    for number, vectors in enumerate((output, mixed)):
                        one, other = vectors[row, token - 1 : token + 1]
                        cosines[number] += one @ other / np.linalg.norm(one) / np.linalg.norm(other)
    for one, expected in zip(found, (flow, counts, *cosines, pairs), strict=True):
        np.testing.assert_allclose(one, expected, rtol=1e-5)
