"""Answers as text, shown while they are written."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from birdie_jax.generation.generator import Generator
from birdie_jax.generation.prompt import Prompt
from birdie_jax.generation.text_stream import StopStrings, TextStream
from birdie_jax.text import Tokenizer
from birdie_jax.vocabulary import special_token_name


class WrittenText(NamedTuple):
    """An answer.

    Attributes:
        text: without what ended it.
        tokens: how many were written, with those of what ended it.
        stopped_by: name of the stop token, the stop string, or "max_tokens".
    """

    text: str
    tokens: int
    stopped_by: str


class _Answer:
    """One answer under way."""

    def __init__(self, tokenizer: Tokenizer, stop_strings: Sequence[str]):
        self._stream, self._stops = TextStream(tokenizer), StopStrings(stop_strings)
        self._parts: list[str] = []
        self.tokens = 0
        self.stopped_by: str | None = None

    def push(self, tokens: np.ndarray, stop_tokens: Sequence[int]) -> str:
        """Take in tokens one by one, so that the answer ends at the same one however they are bundled."""
        new = []
        for token in tokens.tolist():
            if self.stopped_by is not None:
                break
            self.tokens += 1
            if token in stop_tokens:
                self.stopped_by = special_token_name(token) if token < 256 else str(token)
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

    def written(self) -> WrittenText:
        return WrittenText("".join(self._parts), self.tokens, self.stopped_by or "max_tokens")


def write_texts(
    generator: Generator,
    tokenizer: Tokenizer,
    prompts: Sequence[Prompt],
    *,
    max_tokens: int,
    seeds: Sequence[int],
    stop_strings: Sequence[str] = (),
    show: Callable[[int, str], None] | None = None,
) -> list[WrittenText]:
    """Write answers to a batch of prompts.

    Args:
        generator: the model.
        tokenizer: the model's.
        prompts: at least one.
        max_tokens: the most tokens of each answer.
        seeds: of each answer.
        stop_strings: an answer ends before the first of them.
        show: called with a prompt's number and new text of its answer, which is certain.

    Raises:
        ValueError: a stop string is empty.
    """
    answers = [_Answer(tokenizer, stop_strings) for _ in prompts]
    ended = np.zeros(len(prompts), bool)
    for stretch in generator.stretches(prompts, [max_tokens] * len(prompts), seeds, ended):
        for number, tokens in enumerate(stretch):
            text = answers[number].push(tokens, generator.stop_tokens)
            ended[number] = answers[number].stopped_by is not None
            if show is not None and text:
                show(number, text)
    for number, answer in enumerate(answers):
        rest = answer.finish()
        if show is not None and rest:
            show(number, rest)
    return [answer.written() for answer in answers]
