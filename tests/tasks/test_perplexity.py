"""Perplexity: losses match the model's logits, and every byte counts once."""

import itertools
import json
import math
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from birdie_jax.errors import ConfigError, DataError
from birdie_jax.models import LanguageModel
from birdie_jax.models.layout import packed_layout
from birdie_jax.tasks.perplexity import Perplexity, position_bucket, windows_of
from birdie_jax.tasks.summary import mean_scores
from birdie_jax.text import prepare
from birdie_jax.text.tokenization import split_of
from birdie_jax.vocabulary import START
from tests.quick_jit import quick_jit
from tests.tasks.tiny_task_model import tiny_model_parts, tiny_task_model
from tests.trained_workdirs import small_tokenizer

TEXTS = ["abc de fgh ijk lmno abcd é✓ xyz. " * 3, "no de fgh", "k"]


@quick_jit
def all_logits(params, read):
    model, _, _ = tiny_model_parts()
    # The layout is causal, so padding on the right does not change the logits.
    layout = packed_layout(jnp.ones_like(read), jnp.zeros_like(read, bool))
    hidden, _ = model.apply({"params": params}, read, layout, method=LanguageModel.hidden)
    return model.apply({"params": params}, hidden, method=LanguageModel.logits)[0]


def losses_of_logits(tokens):
    """Return the losses of a text from its logits in float64."""
    read = jnp.array([[START, *tokens[:-1], *[START] * (128 - len(tokens))]], jnp.int32)
    logits = np.asarray(all_logits(tiny_model_parts()[1], read), np.float64)[: len(tokens)]
    chosen = logits[np.arange(len(tokens)), tokens]
    return np.log(np.exp(logits).sum(-1)) - chosen


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    for number, text in enumerate(TEXTS):
        (folder / f"{number}.txt").write_text(text)
    return folder


def expected(window, stride, texts=TEXTS):
    """Return (document, position, loss) for every token."""
    tokenizer, found = small_tokenizer(), []
    for number, text in enumerate(texts):
        tokens = tokenizer.encode(text)
        scored = start = 0
        while scored < len(tokens):
            part = tokens[start : start + window]
            losses = losses_of_logits(part)
            for place in range(scored - start, len(part)):
                found.append((number, place, losses[place]))
            scored, start = start + len(part), start + stride
    return found


@pytest.mark.parametrize(("window", "stride"), [(2048, None), (16, 5)])
def test_losses_match_the_models_logits(folder, window, stride):
    task = Perplexity(path=str(folder), window=window, stride=stride)
    answers = task.measure(tiny_task_model(rows=4)).answers
    tokens = expected(window, stride or window)
    nats, size = sum(token[2] for token in tokens), sum(len(text.encode()) for text in TEXTS)
    weight = sum(one.weight for one in answers)
    assert weight == pytest.approx(size, rel=1e-12)
    names = answers[0].metrics
    means = {name: sum(one.metrics[name] * one.weight for one in answers) / weight for name in names}
    assert means["bits_per_byte"] == pytest.approx(nats / math.log(2) / size, rel=1e-5)
    derived = task.derived_metrics(means)
    shown = mean_scores(task, answers)
    assert list(shown) == ["bits_per_byte", "tokens_per_byte", "loss", "perplexity"]
    assert shown["perplexity"].mean == pytest.approx(derived["perplexity"])
    # The exponential is monotonic, so it maps one interval to the other.
    for end in ("low", "high"):
        of_loss, of_perplexity = getattr(shown["loss"], end), getattr(shown["perplexity"], end)
        assert math.exp(of_loss) == pytest.approx(of_perplexity, rel=0.02)
    assert derived["loss"] == pytest.approx(nats / len(tokens), rel=1e-5)
    assert derived["perplexity"] == pytest.approx(math.exp(nats / len(tokens)), rel=1e-4)
    # JSON has no infinity.
    assert task.derived_metrics({**means, "bits_per_byte": 1e5})["perplexity"] == sys.float_info.max
    found = {(one.details["document"], one.question.groups["position"]): one.details for one in answers}
    assert len(found) == len(answers)
    for (document, bucket), details in found.items():
        number = next(n for n in range(len(TEXTS)) if f"{n}.txt" in document)
        inside = [t for t in tokens if t[0] == number and bucket <= t[1] < max(2 * bucket, 1)]
        assert details["tokens"] == len(inside)
        assert details["nats"] == pytest.approx(sum(t[2] for t in inside), rel=1e-4)


