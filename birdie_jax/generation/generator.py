"""Answers to prompts: batches of prompts, decoded a chunk of tokens at a time."""

import time
import zlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int32, Key, PyTree

from birdie_jax.errors import PromptTooLong, PruningError
from birdie_jax.generation.continuation import (
    ContinuationBatch,
    batch_continuations,
    check_chunk,
    check_constant_size,
    continuation_tokens,
    continued_fingerprint,
    continued_prefill,
    opening_tokens,
    read_part,
)
from birdie_jax.generation.decoding import (
    CHUNK_TOKENS,
    DecodeRules,
    DecodeSettings,
    PromptBatch,
    decode_chunk,
    prefill,
)
from birdie_jax.generation.device_programs import DevicePrograms, cast_parameters
from birdie_jax.generation.prompt import Prompt, max_protected, pad_prompts, power_of_two, prompt_as_read
from birdie_jax.generation.sampling import GREEDY, Sampling
from birdie_jax.generation.timing import GenerationTimes, cache_grows
from birdie_jax.models import LanguageModel
from birdie_jax.models.parameters import parameter_policies
from birdie_jax.models.registry import mixer_config
from birdie_jax.models.saved_state import SavedState, stack_states
from birdie_jax.pruning import PruningSettings
from birdie_jax.vocabulary import DONE, END, NUM_SPECIAL_TOKENS, PADDING, START


class RemainingTokens:
    """The number of tokens that each answer of a batch may still add.

    Attributes:
        live: bool [prompts], true on incomplete answers.
    """

    def __init__(self, max_tokens: Sequence[int], stops: np.ndarray):
        self.live = np.ones(len(max_tokens), bool)
        self._left = np.array(max_tokens)
        self._stops = stops

    def take(self, tokens: np.ndarray) -> list[np.ndarray]:
        """Return, for each row of `tokens` [prompts or more, chunk], the tokens of its answer."""
        found = []
        for row in range(len(self.live)):
            new = tokens[row][: self._left[row] if self.live[row] else 0]
            stops = np.flatnonzero(self._stops[new])
            new = new[: stops[0] + 1] if stops.size else new
            # No answer contains padding; it marks the end of the row.
            new = new[new != PADDING]
            self._left[row] -= len(new)
            self.live[row] &= not stops.size and self._left[row] > 0
            found.append(new)
        return found

    def end(self, ended: np.ndarray) -> None:
        """End the answers of the rows that are true in `ended`."""
        self.live &= ~ended


STOP_TOKENS = (END, DONE)

# No objective's targets contain them.
_NEVER_GENERATED = (PADDING, START)


class Answer(NamedTuple):
    """The tokens generated for one prompt.

    Attributes:
        tokens: int32 [tokens], the answer without its stop token.
        stop_token: the token that ended the answer; None if the maximum length or the caller ended it.
    """

    tokens: Int32[np.ndarray, " tokens"]
    stop_token: int | None


