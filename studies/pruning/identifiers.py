"""Windows of Python code that score identifiers whose last occurrence is far back in the context."""

import io
import keyword
import tokenize
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Int, Int32

from birdie_jax.errors import ConfigError
from birdie_jax.pruning_cost.study import HeldOutWindows
from birdie_jax.text import Tokenizer
from studies.pruning.plans import Identifiers

# Shorter names are mostly of loops and modules, which are seen everywhere.
_LEAST_CHARACTERS = 4


class _Place(NamedTuple):
    """An identifier in the tokens of a document.

    Attributes:
        name: the identifier.
        begin: the index of its first token.
        end: the index after its last token.
    """

    name: str
    begin: int
    end: int


def identifier_windows(
    documents: Iterator[Int32[np.ndarray, " tokens"]],
    tokenizer: Tokenizer,
    plan: Identifiers,
    *,
    context: int,
    continuation: int,
) -> HeldOutWindows:
    """Return all windows that end with the first tokens of an identifier which is far back.

    Args:
        documents: the tokens of each document; those that are not Python are ignored.
        tokenizer: the tokenizer of the documents.
        plan: the distances from the identifier to its last occurrence.
        context: the number of tokens before the identifier.
        continuation: the number of scored tokens; other identifiers have fewer.

    Raises:
        ConfigError: there are no such identifiers.
    """
    windows, owners = [], []
    for number, tokens in enumerate(documents):
        seen: dict[str, int] = {}
        for name, begin, end in _places(tokens, tokenizer):
            distance = begin - seen.get(name, -len(tokens))
            seen[name] = begin
            far = plan.nearest <= distance <= min(plan.farthest, context)
            if far and begin >= context and end - begin >= continuation:
                windows.append(tokens[begin - context : begin + continuation])
                owners.append(number)
    if not windows:
        raise ConfigError(
            f"--text: found no identifier that a context of {context} tokens has {plan.nearest} to "
            f"{plan.farthest} tokens back; allowed: Python code, such as `stdlib`"
        )
    return HeldOutWindows(np.stack(windows), np.array(owners, np.int64), continuation)


def draw_windows(windows: HeldOutWindows, count: int, seed: int) -> HeldOutWindows:
    """Return `count` of the windows, or all if there are fewer, in their order."""
    chosen = np.sort(np.random.default_rng(seed).permutation(len(windows.tokens))[:count])
    return windows._replace(tokens=windows.tokens[chosen], documents=windows.documents[chosen])


def _places(tokens: Int[np.ndarray, " tokens"], tokenizer: Tokenizer) -> Iterator[_Place]:
    """Yield the identifiers of a document whose first and last tokens have no characters of others."""
    text = tokenizer.decode(tokens)
    again, offsets = tokenizer.encode_with_offsets(text)
    if not np.array_equal(again, tokens):
        return
    for name, start in _names(text):
        begin = int(np.searchsorted(offsets[:, 1], start, side="right"))
        last = int(np.searchsorted(offsets[:, 1], start + len(name), side="left"))
        # The space before an identifier belongs to its first token.
        alone = not text[offsets[begin, 0] : start].strip()
        if alone and last < len(tokens) and offsets[last, 1] == start + len(name):
            yield _Place(name, begin, last + 1)


def _names(text: str) -> Iterator[tuple[str, int]]:
    """Yield the identifiers of Python code in their order, and the index of their first character."""
    # These are the lines that `tokenize` counts; `splitlines` also ends one at a form feed.
    lines = list(io.StringIO(text))
    starts = np.cumsum([0, *map(len, lines)])
    try:
        for token in tokenize.generate_tokens(iter(lines).__next__):
            row, column = token.start
            name = token.string
            is_name = token.type == tokenize.NAME and not keyword.iskeyword(name)
            if is_name and len(name) >= _LEAST_CHARACTERS:
                yield name, int(starts[row - 1]) + column
    except (tokenize.TokenError, SyntaxError):
        return
