"""The fixed block of special token ids at the start of every vocabulary.

Ids 0..255 are special in every vocabulary, and piece p of a SentencePiece model is token p + 256. So no
text can produce a special id, any SentencePiece model works unchanged, and objectives need no tokenizer.
The numbers are part of every saved checkpoint and token shard: add names, never renumber.
"""

NUM_SPECIAL_TOKENS = 256

PADDING = 0
START = 1  # "begin generating": closes the context, opens the target (paper, appendix E.1)
END = 2  # the answer, or the document, is complete
MASK = 3  # replaces a token in masked language modelling

# Delimiters of selective copying (paper, Table 1).
SPAN_START = 8
SPAN_END = 9
CONTEXT = 10
SEPARATOR = 11
DONE = 12

# Fill-in-the-middle parts.
MIDDLE_PREFIX = 16
MIDDLE_SUFFIX = 17
MIDDLE = 18

# The first token of the context names the objective.
PREFIX_LM = 24
SPAN_CORRUPTION = 25
FULL_SPAN_CORRUPTION = 26
FULL_SPAN_CORRUPTION_DESHUFFLING = 27
DESHUFFLING = 28
COPYING = 29
SELECTIVE_COPYING = 30
MASKED_LM = 31
UL2_REGULAR = 32  # UL2's R-, S- and X-denoisers
UL2_SEQUENTIAL = 33
UL2_EXTREME = 34

FIRST_SENTINEL = 64
NUM_SENTINELS = NUM_SPECIAL_TOKENS - FIRST_SENTINEL

_NAMES = {
    PADDING: "[PAD]",
    START: "[BEGIN]",
    END: "[EOS]",
    MASK: "[MASK]",
    SPAN_START: "[START]",
    SPAN_END: "[END]",
    CONTEXT: "[CONTEXT]",
    SEPARATOR: "[SEP]",
    DONE: "[DONE]",
    MIDDLE_PREFIX: "[PREFIX]",
    MIDDLE_SUFFIX: "[SUFFIX]",
    MIDDLE: "[MIDDLE]",
    PREFIX_LM: "[PREFIX_LM]",
    SPAN_CORRUPTION: "[SPAN_CORRUPTION]",
    FULL_SPAN_CORRUPTION: "[FULL_SPAN_CORRUPTION]",
    FULL_SPAN_CORRUPTION_DESHUFFLING: "[FULL_SPAN_CORRUPTION_DESHUFFLING]",
    DESHUFFLING: "[DESHUFFLING]",
    COPYING: "[COPY]",
    SELECTIVE_COPYING: "[SELECTIVE_COPY]",
    MASKED_LM: "[MASKED_LM]",
    UL2_REGULAR: "[R]",
    UL2_SEQUENTIAL: "[S]",
    UL2_EXTREME: "[X]",
}


def special_token_name(token: int) -> str:
    """Return the readable name of special id `token` (0..255), such as `[COPY]` or `[MASK_3]`.

    Raises:
        ValueError: `token` is not a special id.
    """
    if not 0 <= token < NUM_SPECIAL_TOKENS:
        raise ValueError(f"token {token} is not special: special ids are 0..{NUM_SPECIAL_TOKENS - 1}")
    if token >= FIRST_SENTINEL:
        return f"[MASK_{token - FIRST_SENTINEL}]"
    return _NAMES.get(token, f"[SPARE_{token}]")


def special_token_id(name: str) -> int:
    """Return the id of the special token with a readable name, such as 12 for `[DONE]`.

    Raises:
        ValueError: no special token has that name.
    """
    for token in range(NUM_SPECIAL_TOKENS):
        if special_token_name(token) == name:
            return token
    raise ValueError(
        f"found {name!r}; allowed: {', '.join(_NAMES.values())}, [MASK_0] to [MASK_{NUM_SENTINELS - 1}]"
    )


def padded_vocab_size(num_pieces: int) -> int:
    """Return the rows of the embedding table for `num_pieces` pieces: a multiple of 128."""
    return -(-(num_pieces + NUM_SPECIAL_TOKENS) // 128) * 128
