import pytest
from hypothesis import given
from hypothesis import strategies as st

from birdie_jax.errors import DataError
from birdie_jax.text import train_tokenizer
from birdie_jax.text.tokenizer_training import sample_passages


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_same_arguments_give_the_same_bytes(make_texts, kind):
    documents = make_texts(300)
    models = [
        train_tokenizer(iter(documents), 320, 20_000, seed=seed, tokenizer_type=kind) for seed in (3, 3, 4)
    ]
    assert models[0].sha256 == models[1].sha256 != models[2].sha256
    assert models[0].num_pieces == 320


@given(
    documents=st.lists(st.text(max_size=6000), max_size=20),
    budget=st.integers(1, 20_000),
    seed=st.integers(0, 5),
)
def test_a_sample_is_bounded_and_comes_from_the_documents(documents, budget, seed):
    sample = sample_passages(iter(documents), budget, seed)
    size = sum(len(passage.encode()) for passage in sample)
    assert size <= budget or len(sample) == 1
    assert all(any(passage in text for text in documents) for passage in sample)
    whole = sum(len(text.encode()) for text in documents)
    if whole <= budget:
        assert "".join(sample) == "".join(documents)
    assert sample == sample_passages(iter(documents), budget, seed)


def test_a_sample_is_spread_over_the_whole_corpus():
    documents = [f"{number:05d}" * 400 for number in range(2000)]
    sample = sample_passages(documents, 200 * 2000, 0)
    numbers = [int(passage[:5]) for passage in sample]
    assert numbers == sorted(numbers)
    assert len(numbers) == 200
    # Each quarter of the corpus contributes 50 passages, within 4 standard deviations.
    for quarter in range(4):
        share = sum(quarter * 500 <= number < (quarter + 1) * 500 for number in numbers)
        assert 26 <= share <= 74


@pytest.mark.parametrize(
    ("texts", "pieces", "kind", "message"),
    [
        (6, 4096, "unigram", r"vocab_size=4096 .* on 60 bytes of text: it gives at most \d+ pieces"),
        (6, 4096, "bpe", r"vocab_size=4096 .* on 60 bytes of text: it gives at most \d+ pieces"),
        (6, 100, "unigram", r"vocab_size=100 cannot .* need 28\d; raise it"),
        (0, 300, "unigram", "cannot be trained: the source holds no text"),
        (6, 300, "word", "tokenizer_type is 'word'; allowed: unigram, bpe"),
    ],
)
def test_an_untrainable_tokenizer_is_named(texts, pieces, kind, message):
    with pytest.raises((DataError, ValueError), match=message):
        train_tokenizer(["abcdefghi "] * texts, pieces, tokenizer_type=kind)