def test_bytes_of_tokens_sum_to_the_size_of_the_text(tmp_path):
    # Each of these characters is one token or several byte tokens.
    (tmp_path / "a.txt").write_text("✓é✓")
    tokenizer = small_tokenizer()
    (document,) = Perplexity(path=str(tmp_path)).documents(tokenizer)
    assert document.bytes_of_tokens.sum() == len("✓é✓".encode())
    pieces = tokenizer.byte_lengths()
    assert (pieces[:256] == 0).all() and (pieces[256:] >= 1).all()
    for text in TEXTS:
        assert pieces[tokenizer.encode(text)].sum() == len(text.encode())


@given(st.integers(1, 300), st.integers(1, 40), st.data())
def test_every_token_is_scored_once_with_enough_context(tokens, window, data):
    stride = data.draw(st.none() | st.integers(1, window))
    windows = list(windows_of(tokens, window, stride))
    scored = [token for one in windows for token in range(one.scored, one.end)]
    assert scored == list(range(tokens))
    for one in windows:
        assert one.start <= one.scored < one.end <= one.start + window
        # Windows after the first have at least window - stride tokens before the first scored token.
        assert one.start == 0 or one.scored - one.start >= window - (stride or window)


def test_buckets_are_powers_of_two():
    buckets = {0: 0, 1: 1, 2: 2, 3: 2, 4: 4, 7: 4, 8: 8, 1023: 512, 1024: 1024}
    assert {number: position_bucket(number) for number in buckets} == buckets


def test_a_prepared_folder_has_the_documents_of_its_source(folder, tmp_path):
    tokenizer = small_tokenizer()
    tokenizer.save(tmp_path / "tokenizer.model")
    source = tmp_path / "docs.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    prepared = prepare(
        str(source),
        str(tmp_path / "out"),
        tokenizer_model=str(tmp_path / "tokenizer.model"),
        record_tokens=20,
        validation_fraction=0.62,
        workers=0,
        progress=False,
    )
    from_texts = list(Perplexity(path=str(source)).documents(tokenizer))
    assert len(from_texts) == 3
    for split in ("train", "validation"):
        of_split = [
            one for one, text in zip(from_texts, TEXTS, strict=True) if split_of(text, 0.62) == split
        ]
        first = 0
        for one, other in itertools.zip_longest(
            Perplexity(prepared=str(prepared), split=split).documents(tokenizer), of_split
        ):
            assert np.array_equal(one.tokens, other.tokens)
            assert np.array_equal(one.bytes_of_tokens, other.bytes_of_tokens)
            assert one.name == f"{prepared}: {split} record {first}"
            first += -(-len(other.tokens) // 20)
    assert len(list(Perplexity(path=str(source), max_documents=2).documents(tokenizer))) == 2
    with pytest.raises(DataError, match="the shards were made with the tokenizer of SHA-256"):
        list(Perplexity(prepared=str(prepared), split="train").documents(small_tokenizer(310)))


def test_unusable_texts_are_refused(tmp_path):
    (tmp_path / "a.txt").write_text(" \n")
    with pytest.raises(DataError, match="holds no document with text; allowed: some"):
        Perplexity(path=str(tmp_path)).measure(tiny_task_model())
    with pytest.raises(ConfigError, match="window: found 2,048; allowed: at most 128, the longest rows"):
        Perplexity(path=str(tmp_path)).measure(tiny_task_model(max_length=128))
