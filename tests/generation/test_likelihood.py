"""Likelihoods equal those of one pass over the whole text, read together or in parts."""

from functools import cache

import jax
import numpy as np
import pytest

from birdie_jax.batching.packing import layout_example
from birdie_jax.generation import Generator, Prompt
from birdie_jax.generation import likelihood as likelihood_module
from birdie_jax.generation.likelihood import Scorer
from birdie_jax.models.attention import AttentionConfig
from birdie_jax.objectives import Example
from birdie_jax.vocabulary import START
from tests.generation.conftest import VOCAB, kinds, small_model
from tests.quick_jit import quick_jit

KINDS = kinds(
    [("gated_ssm_plus", True), ("transformer", True), ("mamba2", True), ("gated_deltanet", False)]
)
NONE = np.empty(0, np.int32)
# All whole passes have this length, so they share one compiled program.
LENGTH = 64


def draw(random, count):
    return random.integers(256, VOCAB, count).astype(np.int32)


@cache
def whole_pass(kind):
    """Return a jitted function: (batch of one row) -> log-probabilities [length, vocab]."""
    model, params = small_model(*kind)
    apply = quick_jit(model.apply)

    def run(batch):
        fill = LENGTH - batch.tokens.shape[-1]
        row = jax.tree.map(lambda field: np.pad(field, (0, fill))[None], batch)
        return np.asarray(jax.nn.log_softmax(apply({"params": params}, row)[0]))

    return run


def by_hand(kind, prompt, tokens):
    """Return the log-likelihood of `tokens` after `prompt`, and whether greedy choice gives them."""
    if not len(tokens):
        return 0.0, True
    example = Example(prompt.context, np.concatenate([prompt.target_prefix, tokens]).astype(np.int32))
    found = whole_pass(kind)(layout_example(example, start_id=START))
    first = len(prompt.context) + len(prompt.target_prefix)
    own = found[first : first + len(tokens)]
    return own[np.arange(len(tokens)), tokens].sum(), (own.argmax(axis=1) == tokens).all()


def questions():
    """Return prompts of both forms, and 1 to 4 continuations for each, of 0 to 13 tokens."""
    random = np.random.default_rng(1)
    prompts = [
        Prompt(draw(random, 12), NONE),
        Prompt(draw(random, 40), NONE),
        Prompt(draw(random, 3), draw(random, 6)),
        Prompt(NONE, draw(random, 20)),
        Prompt(NONE, NONE),
    ]
    lengths = [(5, 1, 13), (2, 2, 7, 1), (4,), (1, 1), (0, 3, 6)]
    return prompts, [[draw(random, count) for count in own] for own in lengths]


@pytest.mark.parametrize("kind", KINDS)
def test_likelihoods_match_one_pass(kind):
    prompts, continuations = questions()
    scorer = Scorer(Generator(*small_model(*kind)))
    for prompt, own, found in zip(
        prompts, continuations, scorer.score(prompts, continuations), strict=True
    ):
        for tokens, one in zip(own, found, strict=True):
            total, greedy = by_hand(kind, prompt, tokens)
            assert one.log_likelihood == pytest.approx(total, rel=1e-4, abs=1e-4)
            assert (one.tokens, one.is_greedy) == (len(tokens), greedy)


def test_any_number_of_choices_is_scored():
    kind = ("gated_ssm_plus", True)
    random = np.random.default_rng(5)
    prompt, choices = Prompt(draw(random, 5), NONE), [draw(random, 2) for _ in range(11)]
    (found,) = Scorer(Generator(*small_model(*kind))).score([prompt], [choices])
    expected = [by_hand(kind, prompt, tokens)[0] for tokens in choices]
    np.testing.assert_allclose([one.log_likelihood for one in found], expected, rtol=1e-4)


@pytest.mark.slow
def test_greedy_answers_score_as_greedy():
    kind = ("gated_ssm_plus", True)
    model, params = small_model(*kind)
    generator = Generator(model, params, stop_tokens=[])
    (prompt, *_), _ = questions()
    answer = np.concatenate([chunk[0] for chunk in generator.generate_chunks([prompt], [6], [0])])
    other = np.where(np.arange(6) == 5, answer + 1, answer).astype(np.int32)
    ((same, changed),) = Scorer(generator).score([prompt], [[answer, other]])
    # Padding and the start token are never generated but may be the most probable.
    assert same.is_greedy == by_hand(kind, prompt, answer)[1]
    assert not changed.is_greedy
    assert same.log_likelihood > changed.log_likelihood


def test_batches_of_few_shapes_are_compiled():
    model, params = small_model()
    generator = Generator(model, params)
    scorer, spent = Scorer(generator), []
    random = np.random.default_rng(2)
    for context, lengths in ((5, (3, 4)), (20, (4, 3)), (30, (3, 3))):
        scorer.score([Prompt(draw(random, context), NONE)], [[draw(random, count) for count in lengths]])
        spent.append(generator.times.compile_seconds)
    assert spent[0] > 0
    assert set(spent) == {spent[0]}


