"""Answers to prompts: batches of prompts, decoded a chunk of tokens at a time."""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.stages import Compiled
from jaxtyping import Int32, Key, PyTree

from birdie_jax.generation.cache_size import cache_grows
from birdie_jax.generation.decoding import DecodeRules, DecodeSettings, PromptBatch, decode_chunk, prefill
from birdie_jax.generation.kernel_types import cast_kernels
from birdie_jax.generation.prompt import Prompt, pad_prompts, power_of_two
from birdie_jax.generation.sampling import GREEDY, Sampling
from birdie_jax.generation.timing import GenerationTimes
from birdie_jax.models import LanguageModel
from birdie_jax.models.axes import ROW_AXES
from birdie_jax.vocabulary import DONE, END, PADDING, START

STOP_TOKENS = (END, DONE)

# No target of any objective holds them.
_NEVER_GENERATED = (PADDING, START)


class PromptTooLong(ValueError):  # noqa: N818 - a verdict on a prompt
    """A prompt with its answer is longer than the model's limit."""


class Answer(NamedTuple):
    """The tokens generated for one prompt.

    Attributes:
        tokens: int32 [tokens], the answer without its stop token.
        stop_token: the token that ended the answer; None if it reached its largest length, or was ended.
    """

    tokens: Int32[np.ndarray, " tokens"]
    stop_token: int | None