class Generator:
    """A model that answers prompts, with its parameters on the devices and its compiled functions.

    Attributes:
        model: the language model.
        sampling: the rule that chooses tokens.
        stop_tokens: the token ids that end an answer.
        max_length: the maximum number of tokens in a row, of prompt and answer; None: no limit.
        cache_grows: whether the model's cache grows with the number of tokens.
        pruning: the settings of pruning; None = no pruning.
        times: the counts and times of all generation.
        programs: the parameters on the devices and the compiled functions.
    """

    def __init__(
        self,
        model: LanguageModel,
        params: PyTree,
        *,
        num_tokens: int | None = None,
        sampling: Sampling = GREEDY,
        stop_tokens: Sequence[int] = STOP_TOKENS,
        chunk_tokens: int = CHUNK_TOKENS,
        max_length: int | None = None,
        devices: Sequence[Any] | None = None,
        pruning: PruningSettings | None = None,
    ):
        """Replicate the parameters on the devices, which share the rows of prompts.

        Args:
            model: a model made by `build_model`.
            params: the model's parameters.
            num_tokens: the number of token ids that may be generated; larger ids are padding of the
                embedding table. None: all of the table.
            sampling: the rule that chooses tokens.
            stop_tokens: the token ids that end an answer, in addition to the model's end token.
            chunk_tokens: the number of tokens decoded for each dispatch of the loop.
            max_length: the maximum number of tokens in a row, of prompt and answer; None: no limit.
            devices: the devices; None: all of JAX's devices.
            pruning: the settings of pruning; None or a share of 1: no pruning.

        Raises:
            ValueError: a stop token may not be generated.
            PruningError: the model has attention, or another number of layers than the schedule.
        """
        end_token = [model.config.end_token] if model.config.end_token else []
        self.model, self.sampling = model, sampling
        self.stop_tokens = tuple(dict.fromkeys([*stop_tokens, *end_token]))
        self.max_length, self.cache_grows = max_length, cache_grows(model)
        self.pruning = _checked_pruning(pruning, model)
        self._chunk_tokens = chunk_tokens
        self._num_tokens = model.vocab_size if num_tokens is None else num_tokens
        for token in self.stop_tokens:
            if not 0 <= token < self._num_tokens:
                raise ValueError(f"stop token: found {token}; allowed: 0..{self._num_tokens - 1}")
        ids = np.arange(model.vocab_size)
        self._stops = np.isin(ids, list(self.stop_tokens))
        self._allowed = (ids < self._num_tokens) & ~np.isin(ids, _NEVER_GENERATED)
        # The caller's stop tokens may end every answer.
        added = [token for token in self.stop_tokens if token not in STOP_TOKENS]
        self._in_any_form = (ids >= NUM_SPECIAL_TOKENS) | np.isin(ids, added)
        self.times = GenerationTimes()
        self._policies = parameter_policies(model)
        params = cast_parameters(params, self._policies)
        self.programs = DevicePrograms(params, jax.devices() if devices is None else devices, self.times)

    def replace_params(self, params: PyTree) -> None:
        """Replace the parameters; keep the compiled functions."""
        self.programs.replace_params(cast_parameters(params, self._policies))

    @property
    def params(self) -> PyTree:
        """The model's parameters on the devices, in the types of their products."""
        return self.programs.params

    def generate_chunks(
        self,
        prompts: Sequence[Prompt],
        max_tokens: Sequence[int],
        seeds: Sequence[int],
        ended: np.ndarray | None = None,
        states: Sequence[SavedState] | None = None,
    ) -> Iterator[list[np.ndarray]]:
        """Generate answers to a batch of prompts, a chunk of tokens at a time.

        Args:
            prompts: at least one prompt.
            max_tokens: the maximum number of tokens in each answer, at least 1.
            seeds: the random seed of each answer; greedy choice ignores it. The answer is a function of
                prompt, seed and settings; it does not depend on the batch or the size of chunks.
            ended: bool [prompts]; the caller may set a row to true during iteration, to stop that row.
            states: for each prompt, the state that it continues. The prompt's context continues the context
                of the state. After a state with the start token, a prompt has only a target prefix.

        Yields:
            For each prompt, its new int32 tokens, with the stop token if there is one.

        Raises:
            PromptTooLong: the tokens of a state, its prompt and its answer exceed the limit.
            SavedStateError: a prompt cannot continue its state.
        """
        if states is not None:
            check_constant_size(self.model)
        continues = states is not None
        prompts = [prompt_as_read(prompt, self.model.config, continues=continues) for prompt in prompts]
        before: Sequence[SavedState | None] = [None] * len(prompts) if states is None else states
        for number, (prompt, count, state) in enumerate(zip(prompts, max_tokens, before, strict=True)):
            self.check_length(prompt, count, f"prompt {number + 1}", state)
        # A power of two, to compile for few sizes of growing caches.
        room = power_of_two(max(max_tokens)) if self.cache_grows else 0
        settings = DecodeSettings(self.model, self.sampling, self._chunk_tokens, room)
        if self.pruning is not None and states is None:
            # A power of two, to compile for few sizes.
            longest = power_of_two(max(map(max_protected, prompts)))
            settings = settings._replace(pruning=self.pruning, protected=longest)
        programs, rows = self.programs, power_of_two(len(prompts))
        ended = np.zeros(len(prompts), bool) if ended is None else ended
        keys = [_answer_key(*of_answer) for of_answer in zip(seeds, prompts, before, strict=True)]
        rules = self._make_rules(prompts, keys, max_tokens, rows)
        if states is None:
            given = [prompt.tokens for prompt in prompts]
            read = PromptBatch(*map(programs.put_rows, pad_prompts(prompts, rows)))
            run_prefill = partial(
                programs.compile(
                    f"prefill {settings.protected}", room, partial(prefill, settings), read, rules
                ),
                *(programs.params, read, rules),
            )
        else:
            given = [continuation_tokens(*pair) for pair in zip(prompts, states, strict=True)]
            contexts = [len(prompt.context) for prompt in prompts]
            batch = batch_continuations(given, contexts, begins=False, rows=rows)
            # Copies of the first state fill the batch.
            samples = programs.put_samples(stack_states([*states, *[states[0]] * (rows - len(states))]))
            tokens = ContinuationBatch(*map(programs.put_rows, batch))
            function = partial(continued_prefill, settings)
            run_prefill = partial(
                programs.compile("continued prefill", room, function, samples, tokens, rules),
                *(programs.params, samples, tokens, rules),
            )

        start = time.monotonic()
        state = run_prefill()
        first = np.asarray(state.token)[:, None]
        self.times.prefill_seconds += time.monotonic() - start
        self.times.prompt_tokens += sum(map(len, given))

        remaining = RemainingTokens(max_tokens, self._stops)
        yield remaining.take(first)
        remaining.end(ended)
        if not remaining.live.any():
            return
        none_ended = programs.put_rows(np.zeros(rows, bool))
        function = partial(decode_chunk, settings)
        run_decode = programs.compile("decode", 0, function, state, rules, none_ended, donate=True)
        mark = time.monotonic()
        state, next_tokens = run_decode(programs.params, state, rules, none_ended)
        while True:
            stopped = np.zeros(rows, bool)
            stopped[: len(prompts)] = ~remaining.live
            tokens = next_tokens
            # The next chunk runs while the host reads this one; it is empty if all rows are done.
            state, next_tokens = run_decode(programs.params, state, rules, programs.put_rows(stopped))
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

    def read_state(self, prompt: Prompt, chunk_tokens: int | None = None) -> SavedState:
        """Read a prompt without an answer, and return the state, which other prompts can continue.

        Args:
            prompt: the prompt. The model reads its context, in both directions if it can, and the start
                token and target prefix if there is a prefix.
            chunk_tokens: the number of tokens to read at a time, which bounds the memory; None: all of a
                context that is read in both directions, or 8,192 otherwise.

        Raises:
            SavedStateError: the model's cache grows, there are no tokens, or `chunk_tokens` is set for a
                context that is read in both directions, which requires one pass.
            PromptTooLong: the prompt is longer than the limit.
        """
        check_constant_size(self.model)
        prompt = prompt_as_read(prompt, self.model.config)
        tokens = opening_tokens(prompt)
        self.check_length(prompt, 0, "prompt of a state")
        chunk_tokens = check_chunk(self.model, prompt, chunk_tokens)
        programs = self.programs
        samples = programs.put_samples(self.model.empty_cache(1, 1))
        for first in range(0, len(tokens), chunk_tokens):
            part = tokens[first : first + chunk_tokens]
            batch = batch_continuations([part], [len(prompt.context) - first], begins=first == 0, rows=1)
            batch = ContinuationBatch(*map(programs.put_rows, batch))
            run = programs.compile("read", 0, partial(read_part, self.model), samples, batch, donate=True)
            start = time.monotonic()
            samples = jax.block_until_ready(run(programs.params, samples, batch))
            self.times.prefill_seconds += time.monotonic() - start
        self.times.prompt_tokens += len(tokens)
        checksum = zlib.crc32(tokens.astype("<i4").tobytes())
        return SavedState(jax.device_get(samples.cache), len(tokens), len(prompt.context), checksum)

    def check_length(
        self, prompt: Prompt, max_tokens: int, name: str, state: SavedState | None = None
    ) -> None:
        """Check that the tokens of a state, a prompt and its answer are within the limit.

        Args:
            prompt: the prompt.
            max_tokens: the maximum number of tokens in the answer.
            name: the name of the prompt in messages.
            state: the state that the prompt continues; None: it begins a sample.

        Raises:
            PromptTooLong: they exceed the limit.
            SavedStateError: the prompt cannot continue the state.
        """
        prompt = prompt_as_read(prompt, self.model.config, continues=state is not None)
        count = len(prompt.tokens)
        if state is not None:
            count = state.tokens + len(continuation_tokens(prompt, state))
        if self.max_length is not None and count + max_tokens > self.max_length:
            raise PromptTooLong(
                f"{name}: has {count:,} tokens, and the answer up to {max_tokens:,}; allowed: "
                f"{self.max_length:,} together, the longest rows that {self.model.config.name} has learned"
            )

    def _make_rules(
        self,
        prompts: Sequence[Prompt],
        keys: Sequence[Key[jax.Array, ""]],
        max_tokens: Sequence[int],
        rows: int,
    ) -> DecodeRules:
        limits = np.zeros(rows, np.int32)
        limits[: len(keys)] = max_tokens
        allowed = np.tile(self._allowed, (rows, 1))
        for row, prompt in enumerate(prompts):
            if prompt.special_tokens is not None:
                of_form = np.array(prompt.special_tokens, np.int32)
                allowed[row] &= self._in_any_form
                allowed[row, of_form] = self._allowed[of_form]
        put = self.programs
        return DecodeRules(
            keys=put.put_rows(jnp.stack([*keys, *[keys[0]] * (rows - len(keys))])),
            max_tokens=put.put_rows(limits),
            allowed=put.put_rows(allowed),
            stops=put.put_replicated(self._stops),
        )


