"""Write a model's tokenizer as tokenizer.json, with the special ids first and piece p as token p + 256."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from birdie_jax.errors import InteropError
from birdie_jax.text import Tokenizer
from birdie_jax.text.huggingface_pieces import HuggingFacePieces
from birdie_jax.vocabulary import NUM_SPECIAL_TOKENS, special_token_name

_SPACE_MARK = "\u2581"
_PROBES = ("the river returns", "  a\n\n\tb c", "na\u00efve \u65e5\u672c", "\U0001f600")
# The score of a special token's name. Every other way to split the name has a higher score, unless one of
# its characters is not a piece.
_NEVER = -1e6
_MOST_PROBES = 256
_NAMES = [special_token_name(token) for token in range(NUM_SPECIAL_TOKENS)]
_BEGINS_A_NAME = rf"\[(?=(?:{'|'.join(name[1:-1] for name in _NAMES)})\])"


class PromptForm(NamedTuple):
    """The format of a model's prompts.

    Attributes:
        before: the special tokens before a text.
        after: the special tokens after a text.
        between: the special tokens between the two texts of a pair.
        answer: the special tokens that an answer may contain. If None, all are allowed.
    """

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    between: tuple[int, ...] = ()
    answer: tuple[int, ...] | None = None


def tokenizer_json(
    tokenizer: Tokenizer, form: PromptForm, added: Iterable[int] = range(NUM_SPECIAL_TOKENS)
) -> str:
    """Return the contents of a tokenizer.json that encodes like `tokenizer` and adds the prompt format.

    Args:
        tokenizer: the tokenizer.
        form: the format of the prompts.
        added: the special tokens that decoding can skip, and that a text can name if the reader does not
            split special tokens.

    Raises:
        InteropError: the format of tokenizer.json does not support the tokenizer.
    """
    described = _of_json(tokenizer) if tokenizer.is_json else _of_sentencepiece(tokenizer)
    described |= {"version": "1.0", "truncation": None, "padding": None}
    described["added_tokens"] = [
        {
            "id": token,
            "content": special_token_name(token),
            "special": True,
            **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False),
        }
        for token in added
    ] + described.get("added_tokens", [])
    described["post_processor"] = _template(form)
    text = json.dumps(described, ensure_ascii=False)
    _check(text, tokenizer)
    return text


def _of_json(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return a tokenizer.json whose ids begin after the special ids."""
    described = json.loads(tokenizer.model_bytes)
    model = described["model"]
    is_list = isinstance(model["vocab"], list)
    _check_names((piece for piece, _ in model["vocab"]) if is_list else model["vocab"], tokenizer.name)
    if is_list:
        model["vocab"] = [[name, _NEVER] for name in _NAMES] + model["vocab"]
        if model.get("unk_id") is not None:
            model["unk_id"] += NUM_SPECIAL_TOKENS
    else:
        moved = {piece: token + NUM_SPECIAL_TOKENS for piece, token in model["vocab"].items()}
        model["vocab"] = {name: token for token, name in enumerate(_NAMES)} | moved
    for token in described.get("added_tokens", []):
        token["id"] += NUM_SPECIAL_TOKENS
    return described


