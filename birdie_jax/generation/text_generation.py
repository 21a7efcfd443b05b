"""Answers as text, streamed while they are generated."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from birdie_jax.generation.generator import Generator
from birdie_jax.generation.prompt import Prompt
from birdie_jax.generation.text_stream import StopStrings, TextStream
from birdie_jax.models.saved_state import SavedState
from birdie_jax.text import Tokenizer
from birdie_jax.vocabulary import NUM_SPECIAL_TOKENS, special_token_name


class TextAnswer(NamedTuple):
    """An answer as text.

    Attributes:
        text: the answer's text, without the stop token or stop string.
        tokens: the number of tokens generated, with those of the stop token or stop string.
        stopped_by: the name of the stop token, the stop string, or "max_tokens".
    """

    text: str
    tokens: int
    stopped_by: str


class _UnfinishedAnswer:
    """An answer of which tokens are still to come."""

    def __init__(self, tokenizer: Tokenizer, stop_strings: Sequence[str]):
        self._stream, self._stops = TextStream(tokenizer), StopStrings(stop_strings)
        self._parts: list[str] = []
        self.tokens = 0
        self.stopped_by: str | None = None

    def push(self, tokens: np.ndarray, stop_tokens: Sequence[int]) -> str:
        """Add tokens one by one, so that chunks of any size end the answer at the same token."""
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
        """Return what was held back."""
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
        max_tokens: the largest number of tokens of each answer.
        seeds: the random seed of each answer.
        stop_strings: strings; an answer ends before the first of them.
        show: a function that is called with a prompt's index and new, final text of its answer.
        state: the state from which every prompt goes on; None = they begin samples.

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
