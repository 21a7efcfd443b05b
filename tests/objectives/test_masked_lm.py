"""Masked language modelling: the chosen tokens, their replacements, and the positions with loss."""

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from birdie_jax import vocabulary as v
from birdie_jax.batching import pack_rows, packed_length
from birdie_jax.errors import UnsuitableText
from birdie_jax.objectives import NO_LABEL, make_mixture, make_objective, mixture_from_arms

PIECES = 50


def masked(text, seed=0, **parameters):
    objective = make_objective("masked_lm", **{"num_pieces": PIECES, "min_length": 1, **parameters})
    return objective(np.asarray(text, np.int32), np.random.default_rng(seed))


@given(
    text=st.lists(st.integers(v.NUM_SPECIAL_TOKENS, 999), min_size=1, max_size=60),
    seed=st.integers(0, 2**32 - 1),
    rate=st.floats(0.01, 1),
    mask_share=st.floats(0, 0.9),
)
def test_labels_are_the_original_tokens(text, seed, rate, mask_share):
    made = masked(text, seed, rate=rate, mask_share=mask_share)
    original = np.array([v.MASKED_LM, *text, v.SEPARATOR])
    chosen = made.labels != NO_LABEL
    assert chosen.sum() == max(1, round(rate * len(text)))
    np.testing.assert_array_equal(made.labels[chosen], original[chosen])
    np.testing.assert_array_equal(made.context[~chosen], original[~chosen])
    # The marker and [SEP] are never chosen, and [MASK] is the only special replacement.
    assert not chosen[0]
    assert not chosen[-1]
    shown = made.context[chosen]
    drawn = shown[(shown != v.MASK) & (shown != original[chosen])]
    assert ((drawn >= v.NUM_SPECIAL_TOKENS) & (drawn < v.NUM_SPECIAL_TOKENS + PIECES)).all()


def test_replacements_follow_the_shares_of_bert():
    """Counts are within the central 99.99 % of their binomial distributions."""
    text = np.arange(2000, 2400)
    count = {"masked": 0, "random": 0, "kept": 0}
    places = np.zeros(len(text), int)
    for seed in range(60):
        made = masked(text, seed)
        chosen = made.labels != NO_LABEL
        shown, label = made.context[chosen], made.labels[chosen]
        places += chosen[1:-1]
        count["masked"] += int((shown == v.MASK).sum())
        count["kept"] += int((shown == label).sum())
        count["random"] += int(((shown != v.MASK) & (shown != label)).sum())
    total = 60 * 60
    assert sum(count.values()) == total
    for what, share in {"masked": 0.8, "random": 0.1, "kept": 0.1}.items():
        low, high = stats.binom.interval(0.9999, total, share)
        assert low <= count[what] <= high, what
    # All places are equally likely, and each draw is new.
    assert stats.chisquare(places).pvalue > 1e-4
    assert places.max() < 60


def test_random_tokens_are_uniform_over_the_vocabulary():
    text = np.full(5000, 900)
    made = masked(text, rate=1.0, mask_share=0, random_share=1)
    drawn = np.bincount(made.context[1:-1] - v.NUM_SPECIAL_TOKENS, minlength=PIECES)
    assert len(drawn) == PIECES
    assert stats.chisquare(drawn).pvalue > 1e-4


def test_without_a_tokenizer_random_tokens_come_from_the_text():
    text = np.arange(700, 720)
    made = masked(text, rate=1.0, mask_share=0, random_share=1, num_pieces=None)
    assert set(made.context[1:-1].tolist()) <= set(text.tolist())
    assert not (made.context[1:-1] == text).all()


def test_with_vocabulary_fills_in_only_a_missing_number():
    plain, given_one = make_objective("masked_lm"), make_objective("masked_lm", num_pieces=7)
    assert plain.with_vocabulary(300) == make_objective("masked_lm", num_pieces=300)
    assert given_one.with_vocabulary(300) is given_one.with_vocabulary(7) is given_one
    message = (
        "masked_lm: num_pieces: found 7; allowed: None or at most 6, the pieces of the text's tokenizer"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        given_one.with_vocabulary(6)
    copying = make_objective("copying")
    assert copying.with_vocabulary(300) is copying


def test_special_tokens_in_a_text_are_unchanged():
    text = np.array([v.SEPARATOR, 300, v.SEPARATOR, 301])
    made = masked(text, rate=1.0, mask_share=1, random_share=0)
    np.testing.assert_array_equal(made.context, [v.MASKED_LM, 11, 3, 11, 3, 11])
    np.testing.assert_array_equal(made.labels, [0, 0, 300, 0, 301, 0])
    with pytest.raises(
        UnsuitableText, match=r"^masked_lm: the text has no ordinary token; it needs at least 1$"
    ):
        masked([v.SEPARATOR, v.SEPARATOR])


@given(
    counts=st.lists(st.integers(1, 30), min_size=1, max_size=8),
    rate=st.sampled_from([0.05, 0.15, 0.4, 0.77, 1.0]),
    spacing=st.integers(0, 4),
    slack=st.integers(0, 5),
)
def test_no_row_exceeds_the_maximum_of_loss_positions(counts, rate, spacing, slack):
    objective = make_objective("masked_lm", rate=rate, min_length=min(counts), max_length=max(counts))
    rng = np.random.default_rng(0)
    examples = [objective.build(np.arange(300, 300 + count), rng) for count in counts]
    length = sum(map(packed_length, examples)) + spacing * (len(examples) - 1) + slack
    loss = pack_rows([examples], length, spacing).loss_mask.sum()
    assert loss <= objective.max_loss_positions(length, spacing) <= length


@pytest.mark.parametrize(
    ("length", "spacing", "most"), [(128, 3, 19), (512, 3, 76), (4096, 3, 614), (128, 0, 21)]
)
def test_max_loss_positions_returns_known_numbers(length, spacing, most):
    mixture = make_mixture("masked_lm", length)
    assert mixture.max_loss_positions(length, spacing) == most
    assert most <= length / 4
    mixed = mixture_from_arms({"a": {"objective": "masked_lm"}, "b": {"objective": "prefix_lm"}})
    assert mixed.max_loss_positions(length, spacing) == length


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"rate": 0}, "rate: found 0.0; allowed: a number above 0 and at most 1"),
        ({"mask_share": 1.5}, "mask_share: found 1.5; allowed: a number from 0 to 1"),
        ({"random_share": 0.3}, "random_share: found 0.3; allowed: at most 1 - mask_share = 0.2"),
        ({"num_pieces": 0}, "num_pieces: found 0; allowed: an integer of at least 1"),
    ],
)
def test_invalid_parameters_are_refused(parameters, message):
    with pytest.raises(ValueError, match=f"^masked_lm: {re.escape(message)}$"):
        make_objective("masked_lm", **parameters)


def test_the_code_of_the_page_runs():
    page = (Path(__file__).resolve().parents[2] / "docs/masked_lm.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(code, {})