def _of_sentencepiece(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the description of a SentencePiece model."""
    # SentencePiece's description of its file format, which requires the library protobuf.
    from sentencepiece import sentencepiece_model_pb2 as description

    proto = description.ModelProto()  # pyright: ignore[reportAttributeAccessIssue] - made when imported
    proto.ParseFromString(tokenizer.model_bytes)
    _check_names((one.piece for one in proto.pieces), tokenizer.name)
    spec = proto.normalizer_spec
    if spec.precompiled_charsmap or spec.remove_extra_whitespaces:
        raise InteropError(
            f"{tokenizer.name}: normalises text by {spec.name!r}; allowed for a tokenizer.json: identity, "
            "without the removal of spaces"
        )
    normalizers: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE_MARK}
    ]
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": _SPACE_MARK}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if spec.add_dummy_prefix:
        normalizers.append({"type": "Prepend", "prepend": _SPACE_MARK})
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    is_unigram = proto.trainer_spec.model_type == proto.trainer_spec.UNIGRAM
    return {
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "decoder": {"type": "Sequence", "decoders": decoders},
        **(_unigram if is_unigram else _bpe)(proto),
    }


def _unigram(proto: Any) -> dict[str, Any]:
    """Return the model and the pre-tokenizer of a unigram model."""
    kind = type(proto.pieces[0])
    scored = [[name, _NEVER] for name in _NAMES]
    for piece in proto.pieces:
        # SentencePiece's score for user-defined pieces. Longer pieces score higher.
        always = 0.1 * (len(piece.piece.encode()) - 1)
        scored.append([piece.piece, always if piece.type == kind.USER_DEFINED else piece.score])
    model = {
        "type": "Unigram",
        "unk_id": NUM_SPECIAL_TOKENS + _unknown(proto),
        "byte_fallback": proto.trainer_spec.byte_fallback,
        "vocab": scored,
    }
    # With this pre-tokenizer, no text encodes to a special token.
    return {"model": model, "pre_tokenizer": _isolated(_BEGINS_A_NAME)}


def _bpe(proto: Any) -> dict[str, Any]:
    """Return the model and the pre-tokenizer of a BPE model."""
    kind = type(proto.pieces[0])
    tokens = {name: token for token, name in enumerate(_NAMES)}
    pieces = {one.piece: NUM_SPECIAL_TOKENS + index for index, one in enumerate(proto.pieces)}
    scores = {one.piece: float(one.score) for one in proto.pieces if one.type == kind.NORMAL}
    # SentencePiece matches these pieces before it merges, the longest first.
    always = {one.piece: -float(len(one.piece)) for one in proto.pieces if one.type == kind.USER_DEFINED}
    model = {
        "type": "BPE",
        "unk_token": proto.pieces[_unknown(proto)].piece,
        "fuse_unk": True,
        "byte_fallback": proto.trainer_spec.byte_fallback,
        "vocab": tokens | pieces,
        "merges": _merges(always, {*pieces}) + _merges(scores, {*scores}),
    }
    longest_first = sorted(always, key=len, reverse=True)
    split = _isolated("|".join(map(re.escape, longest_first))) if always else None
    return {"model": model, "pre_tokenizer": split}


def _unknown(proto: Any) -> int:
    return next(index for index, piece in enumerate(proto.pieces) if piece.type == type(piece).UNKNOWN)


def _check_names(pieces: Iterable[str], name: str) -> None:
    taken = {*_NAMES}.intersection(pieces)
    if taken:
        raise InteropError(
            f"{name}: found the piece {min(taken)!r}; allowed for a tokenizer.json: pieces that are "
            "not names of special tokens"
        )


def _isolated(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _merges(scores: Mapping[str, float], parts: set[str]) -> list[list[str]]:
    """Return the pairs of `parts` that form a piece of `scores`, in order of decreasing score."""
    found = [
        (-score, [piece[:cut], piece[cut:]])
        for piece, score in scores.items()
        for cut in range(1, len(piece))
        if piece[:cut] in parts and piece[cut:] in parts
    ]
    return [pair for _, pair in sorted(found, key=lambda one: one[0])]


def _template(form: PromptForm) -> dict[str, Any]:
    """Return the post-processor that adds the special tokens of the prompt format to a text."""

    def special(token: int) -> dict[str, Any]:
        return {"SpecialToken": {"id": special_token_name(token), "type_id": 0}}

    before, after, between = ([special(token) for token in tokens] for tokens in form[:3])
    text, second = ({"Sequence": {"id": name, "type_id": 0}} for name in ("A", "B"))
    names = {special_token_name(token): token for tokens in form[:3] for token in tokens}
    return {
        "type": "TemplateProcessing",
        "single": [*before, text, *after],
        "pair": [*before, text, *between, second, *after],
        "special_tokens": {
            name: {"id": name, "ids": [token], "tokens": [name]} for name, token in names.items()
        },
    }


def _check(text: str, tokenizer: Tokenizer) -> None:
    """Check that a tokenizer.json encodes and decodes like the tokenizer."""
    pieces = HuggingFacePieces(text.encode(), tokenizer.name)
    ordinary = tokenizer.ordinary_tokens().tolist()
    own = [tokenizer.decode([token]) for token in ordinary[:: max(1, len(ordinary) // _MOST_PROBES)]]
    for probe in (*_PROBES, *own):
        wanted, (ids,) = tokenizer.encode(probe).tolist(), pieces.encode([probe], 1)
        found = ids.tolist()
        if found != wanted:
            raise InteropError(
                f"{tokenizer.name}: its tokenizer.json gives {found} for {probe!r}, not {wanted}; "
                "allowed: a tokenizer that a tokenizer.json can represent"
            )
