"""A tokenizer.json encodes like its source tokenizer, and adds the form of prompts."""

import json
import re

import pytest
import tokenizers

from birdie_jax.errors import InteropError
from birdie_jax.interop.torch_tokenizer import PromptForm, tokenizer_json
from birdie_jax.text import Tokenizer, train_tokenizer
from birdie_jax.vocabulary import MASK, PREFIX_LM, SEPARATOR, START, UL2_EXTREME, special_token_name
from tests.interop.huggingface_folders import write_random_folder
from tests.pages.page_commands import REPOSITORY

FORM = PromptForm((PREFIX_LM,), (START,))
TEXTS = [path.read_text() for path in sorted((REPOSITORY / "birdie_jax").glob("[e-i]*.py"))]
TEXTS.append("日本 é\x00\n\n\n\t  [MASK] a")


@pytest.fixture(scope="module", params=["unigram", "bpe", "json"])
def tokenizer(request, tmp_path_factory):
    if request.param == "json":
        folder = write_random_folder(tmp_path_factory.mktemp("folder") / "there", "mamba")
        return Tokenizer(str(folder / "tokenizer.json"))
    return train_tokenizer(TEXTS, 700, tokenizer_type=request.param)


def test_ids_match_the_tokenizer(tokenizer):
    described = tokenizer_json(tokenizer, FORM)
    made = tokenizers.Tokenizer.from_str(described)
    made.encode_special_tokens = True
    model = json.loads(described)["model"]

    def score(ids):
        return sum(model["vocab"][token][1] for token in ids)

    for text in TEXTS:
        # The two libraries split long runs of spaces at different places with equal scores.
        short = re.sub(" {17,}", " ", text)
        expected = tokenizer.encode(short).tolist()
        found = made.encode(short, add_special_tokens=False).ids
        if found != expected:
            # A unigram model may have two splits of a text with equal probabilities, except for rounding.
            assert model["type"] == "Unigram" and score(found) == pytest.approx(score(expected), rel=1e-6)
            differences = sum(one != other for one, other in zip(found, expected, strict=True))
            assert differences < 1e-3 * len(expected)
        assert made.encode(short).ids == [PREFIX_LM, *found, START]
        assert made.decode(expected, skip_special_tokens=False) == short


def test_special_tokens_have_their_ids(tokenizer):
    made = tokenizers.Tokenizer.from_str(tokenizer_json(tokenizer, FORM))
    for token in range(256):
        assert made.token_to_id(special_token_name(token)) == token
    assert made.encode("a[COPY]", add_special_tokens=False).ids[-1] == 29


def test_special_tokens_that_are_not_added_stay_text(tokenizer):
    """The tokenizer of an encoder reads names of added tokens as the tokens."""
    made = tokenizers.Tokenizer.from_str(tokenizer_json(tokenizer, FORM, (SEPARATOR, MASK)))
    text = "[X] done [END] [SPARE_5][MASK_3"
    expected = tokenizer.encode(text).tolist()
    assert made.encode(text, add_special_tokens=False).ids == expected
    assert made.encode(text + "[MASK]").ids == [PREFIX_LM, *expected, MASK, START]
    assert made.decode([SEPARATOR, *expected, MASK]) == text
    assert made.token_to_id("[X]") == UL2_EXTREME


def test_a_normalising_tokenizer_is_refused(tokenizer):
    if tokenizer.is_json:
        return
    proto = __import__("sentencepiece.sentencepiece_model_pb2").sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(tokenizer.model_bytes)
    proto.normalizer_spec.remove_extra_whitespaces = True
    with pytest.raises(InteropError, match=r"^spaces: normalises text by 'identity'"):
        tokenizer_json(Tokenizer.from_bytes(proto.SerializeToString(), "spaces"), FORM)


def test_a_piece_with_the_name_of_a_special_token_is_refused(tokenizer):
    if not tokenizer.is_json:
        return
    described = json.loads(tokenizer.model_bytes)
    piece = next(iter(described["model"]["vocab"]))
    text = tokenizer.model_bytes.decode().replace(json.dumps(piece), '"[MASK]"')
    with pytest.raises(
        InteropError, match=re.escape("named: found the piece '[MASK]'; allowed for a tokeni")
    ):
        tokenizer_json(Tokenizer.from_bytes(text.encode(), "named"), FORM)
