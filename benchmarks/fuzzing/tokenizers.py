"""Tokenizers: SentencePiece models and tokenizer.json files with changed bytes and values."""

import json
import random
from pathlib import Path

from benchmarks.fuzzing.cases import Case, Wrong
from benchmarks.fuzzing.mutations import mutate_bytes, mutate_json
from benchmarks.fuzzing.valid_files import HUGGINGFACE, MODEL, TEXTS

_NAME = "mutated"


def make_tokenizer_case(draws: random.Random, folder: Path, valid: Path) -> Case:
    """Return a case: a changed file of a tokenizer. The program loads and uses the tokenizer."""
    is_json = draws.random() < 0.4
    path = folder / f"{_NAME}.model"
    original = (valid / HUGGINGFACE / "tokenizer.json" if is_json else valid / MODEL).read_bytes()
    match draws.randrange(8):
        case 0 | 1 | 2 | 3 if is_json:
            data = mutate_json(draws, json.loads(original), draws.randint(1, 3)).encode("utf-8", "replace")
            done = "values changed"
        case 4:
            data, done = mutate_bytes(draws, original, 200), "many bytes changed"
        case 5 if not is_json:
            # A model file starts with its pieces and ends with its settings.
            data = original[:-400] + mutate_bytes(draws, original[-400:])
            done = "bytes of the settings changed"
        case 6 if draws.random() < 0.3:
            data, done = original, "valid"
        case _:
            data, done = mutate_bytes(draws, original), "bytes changed"
    path.write_bytes(data)

    def run() -> str:
        from birdie_jax.text import Tokenizer

        tokenizer = Tokenizer(path)
        lengths, ordinary = tokenizer.byte_lengths(), tokenizer.ordinary_tokens()
        end = 256 + tokenizer.num_pieces
        if len(lengths) != end or lengths.min() < 0 or (len(ordinary) and ordinary.max() >= end):
            raise Wrong(f"{len(lengths)} lengths of {end} ids")
        texts = [*TEXTS, "a" * 5000, "\u2581a\u2581", ""]
        for text, tokens in zip(texts, tokenizer.encode_batch(texts), strict=True):
            if len(tokens) and not 256 <= tokens.min() <= tokens.max() < end:
                raise Wrong(f"{text!r} gives ids outside of 256..{end - 1}")
            tokenizer.decode(tokens)
            again, offsets = tokenizer.encode_with_offsets(text)
            if len(offsets) != len(again) or (len(offsets) and offsets.max() > len(text)):
                raise Wrong(f"{text!r} gives {len(offsets)} places, up to {offsets.max()}")
        return f"{tokenizer.num_pieces} pieces"

    return Case(f"{'tokenizer.json' if is_json else 'SentencePiece'}: {done}", (_NAME,), run)