def _checked_pruning(pruning: PruningSettings | None, model: LanguageModel) -> PruningSettings | None:
    """Return the settings of pruning, or None if all tokens stay."""
    if pruning is None or all(share == 1 for share in pruning.layer_shares(model.config.layers)):
        return None
    problem = mixer_config(model.config).influence_problem
    if problem is not None:
        raise PruningError(
            f"keep: found {pruning.keep} for model {model.config.name!r}, {problem[0]}; "
            f"allowed: 1, or {problem[1]}"
        )
    return pruning


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
    """Return an answer of at most `max_tokens` tokens to each prompt; all prompts are one batch.

    See `Generator` and `Generator.generate_chunks` for the arguments. For every model, tests check that a
    prompt's answer does not depend on its batch.
    """
    generator = Generator(model, params, num_tokens=num_tokens, sampling=sampling, stop_tokens=stop_tokens)
    parts: list[list[np.ndarray]] = [[] for _ in prompts]
    count = len(prompts)
    for chunk in generator.generate_chunks(prompts, [max_tokens] * count, [seed] * count):
        for row, tokens in enumerate(chunk):
            parts[row].append(tokens)
    return [_split_stop_token(np.concatenate(tokens), generator.stop_tokens) for tokens in parts]


def _split_stop_token(tokens: Int32[np.ndarray, " tokens"], stop_tokens: Sequence[int]) -> Answer:
    if len(tokens) and tokens[-1] in stop_tokens:
        return Answer(tokens[:-1], int(tokens[-1]))
    return Answer(tokens, None)


def _answer_key(seed: int, prompt: Prompt, state: SavedState | None) -> Key[jax.Array, ""]:
    key = jax.random.key(seed, impl="threefry2x32")
    number = prompt.fingerprint if state is None else continued_fingerprint(state, prompt)
    return jax.random.fold_in(key, number)
