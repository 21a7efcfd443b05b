"""Tokens that arrive a few at a time become text that is shown at once and never has to be taken back."""

from collections.abc import Iterable, Sequence

from birdie_jax.text import Tokenizer
from birdie_jax.vocabulary import NUM_SPECIAL_TOKENS, special_token_name

# What stands for bytes that are not, or not yet, a character.
_REPLACEMENT = "\ufffd"


class TextStream:
    """The text of one answer: all that was returned, joined, is `tokenizer.decode` of all tokens.

    A character whose bytes are several tokens is held back until it is whole. Each call costs time in
    proportion to the tokens that are new.
    """

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        # Tokens shown last: a piece after them may be written otherwise than at the beginning of a text.
        self._before: list[int] = []
        self._held: list[int] = []

    def push(self, tokens: Iterable[int]) -> str:
        """Take in further tokens; return the text that is certain now."""
        parts = []
        for token in tokens:
            if token >= NUM_SPECIAL_TOKENS:
                self._held.append(token)
            else:
                parts += [self._settle(), special_token_name(token)]
                self._before = []
        text = self._new_text()
        if not text.endswith(_REPLACEMENT):
            parts.append(self._settle())
        return "".join(parts)

    def finish(self) -> str:
        """Return what was held back: no token follows."""
        return self._settle()

    def _new_text(self) -> str:
        shown = self._tokenizer.decode(self._before)
        return self._tokenizer.decode(self._before + self._held)[len(shown) :]

    def _settle(self) -> str:
        text = self._new_text()
        # Pieces that gave no text, such as a space at the very beginning, may still matter to the next.
        self._before = self._held if text else self._before + self._held
        self._held = []
        return text


class StopStrings:
    """Cuts a text before the first of some strings, wherever its parts begin and end.

    Attributes:
        found: the string that ended the text, or None.
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
        """Take in further text; return what certainly precedes every stop string."""
        if self.found is not None:
            return ""
        text = self._held + text
        places = [(text.find(string), -len(string), string) for string in self._strings if string in text]
        if places:
            place, _, self.found = min(places)
            self._held = ""
            return text[:place]
        keep = max((_overlap(text, string) for string in self._strings), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """Return what was held back: no text follows."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, string: str) -> int:
    """Length of the longest end of `text` that is a beginning of `string`, but not all of it."""
    for length in range(min(len(text), len(string) - 1), 0, -1):
        if text.endswith(string[:length]):
            return length
    return 0
