"""An adapter from a model to EleutherAI's LM Evaluation Harness (`lm-eval`, the extra `lm_eval`).

The harness makes the prompts and computes the scores of its tasks. This module answers its three kinds of
requests.
"""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from lm_eval.api.instance import Instance  # pyright: ignore[reportMissingImports]
from lm_eval.api.model import LM  # pyright: ignore[reportMissingImports]
from lm_eval.models.utils import normalize_gen_kwargs  # pyright: ignore[reportMissingImports]

from birdie_jax.errors import ConfigError, shown
from birdie_jax.generation import GREEDY, Prompt, Sampling, make_prompt
from birdie_jax.generation.likelihood import Likelihood
from birdie_jax.tasks.task_model import TaskModel

Normalization = Literal["none", "tokens"]

# Objectives that accept any text as a prompt.
_OBJECTIVES = ("prefix_lm", "copying", "deshuffling", "causal_lm")
# The sampling settings of a generation request.
_SAMPLING = ("do_sample", "temperature", "top_k", "top_p", "min_p")
# The default of the harness's own models for tasks without a limit.
_MAX_TOKENS = 256

PAPER_TASKS = (
    *("arc_easy", "arc_challenge", "boolq", "copa", "hellaswag", "logiqa", "mathqa", "mc_taco"),
    *("medmcqa", "mmlu", "mnli", "openbookqa", "piqa", "pubmedqa", "qa4mre", "qnli", "race", "sciq"),
    *("sst2", "wic", "winogrande"),
)
"""The 21 tasks that the Birdie paper lists (appendix A.4), by the harness's names.

Table 2 also has 21 tasks, with MMLU. Table 5 has 20 columns: it joins the two halves of ARC, omits MMLU,
and has TruthfulQA, which the list does not have. To measure TruthfulQA, add `truthfulqa_mc1`.
"""


class _Cut(NamedTuple):
    """A prompt within the model's limit.

    Attributes:
        prompt: the prompt; the beginning of a long context is removed.
        was_cut: whether the beginning was removed.
    """

    prompt: Prompt
    was_cut: bool


class _Answering(NamedTuple):
    """How to decode an answer. Requests with equal settings run in the same batches.

    Attributes:
        until: the strings that end the answer.
        max_tokens: the largest number of tokens of the answer.
        sampling: the sampling rule.
    """

    until: tuple[str, ...]
    max_tokens: int
    sampling: Sampling