class Generator:
    """A model that answers prompts, with its parameters on the devices and its compiled functions.

    Attributes:
        model: the language model.
        sampling: the rule by which tokens are chosen.
        stop_tokens: the token ids that end an answer.
        max_length: the largest number of tokens, of prompt and answer, in a row; None = no limit.
        cache_grows: whether the model's cache grows with the tokens of a row.
        times: the counts and seconds of everything that was generated.
    """

    def __init__(
        self,
        model: LanguageModel,
        params: PyTree,
        *,
        num_tokens: int | None = None,
        sampling: Sampling = GREEDY,
        stop_tokens: Sequence[int] = STOP_TOKENS,
        chunk_tokens: int = 32,
        max_length: int | None = None,
        devices: Sequence[Any] | None = None,
    ):
        """Replicate the parameters on the devices; rows of prompts are divided among them.

        Args:
            model: a model made by `build_model`.
            params: the model's parameters.
            num_tokens: the number of token ids that may be generated; ids from it on are padding of the
                embedding table. None = all of the table.
            sampling: the rule by which tokens are chosen.
            stop_tokens: the token ids that end an answer.
            chunk_tokens: the number of tokens decoded for each dispatch of the loop.
            max_length: the largest number of tokens, of prompt and answer, in a row; None = no limit.
            devices: the devices that answer; None = all that JAX has.

        Raises:
            ValueError: a stop token is not an id that may be generated.
        """
        self.model, self.sampling, self.stop_tokens = model, sampling, tuple(stop_tokens)
        self._chunk_tokens, self.max_length, self.cache_grows = chunk_tokens, max_length, cache_grows(model)
        self._num_tokens = model.vocab_size if num_tokens is None else num_tokens
        for token in stop_tokens:
            if not 0 <= token < self._num_tokens:
                raise ValueError(f"stop token: found {token}; allowed: 0..{self._num_tokens - 1}")
        ids = np.arange(model.vocab_size)
        self._stops = np.isin(ids, list(stop_tokens))
        self._allowed = (ids < self._num_tokens) & ~np.isin(ids, _NEVER_GENERATED)
        devices = jax.devices() if devices is None else devices
        self._mesh = Mesh(np.array(devices).reshape(-1, 1), ROW_AXES)
        self.replace_params(params)
        self._compiled: dict[tuple, Compiled] = {}
        self.times = GenerationTimes()

    def replace_params(self, params: PyTree) -> None:
        """Generate by other parameters from now on, with the functions that are compiled already."""
        params = cast_kernels(params, self.model.config.dtype)
        self._params = jax.device_put(params, NamedSharding(self._mesh, PartitionSpec()))

    @property
    def params(self) -> PyTree:
        """The model's parameters on the devices, in the types in which they are multiplied."""
        return self._params

    def generate_chunks(
        self,
        prompts: Sequence[Prompt],
        max_tokens: Sequence[int],
        seeds: Sequence[int],
        ended: np.ndarray | None = None,
    ) -> Iterator[list[np.ndarray]]:
        """Generate answers to a batch of prompts, a chunk of tokens at a time.

        Args:
            prompts: at least one prompt.
            max_tokens: the largest number of tokens of each answer, at least 1.
            seeds: the random seed of each answer; without effect on greedy choice. The answer is a function
                of prompt, seed and settings: neither the batch nor the size of chunks changes it.
            ended: bool [prompts]; a row that the caller sets to true while it iterates generates no more.

        Yields:
            For each prompt its new int32 tokens, with the stop token if one was generated.

        Raises:
            PromptTooLong: a prompt with its answer is longer than the limit.
        """
        for number, (prompt, count) in enumerate(zip(prompts, max_tokens, strict=True), start=1):
            self.check_length(prompt, count, f"prompt {number}")
        # A power of two, so that few sizes of cache are compiled for models where it grows.
        room = power_of_two(max(max_tokens)) if self.cache_grows else 0
        settings = DecodeSettings(self.model, self.sampling, self._chunk_tokens, room)
        rows = power_of_two(len(prompts))
        ended = np.zeros(len(prompts), bool) if ended is None else ended
        batch = PromptBatch(*map(self.put_rows, pad_prompts(prompts, rows)))
        rules = self._make_rules(prompts, max_tokens, seeds, rows)

        run_prefill = self.compile("prefill", room, partial(prefill, settings), batch, rules)
        start = time.monotonic()
        state = run_prefill(self._params, batch, rules)
        first = np.asarray(state.token)[:, None]
        self.times.prefill_seconds += time.monotonic() - start
        self.times.prompt_tokens += sum(len(prompt.tokens) for prompt in prompts)

        remaining = _Remaining(max_tokens, self._stops)
        yield remaining.take(first)
        remaining.end(ended)
        if not remaining.live.any():
            return
        none_ended = self.put_rows(np.zeros(rows, bool))
        function = partial(decode_chunk, settings)
        run_decode = self.compile("decode", 0, function, state, rules, none_ended, donate=True)
        mark = time.monotonic()
        state, next_tokens = run_decode(self._params, state, rules, none_ended)
        while True:
            stopped = np.zeros(rows, bool)
            stopped[: len(prompts)] = ~remaining.live
            tokens = next_tokens
            # The next chunk runs while this one is looked at; it does nothing if all rows are done.
            state, next_tokens = run_decode(self._params, state, rules, self.put_rows(stopped))
            found = np.asarray(tokens)
            now = time.monotonic()
            new = remaining.take(found[: len(prompts)])
            self.times.decode_seconds += now - mark
            self.times.decoded_tokens += sum(map(len, new))
            self.times.decode_steps += max(map(len, new))
            mark = now
            yield new
            remaining.end(ended)
            if not remaining.live.any():
                return

    def check_length(self, prompt: Prompt, max_tokens: int, name: str) -> None:
        """Raise PromptTooLong, which speaks of `name`, unless prompt and answer are within the limit."""
        count = len(prompt.tokens)
        if self.max_length is not None and count + max_tokens > self.max_length:
            raise PromptTooLong(
                f"{name}: has {count:,} tokens, and {max_tokens:,} are to be written; allowed: "
                f"{self.max_length:,} together, the longest rows that {self.model.config.name} has learned"
            )

    def _make_rules(
        self, prompts: Sequence[Prompt], max_tokens: Sequence[int], seeds: Sequence[int], rows: int
    ) -> DecodeRules:
        limits = np.zeros(rows, np.int32)
        limits[: len(prompts)] = max_tokens
        keys = [_answer_key(seed, prompt) for seed, prompt in zip(seeds, prompts, strict=True)]
        replicated = NamedSharding(self._mesh, PartitionSpec())
        return DecodeRules(
            keys=self.put_rows(jnp.stack(keys + [keys[0]] * (rows - len(prompts)))),
            max_tokens=self.put_rows(limits),
            allowed=jax.device_put(self._allowed, replicated),
            stops=jax.device_put(self._stops, replicated),
        )

    def put_rows(self, array: np.ndarray | jax.Array, row_axis: int = 0) -> jax.Array:
        """Put an array on the devices, its rows divided among them where they can be divided evenly."""
        return jax.device_put(array, self._row_sharding(array, row_axis))

    def empty_cache(self, rows: int, length: int) -> PyTree:
        """Return the model's cache for `rows` new samples of at most `length` tokens, on the devices."""
        cache = self.model.empty_cache(rows, length)
        return jax.tree.map(lambda leaf: self.put_rows(leaf, row_axis=1), cache)

    def _row_sharding(
        self, array: np.ndarray | jax.Array | jax.ShapeDtypeStruct, row_axis: int
    ) -> NamedSharding:
        """Divide rows among the devices where they can be divided evenly."""
        if array.ndim <= row_axis or array.shape[row_axis] % self._mesh.size:
            return NamedSharding(self._mesh, PartitionSpec())
        return NamedSharding(self._mesh, PartitionSpec(*[None] * row_axis, ROW_AXES))

    def compile(
        self, name: str, room: int, function: Callable, *arguments: PyTree, donate: bool = False
    ) -> Compiled:
        """Return `function` compiled for such arguments; compilation is timed apart, and done once.

        Args:
            name: what the function does; with `room` and the arguments' shapes, what it is known by.
            room: the tokens that the function makes room for in a cache that grows.
            function: a function (params, *arguments) -> result. Leaves of the result below a field called
                `cache` have their rows on axis 1, all others on axis 0.
            arguments: the arguments, or others of the same shapes, types and devices.
            donate: whether the first argument's memory is taken for the result.
        """
        shapes = tuple((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(arguments))
        if (name, room, shapes) not in self._compiled:
            start = time.monotonic()
            with jax.set_mesh(self._mesh):
                result = jax.eval_shape(function, self._params, *arguments)
                jitted = jax.jit(
                    function,
                    out_shardings=self._result_shardings(result),
                    donate_argnums=1 if donate else (),
                )
                self._compiled[name, room, shapes] = jitted.lower(self._params, *arguments).compile()
            self.times.compile_seconds += time.monotonic() - start
        return self._compiled[name, room, shapes]

    def _result_shardings(self, result: PyTree) -> PyTree:
        """Return the shardings of results: a state is sharded as the next call expects it."""

        def sharding(path, leaf):
            in_cache = any(getattr(part, "name", None) == "cache" for part in path)
            return self._row_sharding(leaf, row_axis=1 if in_cache else 0)

        return jax.tree_util.tree_map_with_path(sharding, result)


class _Remaining:
    """The number of tokens that each answer of a batch may still get.

    Attributes:
        live: bool [prompts], true on the answers that are not complete.
    """

    def __init__(self, max_tokens: Sequence[int], stops: np.ndarray):
        self.live = np.ones(len(max_tokens), bool)
        self._left = np.array(max_tokens)
        self._stops = stops

    def take(self, tokens: np.ndarray) -> list[np.ndarray]:
        """Return of each row of `tokens` [prompts or more, chunk] those that belong to its answer."""
        found = []
        for row in range(len(self.live)):
            new = tokens[row][: self._left[row] if self.live[row] else 0]
            stops = np.flatnonzero(self._stops[new])
            new = new[: stops[0] + 1] if stops.size else new
            # Padding is never generated: it stands where the row was done.
            new = new[new != PADDING]
            self._left[row] -= len(new)
            self.live[row] &= not stops.size and self._left[row] > 0
            found.append(new)
        return found

    def end(self, ended: np.ndarray) -> None:
        """End the answers of the rows that are true in `ended`."""
        self.live &= ~ended


def generate(
    model: LanguageModel,
    params: PyTree,
    prompts: Sequence[Prompt],
    *,
    max_tokens: int,
    sampling: Sampling = GREEDY,
    stop_tokens: Sequence[int] = STOP_TOKENS,
    seed: int = 0,
    num_tokens: int | None = None,
) -> list[Answer]:
    """Return an answer to each prompt, of at most `max_tokens` tokens; all prompts are one batch.

    Arguments are those of `Generator` and its `generate_chunks`. The tests hold for every model that an
    answer is the one that its prompt gets alone.
    """
    generator = Generator(model, params, num_tokens=num_tokens, sampling=sampling, stop_tokens=stop_tokens)
    parts: list[list[np.ndarray]] = [[] for _ in prompts]
    count = len(prompts)
    for chunk in generator.generate_chunks(prompts, [max_tokens] * count, [seed] * count):
        for row, tokens in enumerate(chunk):
            parts[row].append(tokens)
    return [_split_stop_token(np.concatenate(tokens), stop_tokens) for tokens in parts]


def _split_stop_token(tokens: Int32[np.ndarray, " tokens"], stop_tokens: Sequence[int]) -> Answer:
    if len(tokens) and tokens[-1] in stop_tokens:
        return Answer(tokens[:-1], int(tokens[-1]))
    return Answer(tokens, None)


def _answer_key(seed: int, prompt: Prompt) -> Key[jax.Array, ""]:
    key = jax.random.key(seed, impl="threefry2x32")
    return jax.random.fold_in(key, prompt.fingerprint)
