"""A model as EleutherAI's LM Evaluation Harness (`lm-eval`, the extra `lm_eval`) sees it.

The harness makes the prompts and the scores of its own tasks; this module answers its three requests.
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

# Objectives that take any text as a prompt.
_OBJECTIVES = ("prefix_lm", "copying", "deshuffling", "causal_lm")
# The settings of a request for an answer, except `until` and the number of tokens.
_SAMPLING = ("do_sample", "temperature", "top_k", "top_p", "min_p")
# The default of the harness's own models, if a task gives no number.
_MAX_TOKENS = 256

PAPER_TASKS = (
    *("arc_easy", "arc_challenge", "boolq", "copa", "hellaswag", "logiqa", "mathqa", "mc_taco"),
    *("medmcqa", "mmlu", "mnli", "openbookqa", "piqa", "pubmedqa", "qa4mre", "qnli", "race", "sciq"),
    *("sst2", "wic", "winogrande"),
)
"""The 21 rows of the Birdie paper's list of tasks (appendix A.4), by the harness's names.

Table 2 speaks of 21 tasks with MMLU among them, as here. Table 5 has 20 columns: the two halves of ARC are
one of them, MMLU is missing, and TruthfulQA is there, which the list does not have: add `truthfulqa_mc1`.
"""


class _Cut(NamedTuple):
    """A prompt within the model's limit.

    Attributes:
        prompt: the prompt, without the beginning of a context that was too long.
        was_cut: whether a beginning is missing.
    """

    prompt: Prompt
    was_cut: bool


class _Answering(NamedTuple):
    """How to decode an answer; requests with the same rule are answered together.

    Attributes:
        until: the strings before which it ends.
        max_tokens: the largest number of its tokens.
        sampling: the rule that chooses tokens.
    """

    until: tuple[str, ...]
    max_tokens: int
    sampling: Sampling


class HarnessModel(LM):
    """Answers the harness's requests by a `TaskModel`.

    A context is the prompt of the arm's objective: prefix_lm reads it bidirectionally, with the start token
    behind it, and the continuation is what follows; causal_lm has the context as the beginning of the
    target. What separates the two, mostly a space, is part of the continuation, as the harness has it. An
    empty context is the start token alone. Contexts that are too long lose their beginning, as with the
    harness's own models, and a warning says how many did.
    """

    def __init__(self, model: TaskModel, normalization: Normalization = "none"):
        """Answer by `model`.

        Args:
            model: the model, with the objective arm whose format prompts take.
            normalization: "none" gives the log-likelihood of a continuation, the sum over its tokens, as
                the harness asks; "tokens" divides it by the number of the tokens, so that the harness's
                `acc` is the accuracy by loss per target token (Birdie paper, Table 8). Its `acc_norm`,
                which divides by characters once more, means nothing then.

        Raises:
            ConfigError: not every text is a prompt of the arm's objective.
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
        """The hash of the tokenizer, which the harness uses to recognise requests."""
        return self._model.tokenizer.sha256

    def loglikelihood(
        self, requests: Sequence[Instance], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Return for each (context, continuation) its log-likelihood, and whether greedy choice gives it.

        Raises:
            ConfigError: a continuation is longer than the model's limit; or likelihoods are to be
                normalised, and a task does not compare them.
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
        """Return the likelihood of each (context, continuation); each context is read once.

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
            [one.prompt for one in cut],
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
        """Return the log-likelihood of each whole text, read causally from the start token."""
        del disable_tqdm
        losses = self._model.text_losses(
            [self._model.tokenizer.encode(request.args[0]) for request in requests]
        )
        answers = [-float(of_text.sum(dtype=np.float64)) for of_text in losses]
        for request, answer in zip(requests, answers, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, answer)
        return answers

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """Return the answer to each (context, settings); of equal requests each has a seed of its own.

        Raises:
            ConfigError: a setting is unknown or unusable, or an answer may be longer than the limit.
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

        Space at the end of the context begins the continuation (as in the harness's `TemplateLM`). In
        causal_lm the tokens of the continuation are those that the context lacks of both together.
        """
        tokenizer, stripped = self._model.tokenizer, context.rstrip()
        continuation = context[len(stripped) :] + continuation
        if self._model.arm.objective.name != "causal_lm" or not stripped:
            return stripped, tokenizer.encode(continuation)
        whole = tokenizer.encode(stripped + continuation)
        return stripped, whole[len(tokenizer.encode(stripped)) :]

    def _prompt(self, context: str, max_tokens: int) -> _Cut:
        """Return the prompt of a context, short enough for `max_tokens` tokens after it."""
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
    """Check that each document asks for several likelihoods, as multiple choice does."""
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
    """Return for each context how many before it are the same."""
    seen: Counter[str] = Counter()
    numbers = []
    for context in contexts:
        numbers.append(seen[context])
        seen[context] += 1
    return numbers
