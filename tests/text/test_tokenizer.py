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
def unigram(make_module_texts):
    return train_tokenizer(make_module_texts, 330, tokenizer_type="unigram")


@pytest.fixture(scope="module")
def make_module_texts():
    generator = random.Random(1)
    syllables = [a + b for a in "bcdfglmnprst" for b in "aeiou"]
    return [
        " ".join("".join(generator.choices(syllables, k=3)) for _ in range(200)) + "\n    x\n"
        for _ in range(30)
    ]


@pytest.fixture(scope="module")
def english_like_model():
    """A model that is not ours: SentencePiece's defaults, which normalise text and have no bytes."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["hello world how are you today"] * 20),
        model_writer=model,
        vocab_size=40,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return model.getvalue()


@given(text=st.text())
def test_any_text_comes_back_exactly(tokenizer, unigram, text):
    for one in (tokenizer, unigram):
        assert one.decode(one.encode(text)) == text


@given(text=st.text(alphabet=" \n\t\r\u2581\u00a0\u0000a<s>[COPY]é漢😀\u2028", max_size=60))
def test_layout_and_awkward_characters_come_back_exactly(tokenizer, unigram, text):
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
    assert tokenizer.encode(text).tolist() == [piece + 256 for piece in processor.encode(text)]


def test_indentation_and_line_ends_are_single_tokens(tokenizer):
    assert len(tokenizer.encode("    ")) == 1
    assert len(tokenizer.encode(" " * 8)) == 1
    assert len(tokenizer.encode("\n\n")) == 1
    assert len(tokenizer.encode("\t")) == 1


def test_batch_equals_one_by_one_on_any_number_of_threads(tokenizer):
    batch = ["", "one", "two \u2581 marks \u2581\u2581", " \n"]
    for threads in (1, 2):
        encoded = tokenizer.encode_batch(batch, num_threads=threads)
        assert [tokens.tolist() for tokens in encoded] == [
            tokenizer.encode(text).tolist() for text in batch
        ]
    assert tokenizer.encode_batch([]) == []


def test_encoded_arrays_can_be_written(tokenizer):
    tokens = tokenizer.encode("the river")
    tokens[0] = 300
    assert tokens[0] == 300


def test_special_ids_are_written_by_name(tokenizer):
    ids = [COPYING, *tokenizer.encode(" the river").tolist(), START, PADDING]
    assert tokenizer.decode(ids) == "[COPY] the river[BEGIN][PAD]"
    assert tokenizer.decode(np.array([], np.int32)) == ""


@pytest.mark.parametrize("token", [-1, 656, 10**6])
def test_unknown_id_is_refused(tokenizer, token):
    with pytest.raises(ValueError, match=rf"token {token} at place 1 is not in 0\.\.655"):
        tokenizer.decode([300, token])


def test_sizes(tokenizer):
    assert tokenizer.num_pieces == 400
    assert tokenizer.vocab_size == padded_vocab_size(400) == 768


def test_lone_surrogate_is_refused(tokenizer):
    with pytest.raises(ValueError, match="surrogates not allowed"):
        tokenizer.encode_batch(["fine", "not \ud800"])


def test_saved_pickled_and_shared_alike(tokenizer, model_path):
    loaded = Tokenizer(model_path)
    copied = pickle.loads(pickle.dumps(loaded))
    assert loaded.sha256 == copied.sha256 == tokenizer.sha256
    assert loaded.name == copied.name == str(model_path)
    text = "the bright river " * 50
    expected = tokenizer.encode(text).tolist()
    with ThreadPoolExecutor(4) as threads:
        assert all(tokens.tolist() == expected for tokens in threads.map(copied.encode, [text] * 40))


def test_any_model_serves(english_like_model):
    tokenizer = Tokenizer.from_bytes(english_like_model, "theirs")
    tokens = tokenizer.encode("hello  world \u2581 <s>")
    assert tokens.min() >= NUM_SPECIAL_TOKENS
    # Their normalisation, not ours: they join runs of spaces.
    assert tokenizer.decode(tokenizer.encode("hello  world")) == "hello world"


@pytest.mark.parametrize("contents", [b"", b"not a model" * 50, b"PK\x03\x04"])
def test_a_file_that_is_no_model_is_named(tmp_path, contents):
    path = tmp_path / "bad.model"
    path.write_bytes(contents)
    with pytest.raises(DataError, match=re.escape(str(path)) + ": is (empty|not a SentencePiece model)"):
        Tokenizer(path)


def test_truncated_model_is_named(tmp_path, tokenizer):
    path = tmp_path / "cut.model"
    path.write_bytes(tokenizer.model_bytes[: len(tokenizer.model_bytes) // 2])
    with pytest.raises(DataError, match=re.escape(str(path))):
        Tokenizer(path)


def test_missing_model_is_named(tmp_path):
    with pytest.raises(DataError, match=r"none\.model: the tokenizer model cannot be read: No such file"):
        Tokenizer(tmp_path / "none.model")
