"""A Hugging Face tokenizer.json: ids follow the special ids and decode to the text."""

import json
import pickle
import sys
from functools import cache

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from birdie_jax.errors import DataError
from birdie_jax.text import Tokenizer
from birdie_jax.vocabulary import NUM_SPECIAL_TOKENS


@cache
def trained():
    """Return a byte-level BPE like GPT-NeoX's: a special token first, a run of spaces last."""
    made = tokenizers.Tokenizer(models.BPE())
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<|endoftext|>"]
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=special, initial_alphabet=alphabet)
    made.train_from_iterator(["the river of seven returns to the river"] * 20, trainer)
    made.add_tokens([tokenizers.AddedToken("    ", normalized=False)])
    made.enable_truncation(4)
    made.enable_padding()
    return made


@cache
def own_tokenizer():
    return Tokenizer.from_bytes(trained().to_str().encode(), "tokenizer.json")


@pytest.fixture
def library():
    return trained()


@pytest.fixture
def tokenizer():
    return own_tokenizer()


def test_ids_are_the_librarys_ids_after_the_special_ones(tokenizer, library):
    whole = tokenizers.Tokenizer.from_str(library.to_str())
    whole.no_truncation()
    whole.no_padding()
    text = "the river returns\n    to \u00e9 \U0001f300"
    expected = np.array(whole.encode(text).ids) + NUM_SPECIAL_TOKENS
    np.testing.assert_array_equal(tokenizer.encode(text), expected)
    np.testing.assert_array_equal(tokenizer.encode_batch(["", text])[1], expected)
    assert tokenizer.encode(text).dtype == np.int32
    assert tokenizer.num_pieces == whole.get_vocab_size()
    assert tokenizer.vocab_size == 640
    assert tokenizer.is_json


@given(st.text())
def test_decoding_returns_the_normalised_text(text):
    tokenizer = own_tokenizer()
    tokens = tokenizer.encode(text)
    normal = normalizers.NFC().normalize_str(text)
    assert tokenizer.decode(tokens) == normal
    assert tokenizer.byte_lengths()[tokens].sum() == len(normal.encode())
    # No text encodes to the end-of-text token.
    assert NUM_SPECIAL_TOKENS not in tokens


REPLACE_AND_STRIP = decoders.Sequence(
    [
        decoders.Replace("▁", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ]
)


@pytest.mark.parametrize("decoder", [REPLACE_AND_STRIP, decoders.Metaspace()], ids=["strip", "metaspace"])
def test_a_piece_has_its_bytes_inside_a_text(decoder):
    """The decoders of Llama 2 and of T5 strip the first space of a text."""
    names = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "t", "h", "▁t", "▁th"]
    made = tokenizers.Tokenizer(
        models.BPE(
            {name: number for number, name in enumerate(names)},
            [("▁", "t"), ("▁t", "h")],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoder
    tokenizer = Tokenizer.from_bytes(made.to_str().encode(), "tokenizer.json")
    text = "th  \u4e2dt th"
    tokens = tokenizer.encode(text)
    expected = {"▁": 1, "t": 1, "h": 1, "▁t": 2, "▁th": 3}
    lengths = [expected.get(names[token - NUM_SPECIAL_TOKENS], 1) for token in tokens]
    assert tokenizer.byte_lengths()[tokens].tolist() == lengths
    # The normalizer adds a space.
    assert sum(lengths) == 1 + len(text.encode())
    ordinary = [names[token - NUM_SPECIAL_TOKENS] for token in tokenizer.ordinary_tokens()]
    assert not any(name.startswith("<0x") for name in ordinary)


def test_a_sequence_may_contain_the_decoder_of_bytes(library, tokenizer):
    nested = tokenizers.Tokenizer.from_str(library.to_str())
    nested.decoder = decoders.Sequence([decoders.ByteLevel()])
    found = Tokenizer.from_bytes(nested.to_str().encode(), "tokenizer.json")
    np.testing.assert_array_equal(found.byte_lengths(), tokenizer.byte_lengths())


def test_text_like_a_special_token_stays_text(tokenizer):
    tokens = tokenizer.encode("<|endoftext|>")
    assert len(tokens) > 1
    assert tokenizer.decode(tokens) == "<|endoftext|>"
    assert tokenizer.decode([NUM_SPECIAL_TOKENS]) == "<|endoftext|>"
    assert NUM_SPECIAL_TOKENS not in tokenizer.ordinary_tokens()
    assert tokenizer.decode([12, NUM_SPECIAL_TOKENS]) == "[DONE]<|endoftext|>"


def test_offsets_count_characters(tokenizer):
    text = "river \U0001f300 of"
    tokens, offsets = tokenizer.encode_with_offsets(text)
    np.testing.assert_array_equal(tokens, tokenizer.encode(text))
    assert "".join(text[begin:end] for begin, end in offsets) == text


def test_a_tokenizer_pickles_and_its_contents_decide_its_kind(tokenizer, tmp_path):
    tokenizer.save(str(tmp_path / "tokenizer.model"))
    read = Tokenizer(str(tmp_path / "tokenizer.model"))
    assert read.sha256 == tokenizer.sha256
    np.testing.assert_array_equal(
        pickle.loads(pickle.dumps(read)).encode("river"), tokenizer.encode("river")
    )


def test_unusable_models_are_named(tokenizer, library, monkeypatch):
    with pytest.raises(ValueError, match="surrogates"):
        tokenizer.encode("\ud800")
    with pytest.raises(DataError, match=r"^x: is not a tokenizer.json \("):
        Tokenizer.from_bytes(b'{"model": 1}', "x")
    holes = json.loads(library.to_str())
    holes["model"]["vocab"]["Ġreturns"] += 7
    with pytest.raises(
        DataError, match=r"^x: has \d+ pieces with ids up to \d+; allowed: ids without a gap"
    ):
        Tokenizer.from_bytes(json.dumps(holes).encode(), "x")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(DataError, match=r"^x: is a tokenizer.json, and the library .* is not installed"):
        Tokenizer.from_bytes(library.to_str().encode(), "x")
