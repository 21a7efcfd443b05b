"""Answers to prompts: batches of prompts, stretches of tokens, and the time that they take."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Int32

from birdie_jax.generation.compute_type import in_compute_type
from birdie_jax.generation.decoding import Request, Rules, Settings, read, write
from birdie_jax.generation.prompt import Prompt, padded
from birdie_jax.generation.sampling import GREEDY, Sampling
from birdie_jax.generation.state_size import state_grows
from birdie_jax.models import LanguageModel
from birdie_jax.models.axes import ROW_AXES
from birdie_jax.vocabulary import DONE, END, PADDING, START

STOP_TOKENS = (END, DONE)

# No target of any objective holds them.
_NEVER_WRITTEN = (PADDING, START)


class PromptTooLong(ValueError):  # noqa: N818 - a verdict on a prompt
    """A prompt with its answer is longer than the model's limit."""


class Answer(NamedTuple):
    """What was written.

    Attributes:
        tokens: int32 [tokens], without the stop token.
        stop_token: the token that ended the answer; None if it reached its most tokens, or was ended.
    """

    tokens: Int32[np.ndarray, " tokens"]
    stop_token: int | None


@dataclass
class Times:
    """What was done, and the seconds that it took, without compilation.

    Attributes:
        compile_seconds: making programs for shapes not met before.
        prompt_tokens: tokens read, without padding.
        read_seconds: reading them.
        written_tokens: tokens written by the loop, which is all but the first of each answer.
        write_seconds: writing them.
        steps: turns of the loop; in each every row of the batch gets a token.
    """

    compile_seconds: float = 0.0
    prompt_tokens: int = 0
    read_seconds: float = 0.0
    written_tokens: int = 0
    write_seconds: float = 0.0
    steps: int = 0