class HarnessModel(LM):
    """Answers requests of the harness with a `TaskModel`.

    The arm's objective formats a context as a prompt. prefix_lm reads the context bidirectionally, and the
    continuation follows the start token. causal_lm reads the context as the beginning of the target. White
    space between context and continuation belongs to the continuation, as in the harness. An empty context
    is the start token alone. As in the harness's own models, contexts that are too long lose their
    beginning; a warning logs how many.
    """

    def __init__(self, model: TaskModel, normalization: Normalization = "none"):
        """Wrap `model`.

        Args:
            model: the model. Its arm formats the prompts.
            normalization: "none" returns the log-likelihood of a continuation, the sum over its tokens.
                "tokens" divides the sum by the number of tokens. Then the harness's `acc` is the
                accuracy by loss per target token (Birdie paper, Table 8), and `acc_norm`, which also
                divides by characters, is meaningless.

        Raises:
            ConfigError: the arm's objective cannot format every text as a prompt.
        """
        super().__init__()
        name = model.arm.objective.name
        if name not in _OBJECTIVES:
            raise ConfigError(
                f"objective: found {name}, which cannot format the texts of the harness; allowed: "
                f"{', '.join(_OBJECTIVES)}"
            )
        self._model, self._normalization = model, normalization

    @property
    def tokenizer_name(self) -> str:
        """The hash of the tokenizer, part of the harness's cache keys."""
        return self._model.tokenizer.sha256

    def loglikelihood(
        self, requests: Sequence[Instance], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Return the log-likelihood of each continuation, and whether greedy decoding generates it.

        Raises:
            ConfigError: a continuation is longer than the model's limit; or `normalization` is "tokens",
                and a task is not multiple choice.
        """
        del disable_tqdm
        if self._normalization == "tokens":
            _check_choices(requests)
        likelihoods = self.likelihoods([request.args for request in requests])
        answers = []
        for request, found in zip(requests, likelihoods, strict=True):
            divisor = max(found.tokens, 1) if self._normalization == "tokens" else 1
            answers.append((found.log_likelihood / divisor, found.is_greedy))
            self.cache_hook.add_partial("loglikelihood", request.args, answers[-1])
        return answers

    def likelihoods(self, pairs: Sequence[tuple[str, str]]) -> list[Likelihood]:
        """Return the likelihood of each (context, continuation). The model reads each context once.

        Raises:
            ConfigError: a continuation is longer than the model's limit.
        """
        by_context: dict[str, list[int]] = {}
        tokens: list[np.ndarray] = []
        for number, (context, continuation) in enumerate(pairs):
            stripped, tokens_of_pair = self._split(context, continuation)
            by_context.setdefault(stripped, []).append(number)
            tokens.append(tokens_of_pair)
        cut = [
            self._prompt(context, max(len(tokens[number]) for number in numbers))
            for context, numbers in by_context.items()
        ]
        self._warn(cut)
        found = self._model.continuation_likelihoods(
            [
                one.prompt._replace(name=f"context {shown(context)}")
                for one, context in zip(cut, by_context, strict=True)
            ],
            [[tokens[number] for number in numbers] for numbers in by_context.values()],
        )
        result = {
            number: likelihood
            for numbers, likelihoods in zip(by_context.values(), found, strict=True)
            for number, likelihood in zip(numbers, likelihoods, strict=True)
        }
        return [result[number] for number in range(len(pairs))]

    def loglikelihood_rolling(
        self, requests: Sequence[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """Return the log-likelihood of each text. The model reads it causally after the start token."""
        del disable_tqdm
        losses = self._model.text_losses(
            [self._model.tokenizer.encode(request.args[0]) for request in requests]
        )
        answers = [-float(of_text.sum(dtype=np.float64)) for of_text in losses]
        for request, answer in zip(requests, answers, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, answer)
        return answers

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """Return the answer to each (context, settings). Equal requests have different seeds.

        Raises:
            ConfigError: a setting is unknown or invalid, or `max_gen_toks` exceeds the model's limit.
        """
        del disable_tqdm
        groups: dict[_Answering, list[int]] = {}
        for number, request in enumerate(requests):
            groups.setdefault(_answering(request.args[1], request), []).append(number)
        answers: dict[int, str] = {}
        for how, numbers in groups.items():
            contexts = [requests[number].args[0] for number in numbers]
            cut = [self._prompt(context, how.max_tokens) for context in contexts]
            self._warn(cut)
            written = self._model.generate(
                [one.prompt for one in cut],
                how.max_tokens,
                stop_strings=how.until,
                sampling=how.sampling,
                seeds=_occurrences(contexts),
            )
            answers |= {number: answer.text for number, answer in zip(numbers, written, strict=True)}
        for number, request in enumerate(requests):
            self.cache_hook.add_partial("generate_until", request.args, answers[number])
        return [answers[number] for number in range(len(requests))]

    def count_tokens(self, context: str, continuation: str) -> int:
        """Return the number of tokens of a continuation."""
        return len(self._split(context, continuation)[1])

    def _split(self, context: str, continuation: str) -> tuple[str, np.ndarray]:
        """Return the prompt and the tokens to score.

        White space at the end of the context moves to the continuation (as in the harness's `TemplateLM`).
        For causal_lm, the function tokenizes both together and removes the tokens of the context.
        """
        tokenizer, stripped = self._model.tokenizer, context.rstrip()
        continuation = context[len(stripped) :] + continuation
        if self._model.arm.objective.name != "causal_lm" or not stripped:
            return stripped, tokenizer.encode(continuation)
        whole = tokenizer.encode(stripped + continuation)
        return stripped, whole[len(tokenizer.encode(stripped)) :]

    def _prompt(self, context: str, max_tokens: int) -> _Cut:
        """Return the prompt of a context, cut to leave room for `max_tokens` tokens."""
        nothing = np.empty(0, np.int32)
        objective = self._model.arm.objective
        prompt = Prompt(nothing, nothing)
        if context:
            prompt = make_prompt(context, objective, self._model.tokenizer)
        limit = self._model.max_length
        if limit is None or len(prompt.tokens) + max_tokens <= limit:
            return _Cut(prompt, False)
        over = len(prompt.tokens) + max_tokens - limit
        if objective.name == "causal_lm" or not context:
            left = prompt._replace(target_prefix=prompt.target_prefix[over:])
        else:
            marker = objective.marker_length
            kept = prompt.context[marker + over :]
            left = prompt._replace(context=np.concatenate([prompt.context[:marker], kept]))
        if len(left.tokens) + max_tokens > limit:
            raise ConfigError(
                f"found a continuation of {max_tokens:,} tokens; allowed: fewer than the model's limit of "
                f"prompt and answer, {limit:,} (max_length, or a task's max_gen_toks)"
            )
        return _Cut(left, True)

    def _warn(self, cut: Sequence[_Cut]) -> None:
        count = sum(one.was_cut for one in cut)
        if count:
            logging.getLogger(__name__).warning(
                "%d of %d contexts are longer than the model's limit of %d tokens with their continuation: "
                "their beginnings are left out",
                count,
                len(cut),
                self._model.max_length,
            )


def _check_choices(requests: Sequence[Instance]) -> None:
    """Check that each document has several continuations, as in multiple choice."""
    counts = Counter((request.task_name, request.doc_id) for request in requests)
    for (task, document), count in counts.items():
        if count == 1:
            raise ConfigError(
                f"normalization=tokens: found 1 continuation of document {document} of {task}; allowed: "
                "multiple-choice tasks, or normalization=none"
            )


def _answering(settings: Mapping[str, Any], request: Instance) -> _Answering:
    where = f"{request.task_name} document {request.doc_id}: generation_kwargs"
    given = normalize_gen_kwargs(dict(settings), _MAX_TOKENS)
    until = tuple(text for text in given.pop("until") if text)
    max_tokens = given.pop("max_gen_toks")
    for name in given:
        if name not in _SAMPLING:
            allowed = ", ".join(("until", "max_gen_toks", *_SAMPLING))
            raise ConfigError(f"{where}: found {shown(name)}; allowed: {allowed}")
    if max_tokens < 1:
        raise ConfigError(f"{where}: found max_gen_toks {max_tokens}; allowed: at least 1")
    sampling = GREEDY
    if given.get("do_sample") and given.get("temperature") != 0:
        rule = {name: given[name] for name in _SAMPLING[1:] if name in given}
        try:
            sampling = Sampling(**rule)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{where}: {error}") from error
    return _Answering(until, max_tokens, sampling)


def _occurrences(contexts: Sequence[str]) -> list[int]:
    """Return for each context how many earlier contexts are equal."""
    seen: Counter[str] = Counter()
    numbers = []
    for context in contexts:
        numbers.append(seen[context])
        seen[context] += 1
    return numbers
