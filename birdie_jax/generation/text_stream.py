"""Streamed tokens as text: every part is final when it is returned."""

from collections.abc import Iterable, Sequence

from birdie_jax.text import Tokenizer
from birdie_jax.vocabulary import NUM_SPECIAL_TOKENS, special_token_name

# What stands for bytes that are not, or not yet, a character.
_REPLACEMENT = "\ufffd"


class TextStream:
    """The text of one answer: the returned parts, joined, are `tokenizer.decode` of all tokens.

    A character whose bytes are several tokens is held back until it is complete. Each call costs time in
    proportion to the new tokens.
    """

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        # The tokens returned last: the next piece may decode differently than at the beginning of a text.
        self._context: list[int] = []
        self._held: list[int] = []

    def push(self, tokens: Iterable[int]) -> str:
        """Add tokens; return the text that is final now."""
        parts = []
        for token in tokens:
            if token >= NUM_SPECIAL_TOKENS:
                self._held.append(token)
            else:
                parts += [self._flush(), special_token_name(token)]
                self._context = []
        text = self._new_text()
        if not text.endswith(_REPLACEMENT):
            parts.append(self._flush())
        return "".join(parts)

    def finish(self) -> str:
        """Return what was held back: no token follows."""
        return self._flush()

    def _new_text(self) -> str:
        returned = self._tokenizer.decode(self._context)
        return self._tokenizer.decode(self._context + self._held)[len(returned) :]

    def _flush(self) -> str:
        text = self._new_text()
        # Pieces that gave no text, such as a space at the very beginning, may still matter to the next.
        self._context = self._held if text else self._context + self._held
        self._held = []
        return text


class StopStrings:
    """Cuts a text before the first of some strings, wherever its parts begin and end.

    Attributes:
        found: the string that ended the text; None so far.
    """

    def __init__(self, strings: Sequence[str]):
        """Look for `strings`.

        Raises:
            ValueError: one of them is empty.
        """
        if "" in strings:
            raise ValueError("stop string: found ''; allowed: text of at least one character")
        self._strings = tuple(strings)
        self._held = ""
        self.found: str | None = None

    def push(self, text: str) -> str:
        """Add text; return the part that is certain to precede every stop string."""
        if self.found is not None:
            return ""
        text = self._held + text
        matches = [(text.find(string), -len(string), string) for string in self._strings if string in text]
        if matches:
            position, _, self.found = min(matches)
            self._held = ""
            return text[:position]
        held = max((_overlap(text, string) for string in self._strings), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def finish(self) -> str:
        """Return what was held back: no text follows."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, string: str) -> int:
    """Return the length of the longest suffix of `text` that is a proper prefix of `string`."""
    for length in range(min(len(text), len(string) - 1), 0, -1):
        if text.endswith(string[:length]):
            return length
    return 0
