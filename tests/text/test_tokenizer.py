import io
import pickle
import random
import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from birdie_jax.errors import DataError
from birdie_jax.text import Tokenizer, train_tokenizer
from birdie_jax.vocabulary import COPYING, NUM_SPECIAL_TOKENS, PADDING, START, padded_vocab_size


@pytest.fixture(scope="module")
def unigram():
    generator = random.Random(1)
    syllables = [a + b for a in "bcdfglmnprst" for b in "aeiou"]
    words = ["".join(generator.choices(syllables, k=3)) for _ in range(6000)]
    texts = [" ".join(words[start : start + 200]) + "\n    x\n" for start in range(0, 6000, 200)]
    return train_tokenizer(texts, 330, tokenizer_type="unigram")


@pytest.fixture(scope="module")
def english_like_model():
    """A model with SentencePiece's defaults: it normalises text and has no byte pieces."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["hello world how are you today"] * 20),
        model_writer=model,
        vocab_size=40,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return model.getvalue()


_AWKWARD = st.text(alphabet=" \n\t\r\u2581\u00a0\u0000a<s>[COPY]é漢😀\u2028", max_size=60)


@given(text=st.text() | _AWKWARD)
def test_any_text_round_trips_exactly(tokenizer, unigram, text):
    for one in (tokenizer, unigram):
        tokens = one.encode(text)
        assert one.decode(tokens) == text
        assert tokens.dtype == np.int32
        assert tokens.size == 0 or NUM_SPECIAL_TOKENS <= tokens.min() <= tokens.max() < one.vocab_size


@pytest.mark.parametrize("text", ["[COPY]", "<s>", "</s>", "<unk>", "[PAD][EOS]", "<0x41>", "<0x0A>"])
def test_text_that_looks_special_is_text(tokenizer, text):
    tokens = tokenizer.encode(text)
    assert tokens.min() >= NUM_SPECIAL_TOKENS
    assert len(tokens) > 1
    assert tokenizer.decode(tokens) == text


def test_pieces_are_shifted_by_the_special_block(tokenizer):
    processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model_bytes)
    text = "if return the bright river\n        self"
    tokens = tokenizer.encode(text)
    assert tokens.tolist() == [piece + 256 for piece in processor.encode(text)]
    tokens[0] = 300  # changes only a copy
    assert tokenizer.num_pieces == 400
    assert tokenizer.vocab_size == padded_vocab_size(400) == 768


@pytest.mark.parametrize("text", ["    ", " " * 8, "\n\n", "\t"])
def test_indentation_and_line_ends_are_single_tokens(tokenizer, text):
    assert len(tokenizer.encode(text)) == 1


def test_a_batch_equals_single_texts_on_any_number_of_threads(tokenizer):
    batch = ["", "one", "two \u2581 marks \u2581\u2581", " \n"]
    for threads in (1, 2):
        encoded = tokenizer.encode_batch(batch, num_threads=threads)
        assert [tokens.tolist() for tokens in encoded] == [
            tokenizer.encode(text).tolist() for text in batch
        ]
    assert tokenizer.encode_batch([]) == []


def test_special_ids_decode_to_their_names(tokenizer):
    ids = [COPYING, *tokenizer.encode(" the river").tolist(), START, PADDING]
    assert tokenizer.decode(ids) == "[COPY] the river[BEGIN][PAD]"
    assert tokenizer.decode(np.array([], np.int32)) == ""


def test_saved_pickled_and_shared_tokenizers_are_equal(tokenizer, model_path):
    loaded = Tokenizer(model_path)
    copied = pickle.loads(pickle.dumps(loaded))
    assert loaded.sha256 == copied.sha256 == tokenizer.sha256
    assert loaded.name == copied.name == str(model_path)
    text = "the bright river " * 50
    expected = tokenizer.encode(text).tolist()
    with ThreadPoolExecutor(4) as threads:
        assert all(tokens.tolist() == expected for tokens in threads.map(copied.encode, [text] * 40))


def test_any_sentencepiece_model_can_be_used(english_like_model):
    tokenizer = Tokenizer.from_bytes(english_like_model, "theirs")
    tokens = tokenizer.encode("hello  world \u2581 <s>")
    assert tokens.min() >= NUM_SPECIAL_TOKENS
    # SentencePiece's default normalisation joins runs of spaces.
    assert tokenizer.decode(tokenizer.encode("hello  world")) == "hello world"


def test_unusable_models_are_named(tmp_path, tokenizer):
    path = tmp_path / "bad.model"
    with pytest.raises(DataError, match=r"bad\.model: the tokenizer model cannot be read: No such file"):
        Tokenizer(path)
    whole = tokenizer.model_bytes
    for contents in (b"", b"not a model" * 50, b"PK\x03\x04", whole[: len(whole) // 2]):
        path.write_bytes(contents)
        with pytest.raises(
            DataError, match=re.escape(f"{path}: is ") + "(empty|not a SentencePiece model)"
        ):
            Tokenizer(path)
    for token in (-1, 656, 10**6):
        with pytest.raises(ValueError, match=rf"token {token} at place 1 is not in 0\.\.655"):
            tokenizer.decode([300, token])
    with pytest.raises(ValueError, match="surrogates not allowed"):
        tokenizer.encode_batch(["fine", "not \ud800"])


def test_a_model_with_a_piece_that_is_not_utf8_is_refused(tokenizer):
    """A case from benchmarks/fuzz.py."""
    piece = tokenizer.model_bytes.index("\u2581".encode(), 2000)
    damaged = bytearray(tokenizer.model_bytes)
    damaged[piece + 1] ^= 0x80
    with pytest.raises(DataError, match=r"^a\.model: is not a SentencePiece model \(a piece is not UTF-8"):
        Tokenizer.from_bytes(bytes(damaged), "a.model")