class Generator:
    """A model that answers, with its parameters on the devices and its compiled programs.

    Attributes:
        model: the model.
        sampling: how tokens are chosen.
        stop_tokens: ids that end an answer.
        times: sums over everything that was generated.
    """

    def __init__(
        self,
        model: LanguageModel,
        params: Any,
        *,
        num_tokens: int | None = None,
        sampling: Sampling = GREEDY,
        stop_tokens: Sequence[int] = STOP_TOKENS,
        stretch: int = 32,
        longest: int | None = None,
    ):
        """Put the parameters on this machine's devices, whole on each; rows of prompts are divided.

        Args:
            model: as `build_model` makes it.
            params: its parameters.
            num_tokens: ids below it may be written; those above are padding of the embedding table. None =
                all of the table.
            sampling: how tokens are chosen.
            stop_tokens: ids that end an answer.
            stretch: tokens written for each dispatch of the loop.
            longest: the most tokens, read and written, that a row may have; None = no limit.

        Raises:
            ValueError: a stop token is not an id that may be written.
        """
        self.model, self.sampling, self.stop_tokens = model, sampling, tuple(stop_tokens)
        self._stretch, self._longest, self._grows = stretch, longest, state_grows(model)
        self._num_tokens = model.vocab_size if num_tokens is None else num_tokens
        for token in stop_tokens:
            if not 0 <= token < self._num_tokens:
                raise ValueError(f"stop token: found {token}; allowed: 0..{self._num_tokens - 1}")
        ids = np.arange(model.vocab_size)
        self._stops = np.isin(ids, list(stop_tokens))
        self._allowed = (ids < self._num_tokens) & ~np.isin(ids, _NEVER_WRITTEN)
        self._mesh = Mesh(np.array(jax.devices()).reshape(-1, 1), ROW_AXES)
        params = in_compute_type(params, model.config.dtype)
        self._params = jax.device_put(params, NamedSharding(self._mesh, PartitionSpec()))
        self._programs: dict[Any, Any] = {}
        self.times = Times()

    def stretches(
        self,
        prompts: Sequence[Prompt],
        max_tokens: Sequence[int],
        seeds: Sequence[int],
        ended: np.ndarray | None = None,
    ) -> Iterator[list[np.ndarray]]:
        """Write answers to a batch of prompts, a stretch at a time.

        Args:
            prompts: at least one.
            max_tokens: the most tokens of each answer, at least 1.
            seeds: of each answer; with greedy sampling without effect. The answer is a function of prompt,
                seed and settings: neither the batch nor the stretch changes it.
            ended: bool [prompts]; a row that the caller sets to true while it iterates writes no more.

        Yields:
            For each prompt the int32 tokens that are new, with the stop token if one was written.

        Raises:
            PromptTooLong: a prompt with its answer is longer than the model can be trusted with.
        """
        for number, (prompt, most) in enumerate(zip(prompts, max_tokens, strict=True), start=1):
            self.check_length(prompt, most, f"prompt {number}")
        # A power of two, so that few sizes of cache are compiled for models where it grows.
        room = 1 << (max(max_tokens) - 1).bit_length() if self._grows else 0
        settings = Settings(self.model, self.sampling, self._stretch, room)
        rows = _rows_of_batch(len(prompts))
        ended = np.zeros(len(prompts), bool) if ended is None else ended
        request = self._request(prompts, max_tokens, seeds, rows)
        rules = Rules(request.keys, request.most, request.allowed, request.stops)

        reading = self._program("read", room, partial(read, settings), request)
        begin = time.monotonic()
        state = reading(self._params, request)
        first = np.asarray(state.token)[:, None]
        self.times.read_seconds += time.monotonic() - begin
        self.times.prompt_tokens += sum(len(prompt.tokens) for prompt in prompts)

        left = np.array(max_tokens)
        live = np.ones(len(prompts), bool)

        def new_tokens(tokens: np.ndarray) -> list[np.ndarray]:
            found = []
            for row in range(len(prompts)):
                mine = tokens[row][: left[row] if live[row] else 0]
                stops = np.flatnonzero(self._stops[mine])
                mine = mine[: stops[0] + 1] if stops.size else mine
                # Padding is never chosen: it stands where the row was done.
                mine = mine[mine != PADDING]
                left[row] -= len(mine)
                live[row] &= not stops.size and left[row] > 0
                found.append(mine)
            return found

        yield new_tokens(first)
        live &= ~ended
        if not live.any():
            return
        none_ended = self._place(np.zeros(rows, bool))
        program = partial(write, settings)
        writing = self._program("write", 0, program, state, rules, none_ended)
        mark = time.monotonic()
        state, ahead = writing(self._params, state, rules, none_ended)
        while True:
            stopped = np.zeros(rows, bool)
            stopped[: len(prompts)] = ~live
            tokens = ahead
            # The next stretch runs while this one is looked at; it does nothing if all rows are done.
            state, ahead = writing(self._params, state, rules, self._place(stopped))
            found = np.asarray(tokens)
            now = time.monotonic()
            new = new_tokens(found[: len(prompts)])
            self.times.write_seconds += now - mark
            self.times.written_tokens += sum(map(len, new))
            self.times.steps += max(map(len, new))
            mark = now
            yield new
            live &= ~ended
            if not live.any():
                return

    def check_length(self, prompt: Prompt, max_tokens: int, name: str) -> None:
        """Raise PromptTooLong, which speaks of `name`, unless prompt and answer are within the limit."""
        count = len(prompt.tokens)
        if self._longest is not None and count + max_tokens > self._longest:
            raise PromptTooLong(
                f"{name}: has {count:,} tokens, and {max_tokens:,} are to be written; allowed: "
                f"{self._longest:,} together, the longest rows that {self.model.config.name} has learned"
            )

    def _request(self, prompts, max_tokens, seeds, rows: int) -> Request:
        laid_out = padded(prompts, rows)
        most = np.zeros(rows, np.int32)
        most[: len(prompts)] = max_tokens
        keys = [_key(seed, prompt) for seed, prompt in zip(seeds, prompts, strict=True)]
        keys = jnp.stack(keys + [keys[0]] * (rows - len(prompts)))
        whole = NamedSharding(self._mesh, PartitionSpec())
        return Request(
            *(self._place(field) for field in laid_out),
            keys=self._place(keys),
            most=self._place(most),
            allowed=jax.device_put(self._allowed, whole),
            stops=jax.device_put(self._stops, whole),
        )

    def _place(self, array: Any) -> jax.Array:
        return jax.device_put(array, self._sharding(array, row_axis=0))

    def _sharding(self, array: Any, row_axis: int) -> NamedSharding:
        """Divide rows among the devices where they can be divided evenly."""
        if array.ndim <= row_axis or array.shape[row_axis] % self._mesh.size:
            return NamedSharding(self._mesh, PartitionSpec())
        return NamedSharding(self._mesh, PartitionSpec(*[None] * row_axis, ROW_AXES))

    def _program(self, name: str, room: int, function: Any, *arguments: Any) -> Any:
        """Return `function` compiled for `room` and such arguments, so that compilation is timed apart."""
        shapes = tuple((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(arguments))
        if (name, room, shapes) not in self._programs:
            begin = time.monotonic()
            with jax.set_mesh(self._mesh):
                result = jax.eval_shape(function, self._params, *arguments)
                jitted = jax.jit(
                    function,
                    out_shardings=self._result_shardings(result),
                    donate_argnums=1 if name == "write" else (),
                )
                self._programs[name, room, shapes] = jitted.lower(self._params, *arguments).compile()
            self.times.compile_seconds += time.monotonic() - begin
        return self._programs[name, room, shapes]

    def _result_shardings(self, result: Any) -> Any:
        """Return where results lie: a state read by the next call lies as that one wants it."""

        def one(path, leaf):
            in_cache = any(getattr(part, "name", None) == "cache" for part in path)
            return self._sharding(leaf, row_axis=1 if in_cache else 0)

        return jax.tree_util.tree_map_with_path(one, result)


def generate(
    model: LanguageModel,
    params: Any,
    prompts: Sequence[Prompt],
    *,
    max_tokens: int,
    sampling: Sampling = GREEDY,
    stop_tokens: Sequence[int] = STOP_TOKENS,
    seed: int = 0,
    num_tokens: int | None = None,
) -> list[Answer]:
    """Return an answer to each prompt, of at most `max_tokens` tokens; all prompts are one batch.

    Arguments are those of `Generator` and its `stretches`. The tests hold for every model that an answer is
    the one that its prompt gets alone.
    """
    generator = Generator(model, params, num_tokens=num_tokens, sampling=sampling, stop_tokens=stop_tokens)
    written: list[list[np.ndarray]] = [[] for _ in prompts]
    count = len(prompts)
    for stretch in generator.stretches(prompts, [max_tokens] * count, [seed] * count):
        for row, tokens in enumerate(stretch):
            written[row].append(tokens)
    return [answer_of(np.concatenate(parts), stop_tokens) for parts in written]


def answer_of(tokens: Int32[np.ndarray, " tokens"], stop_tokens: Sequence[int]) -> Answer:
    """Part the tokens of an answer from its stop token, if it has one."""
    if len(tokens) and tokens[-1] in stop_tokens:
        return Answer(tokens[:-1], int(tokens[-1]))
    return Answer(tokens, None)


def _key(seed: int, prompt: Prompt) -> jax.Array:
    key = jax.random.key(seed, impl="threefry2x32")
    return jax.random.fold_in(key, prompt.fingerprint)


def _rows_of_batch(prompts: int) -> int:
    """Return the next power of two, so that batches of few sizes are compiled."""
    return 1 << (prompts - 1).bit_length()
