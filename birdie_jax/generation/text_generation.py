"""Answers as text, streamed while they are generated."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from birdie_jax.generation.generator import Generator
from birdie_jax.generation.prompt import Prompt
from birdie_jax.models.saved_state import SavedState
from birdie_jax.text import Tokenizer
from birdie_jax.vocabulary import NUM_SPECIAL_TOKENS, special_token_name

# Replaces bytes that are not, or not yet, a character.
_REPLACEMENT = "\ufffd"


class TextStream:
    """Streams the text of one answer; the returned parts join to `tokenizer.decode` of all tokens.

    The stream holds back a character of several tokens until it is complete. The time of a call is
    proportional to the number of new tokens.
    """

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        # The last returned tokens: the next piece may decode differently at the beginning of a text.
        self._context: list[int] = []
        self._held: list[int] = []

    def push(self, tokens: Iterable[int]) -> str:
        """Add tokens and return the new final text."""
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
        """Return the text held back; no tokens may follow."""
        return self._flush()

    def _new_text(self) -> str:
        returned = self._tokenizer.decode(self._context)
        return self._tokenizer.decode(self._context + self._held)[len(returned) :]

    def _flush(self) -> str:
        text = self._new_text()
        # Pieces without text, such as a space at the beginning of a text, may change the next piece.
        self._context = self._held if text else self._context + self._held
        self._held = []
        return text


class StopStrings:
    """Cuts a streamed text before the first stop string, also across the boundaries of its parts.

    Attributes:
        found: the string that ended the text; None until then.
    """

    def __init__(self, strings: Sequence[str]):
        """Prepare to look for `strings`.

        Raises:
            ValueError: a string is empty.
        """
        if "" in strings:
            raise ValueError("stop string: found ''; allowed: text of at least one character")
        self._strings = tuple(strings)
        self._held = ""
        self.found: str | None = None

    def push(self, text: str) -> str:
        """Add text and return the part that precedes every possible stop string."""
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
        """Return the text held back; no text may follow."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, string: str) -> int:
    """Return the length of the longest suffix of `text` that is a proper prefix of `string`."""
    for length in range(min(len(text), len(string) - 1), 0, -1):
        if text.endswith(string[:length]):
            return length
    return 0


class TextAnswer(NamedTuple):
    """An answer as text.

    Attributes:
        text: the answer's text, without the stop token or stop string.
        tokens: the number of generated tokens, including the stop token or stop string.
        stopped_by: the name of the stop token, the stop string, or "max_tokens".
    """

    text: str
    tokens: int
    stopped_by: str


class _UnfinishedAnswer:
    """An answer that is not complete yet."""

    def __init__(self, tokenizer: Tokenizer, stop_strings: Sequence[str]):
        self._stream, self._stops = TextStream(tokenizer), StopStrings(stop_strings)
        self._parts: list[str] = []
        self.tokens = 0
        self.stopped_by: str | None = None

    def push(self, tokens: np.ndarray, stop_tokens: Sequence[int]) -> str:
        """Add tokens one by one, so the answer ends at the same token for chunks of any size."""
        new = []
        for token in tokens.tolist():
            if self.stopped_by is not None:
                break
            self.tokens += 1
            if token in stop_tokens:
                self.stopped_by = special_token_name(token) if token < NUM_SPECIAL_TOKENS else str(token)
                break
            new.append(self._stops.push(self._stream.push([token])))
            self.stopped_by = self._stops.found
        self._parts.append("".join(new))
        return self._parts[-1]

    def finish(self) -> str:
        """Return the text held back."""
        rest = ""
        if self._stops.found is None:
            rest = self._stops.push(self._stream.finish()) + self._stops.finish()
            self.stopped_by = self._stops.found or self.stopped_by
        self._parts.append(rest)
        return rest

    def result(self) -> TextAnswer:
        return TextAnswer("".join(self._parts), self.tokens, self.stopped_by or "max_tokens")


def generate_texts(
    generator: Generator,
    tokenizer: Tokenizer,
    prompts: Sequence[Prompt],
    *,
    max_tokens: int,
    seeds: Sequence[int],
    stop_strings: Sequence[str] = (),
    show: Callable[[int, str], None] | None = None,
    state: SavedState | None = None,
) -> list[TextAnswer]:
    """Return answers to a batch of prompts.

    Args:
        generator: the generator of the model.
        tokenizer: the model's tokenizer.
        prompts: at least one prompt.
        max_tokens: the maximum number of tokens in each answer.
        seeds: the random seed of each answer.
        stop_strings: an answer ends before the first of these strings.
        show: called with a prompt's index and the new final text of its answer.
        state: the state that every prompt continues; None: each prompt begins a sample.

    Raises:
        ValueError: a stop string is empty.
    """
    answers = [_UnfinishedAnswer(tokenizer, stop_strings) for _ in prompts]
    ended = np.zeros(len(prompts), bool)
    count = len(prompts)
    states = None if state is None else [state] * count
    for chunk in generator.generate_chunks(prompts, [max_tokens] * count, seeds, ended, states):
        for number, tokens in enumerate(chunk):
            text = answers[number].push(tokens, generator.stop_tokens)
            ended[number] = answers[number].stopped_by is not None
            if show is not None and text:
                show(number, text)
    for number, answer in enumerate(answers):
        rest = answer.finish()
        if show is not None and rest:
            show(number, rest)
    return [answer.result() for answer in answers]