def losses_by_hand(kind, text, window=None, stride=None):
    """Return the loss of each token from passes over whole windows."""
    losses = np.full(len(text), np.nan)
    read = np.concatenate([[START], text])
    end = 0
    while end < len(text):
        before, end = end, min(len(text), end + (window if end == 0 else stride) if window else len(text))
        begin = max(0, end - window) if window else 0
        # A window is a target without a context; its start token is the token before it.
        batch = layout_example(Example(NONE, text[begin:end]), start_id=int(read[begin]))
        found = whole_pass(kind)(batch)
        for place in range(before, end):
            losses[place] = -found[place - begin, text[place]]
    return losses


def texts():
    random = np.random.default_rng(3)
    return [draw(random, count) for count in (7, 50, 1, 0, 33)]


@pytest.mark.parametrize("kind", [*KINDS[:2], *kinds([("hawk", True)])])
def test_losses_of_texts_match_one_pass(kind, monkeypatch):
    monkeypatch.setattr(likelihood_module, "_CHUNK", 16)
    monkeypatch.setattr(likelihood_module, "_MIN_CHUNK", 8)
    scorer = Scorer(Generator(*small_model(*kind)))
    for text, found in zip(texts(), scorer.text_losses(texts(), rows=3), strict=True):
        # With these large weights, rounding in Hawk reaches 5e-4 after 50 tokens, in one chunk or four.
        np.testing.assert_allclose(found, losses_by_hand(kind, text), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("stride", [None, 5])
def test_long_texts_are_read_in_windows(stride):
    kind = ("transformer", True)
    generator = Generator(*small_model(*kind), max_length=20)
    found = Scorer(generator).text_losses(texts(), stride=stride)
    for text, losses in zip(texts(), found, strict=True):
        np.testing.assert_allclose(
            losses, losses_by_hand(kind, text, 20, stride or 20), rtol=1e-4, atol=1e-4
        )


def test_windows_without_overlap_match_the_harness():
    """The example of lm-eval's `loglikelihood_rolling`: ten tokens, windows of four."""
    windows = list(likelihood_module._windows(np.arange(10), START, 4, 4))
    assert [list(window.tokens) for window in windows] == [[START, 0, 1, 2], [3, 4, 5, 6], [5, 6, 7, 8]]
    assert [list(window.targets[window.first_scored :]) for window in windows] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9],
    ]


def test_a_recurrent_model_reads_a_text_of_any_length_in_constant_memory():
    generator = Generator(*small_model("gated_ssm"))
    scorer, random = Scorer(generator), np.random.default_rng(4)
    scorer.text_losses([draw(random, 2 * likelihood_module._CHUNK)])
    compiled = generator.times.compile_seconds
    (losses,) = scorer.text_losses([draw(random, 20 * likelihood_module._CHUNK + 3)])
    assert losses.shape == (20 * likelihood_module._CHUNK + 3,)
    assert np.isfinite(losses).all()
    assert generator.times.compile_seconds == compiled, "the same programs serve a text of any length"


@pytest.mark.slow
def test_attention_with_a_window_reads_a_text_of_any_length(monkeypatch):
    """Chunks of 16 tokens continue from a ring of five. There is no other limit."""
    monkeypatch.setattr(likelihood_module, "_CHUNK", 16)
    model, params = small_model("transformer", sections=(AttentionConfig(heads=4, window=5),))
    own = texts()[:2]
    found = Scorer(Generator(model, params)).text_losses(own)
    apply = quick_jit(model.apply)
    for text, losses in zip(own, found, strict=True):
        batch = layout_example(Example(NONE, text), start_id=START)
        row = jax.tree.map(lambda field: np.pad(field, (0, LENGTH - len(field)))[None], batch)
        expected = jax.nn.log_softmax(apply({"params": params}, row)[0])
        np.testing.assert_allclose(
            losses, -np.asarray(expected)[np.arange(len(text)), text], rtol=1e-4, atol=1e-4
        )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"stride": 3}, "stride: found 3; allowed: none without a window"),
        ({"window": 4, "stride": 5}, "stride: found 5; allowed: from 1 to the window, 4"),
        ({"window": 0}, "window: found 0; allowed: at least 1"),
        ({"rows": 0}, "rows: found 0; allowed: at least 1"),
    ],
)
def test_invalid_windows_are_refused(settings, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        Scorer(Generator(*small_model())).text_losses(texts(), **settings)


@pytest.mark.slow
def test_rows_are_divided_among_devices(two_devices):
    generators = [Generator(*small_model("transformer"), devices=jax.devices()[:count]) for count in (1, 2)]
    assert not generators[1].programs.put_rows(np.zeros((4, 2))).is_fully_replicated
    one, both = (Scorer(generator).score(*questions()) for generator in generators)
    np.testing.assert_allclose(
        [score.log_likelihood for own in one for score in own],
        [score.log_likelihood for own in both for score in own],
        rtol=1e-5,
    )
