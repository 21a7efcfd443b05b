"""The likelihood of given continuations after a prompt, and of whole texts."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32

from birdie_jax.generation.decoding import PromptBatch
from birdie_jax.generation.generator import Generator
from birdie_jax.generation.prompt import Prompt, pad_prompts, power_of_two, prompt_as_read, text_start
from birdie_jax.generation.scoring import (
    PromptState,
    TextChunk,
    TextState,
    read_prompts,
    read_texts,
    score_choices,
)
from birdie_jax.models.registry import mixer_config
from birdie_jax.vocabulary import PADDING

# The number of positions of a text to read at a time, and the minimum to compile for.
_CHUNK = 512
_MIN_CHUNK = 32


class Likelihood(NamedTuple):
    """The likelihood of a continuation.

    Attributes:
        log_likelihood: the natural logarithm of its probability, the sum over its tokens.
        tokens: the number of its tokens.
        is_greedy: whether each of its tokens is the most probable one.
    """

    log_likelihood: float
    tokens: int
    is_greedy: bool


class _Window(NamedTuple):
    """A part of a text that is read separately.

    Attributes:
        tokens: int32 [length], the tokens to read.
        targets: int32 [length], the token that follows each of them.
        first_scored: the index of the first target that is scored.
    """

    tokens: np.ndarray
    targets: np.ndarray
    first_scored: int


class Scorer:
    """Scores given texts with a generator's model, on its devices.

    Probabilities come from the softmax over the whole embedding table, as in training, except for ids that
    the model's configuration excludes.
    """

    def __init__(self, generator: Generator):
        """Use the model, parameters and devices of `generator`."""
        self._generator = generator
        config = generator.model.config
        self._text_start = text_start(config)

    def score(
        self, prompts: Sequence[Prompt], continuations: Sequence[Sequence[np.ndarray]]
    ) -> list[list[Likelihood]]:
        """Return the likelihood of each continuation of each prompt.

        The model reads the prompts once, as one batch; each continuation starts from its prompt's cache.
        For every model the result equals that of one pass over prompt and continuation, except for
        rounding.

        Args:
            prompts: at least one prompt.
            continuations: for each prompt, its continuations, int32 [tokens] each; one without tokens has
                probability 1.

        Raises:
            ValueError: the numbers of prompts and of lists of continuations differ.
        """
        found = [[Likelihood(0.0, 0, True)] * len(own) for own in continuations]
        # Longest first, to read texts of similar lengths together.
        orders = [
            sorted((number for number in range(len(own)) if len(own[number])), key=lambda n: -len(own[n]))
            for _, own in zip(prompts, continuations, strict=True)
        ]
        longest = max((len(tokens) for own in continuations for tokens in own), default=0)
        if longest == 0:
            return found
        state = self._read(prompts, power_of_two(longest))
        first = 0
        for count in _powers(max(map(len, orders))):
            slots = [order[first : first + count] for order in orders]
            self._score_slots(state, continuations, slots, count, found)
            first += count
        return found

    def _read(self, prompts: Sequence[Prompt], room: int) -> PromptState:
        generator = self._generator
        prompts = [prompt_as_read(prompt, generator.model.config) for prompt in prompts]
        room = room if generator.cache_grows else 0
        batch = PromptBatch(
            *map(generator.programs.put_rows, pad_prompts(prompts, power_of_two(len(prompts))))
        )
        read = generator.programs.compile(
            "read prompts", room, partial(read_prompts, generator.model, room), batch
        )
        return read(generator.params, batch)

    def _score_slots(
        self,
        state: PromptState,
        continuations: Sequence[Sequence[np.ndarray]],
        slots: Sequence[Sequence[int]],
        count: int,
        found: list[list[Likelihood]],
    ) -> None:
        """Score, for each prompt, at most `count` continuations, with the numbers in `slots`."""
        generator, rows = self._generator, len(state.hidden)
        lengths = np.zeros((rows, count), np.int32)
        for row, numbers in enumerate(slots):
            lengths[row, : len(numbers)] = [len(continuations[row][number]) for number in numbers]
        tokens = np.full((rows, count, power_of_two(int(lengths.max()))), PADDING, np.int32)
        for row, numbers in enumerate(slots):
            for slot, number in enumerate(numbers):
                tokens[row, slot, : lengths[row, slot]] = continuations[row][number]
        given = (state, generator.programs.put_rows(tokens), generator.programs.put_rows(lengths))
        scores = generator.programs.compile("score", 0, partial(score_choices, generator.model), *given)(
            generator.params, *given
        )
        log_likelihoods, greedy = map(np.asarray, scores)
        for row, numbers in enumerate(slots):
            for slot, number in enumerate(numbers):
                found[row][number] = Likelihood(
                    float(log_likelihoods[row, slot]), int(lengths[row, slot]), bool(greedy[row, slot])
                )

    def text_losses(
        self,
        tokens: Sequence[np.ndarray],
        *,
        window: int | None = None,
        stride: int | None = None,
        rows: int = 8,
    ) -> list[Float32[np.ndarray, " tokens"]]:
        """Return the loss of each token of each text, in nats, read causally from a start token.

        The model reads a text in chunks, from its cache. If the cache does not grow, memory is constant for
        a text of any length, and the model predicts every token from all tokens before it.

        Args:
            tokens: the tokens of each text, int32 [tokens].
            window: the maximum number of tokens in a window; the model reads each window without memory of
                earlier ones. None: the generator's limit for a model with attention, otherwise no limit.
            stride: the number of new targets in each window after the first, from 1 to `window`; earlier
                targets are read but not scored again. None: `window`. The last window of a text is a whole
                one too.
            rows: the maximum number of windows to read at a time.

        Raises:
            ValueError: window, stride or rows is out of range.
        """
        if window is None and mixer_config(self._generator.model.config).has_attention:
            window = self._generator.max_length
        _require(rows >= 1, "rows", rows, "at least 1")
        _require(window is None or window >= 1, "window", window, "at least 1")
        allowed = "none without a window" if window is None else f"from 1 to the window, {window}"
        _require(
            stride is None or (window is not None and 1 <= stride <= window), "stride", stride, allowed
        )
        windows = [
            (number, part)
            for number, text in enumerate(tokens)
            for part in _windows(np.asarray(text, np.int32), self._text_start, window, stride or window)
        ]
        order = sorted(range(len(windows)), key=lambda index: -len(windows[index][1].tokens))
        losses: dict[int, np.ndarray] = {}
        for first in range(0, len(order), rows):
            batch = order[first : first + rows]
            losses |= dict(zip(batch, self._read_windows([windows[i][1] for i in batch]), strict=True))
        parts: list[list[np.ndarray]] = [[np.empty(0, np.float32)] for _ in tokens]
        for index, (number, part) in enumerate(windows):
            parts[number].append(losses[index][part.first_scored :])
        return [np.concatenate(own) for own in parts]

    def _read_windows(self, windows: Sequence[_Window]) -> list[np.ndarray]:
        """Return the losses of the windows; the first window must be the longest."""
        generator = self._generator
        longest = len(windows[0].tokens)
        length = min(_CHUNK, max(_MIN_CHUNK, power_of_two(longest)))
        chunks = -(-longest // length)
        rows = power_of_two(len(windows))
        # A power of two, to compile for few sizes of growing caches.
        cache = generator.programs.empty_cache(generator.model, rows, length * power_of_two(chunks))
        found: list[np.ndarray] = []
        waiting: TextState | None = None
        for number in range(chunks):
            chunk = TextChunk(
                *map(generator.programs.put_rows, _chunk(windows, rows, number * length, length))
            )
            function = partial(read_texts, generator.model)
            read = generator.programs.compile("texts", 0, function, cache, chunk, donate=True)
            state = read(generator.params, cache, chunk)
            cache = state.cache
            # The host reads one chunk behind: the device never waits, and at most two chunks are in memory.
            if waiting is not None:
                found.append(np.asarray(waiting.losses))
            waiting = state
        if waiting is not None:
            found.append(np.asarray(waiting.losses))
        whole = np.concatenate(found, axis=1)
        return [whole[row, : len(window.tokens)] for row, window in enumerate(windows)]


def _powers(count: int) -> Iterator[int]:
    """Yield powers of two, at most 8, largest first, that add up to `count`.

    A prompt's caches are repeated for its choices, and at most 8 are scored at a time, to limit memory.
    """
    while count:
        power = min(8, 1 << (count.bit_length() - 1))
        yield power
        count -= power


def _windows(text: np.ndarray, start: int, window: int | None, stride: int | None) -> Iterator[_Window]:
    """Yield the windows of a text after `start`; their scored targets are the text."""
    tokens = np.concatenate([np.array([start], np.int32), text[:-1]])
    scored = 0
    while scored < len(text):
        advance = window if scored == 0 else stride
        end = len(text) if advance is None else min(scored + advance, len(text))
        begin = 0 if window is None else max(0, end - window)
        yield _Window(tokens[begin:end], text[begin:end], scored - begin)
        scored = end


def _chunk(windows: Sequence[_Window], rows: int, first: int, length: int) -> tuple[np.ndarray, ...]:
    """Return the positions of each window, from `first`, as the fields of a `TextChunk`."""
    tokens = np.full((rows, length), PADDING, np.int32)
    targets = np.full((rows, length), PADDING, np.int32)
    scored = np.zeros((rows, length), bool)
    for row, window in enumerate(windows):
        own = window.tokens[first : first + length]
        tokens[row, : len(own)] = own
        targets[row, : len(own)] = window.targets[first : first + length]
        scored[row, : len(own)] = np.arange(first, first + len(own)) >= window.first_scored
    return tokens, targets, scored, np.full(rows, first == 0)


def _require(ok: bool, field: str, value: int | None, allowed: str) -> None:
    if not ok:
        raise ValueError(f"{field}: found {value}; allowed: {allowed}")
