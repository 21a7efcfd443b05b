"""Instruction tuning on dialogues (Birdie paper, appendix A.2)."""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Literal, NamedTuple, NoReturn

import jinja2
import numpy as np
from jinja2.sandbox import ImmutableSandboxedEnvironment

from birdie_jax import vocabulary
from birdie_jax.errors import DataError, shown
from birdie_jax.generation import make_prompt
from birdie_jax.objectives import Example, make_objective
from birdie_jax.tasks.question import Question, ScoredAnswer, TaskResult
from birdie_jax.tasks.records import DataPath, check_text, read_field, read_records, read_text
from birdie_jax.tasks.registry import register_task
from birdie_jax.tasks.task import Task
from birdie_jax.tasks.task_model import Progress, TaskModel, longest_choices, no_progress
from birdie_jax.tasks.training_examples import PROMPT_OBJECTIVE
from birdie_jax.text import Tokenizer

# How many pairs are tokenized at a time, on all cores.
_BLOCK = 4096
_PROBE = "a"
_END = np.array([vocabulary.END], np.int32)
# The end of an answer's name, if its dialogue has several.
_ANSWER = re.compile(r" answer \d+$")


class FlatExamples:
    """The examples of pairs of texts, in order; a `RecordedExamples`.

    A token takes 4 bytes, and 8 bytes during construction. An example takes 24 bytes plus its name.

    Attributes:
        lengths: the number of positions of each example, int64 [examples].
        sha256: a hash of all examples.
        refused: a message for each skipped record.
    """

    def __init__(
        self,
        pairs: Sequence[tuple[str, str]],
        names: Sequence[str],
        refused: Sequence[str],
        tokenizer: Tokenizer,
    ):
        """Tokenize prompts and answers. The examples equal those of `training_example`.

        Args:
            pairs: the prompt and the answer of each example; a prompt has at least one token.
            names: the display name of each example.
            refused: a message for each skipped record.
            tokenizer: the tokenizer of the model.
        """
        self._names, self.refused = names, tuple(refused)
        # The tokens that begin every prompt.
        objective = make_objective(PROMPT_OBJECTIVE)
        marker = make_prompt(_PROBE, objective, tokenizer).context[: -len(tokenizer.encode(_PROBE))]
        blocks, contexts, ends = [_END[:0]], [], []
        end = 0
        for pair in _blocks(pairs):
            prompts, answers = (
                tokenizer.encode_batch(texts, num_threads=-1) for texts in zip(*pair, strict=True)
            )
            parts = []
            for prompt, answer in zip(prompts, answers, strict=True):
                contexts.append(len(marker) + len(prompt))
                end += contexts[-1] + len(answer) + 1
                ends.append(end)
                parts += [marker, prompt, answer, _END]
            blocks.append(np.concatenate(parts))
        self._tokens = np.concatenate(blocks)
        self._contexts, self._ends = np.array(contexts, np.int64), np.array(ends, np.int64)
        self.lengths = np.diff(self._ends, prepend=0)
        digest = hashlib.sha256()
        for array in (self._contexts, self._ends, self._tokens):
            digest.update(array.tobytes())
        self.sha256 = digest.hexdigest()

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> Example:
        begin, end = self._ends[index] - self.lengths[index], self._ends[index]
        split = begin + self._contexts[index]
        return Example(self._tokens[begin:split], self._tokens[split:end])

    def name_of(self, index: int) -> str:
        """Return the display name of an example."""
        return self._names[index]


def _blocks(pairs: Sequence[tuple[str, str]]) -> Iterator[Sequence[tuple[str, str]]]:
    for first in range(0, len(pairs), _BLOCK):
        yield pairs[first : first + _BLOCK]


# The template leaves a single user message unchanged, so prompts of `generate --prompt` match training. In
# a longer dialogue, a line with the role precedes each message, and the last line names the next speaker.
DEFAULT_TEMPLATE = """\
{%- if messages | length == 1 and messages[0].role == 'user' -%}
{{ messages[0].content }}
{%- else -%}
{%- for message in messages -%}
{{ message.role ~ ':\\n' ~ message.content ~ '\\n\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ 'assistant:\\n' }}
{%- endif -%}
{%- endif -%}
"""


class TemplateFailed(ValueError):  # noqa: N818 - describes a dialogue, not an error of the program
    """A template cannot be rendered for a dialogue; the message gives the reason."""


class ChatTemplate:
    """A Jinja chat template, rendered in Jinja's sandbox.

    A template renders the text before an answer, including the start of the assistant's turn. Its variables
    are `messages`, each with `role` and `content`; `add_generation_prompt`, which is true; and `bos_token`
    and `eos_token`, which are empty, because special tokens are never text here. It may call
    `raise_exception`. The chat templates of Hugging Face tokenizers use the same variables.
    """

    def __init__(self, source: str):
        """Compile a template.

        Args:
            source: the template; empty = the default template.

        Raises:
            ValueError: the template is invalid. The message names the line.
        """
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined, autoescape=False
        )
        environment.globals["raise_exception"] = _raise
        try:
            self._template = environment.from_string(source or DEFAULT_TEMPLATE)
        except jinja2.TemplateSyntaxError as error:
            raise ValueError(f"line {error.lineno}: {error.message}") from error

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Return the text before the answer.

        Raises:
            TemplateFailed: the template rejects the messages, or rendering fails.
        """
        try:
            return self._template.render(
                messages=messages, add_generation_prompt=True, bos_token="", eos_token=""
            )
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise TemplateFailed(f"{type(error).__name__}: {error}") from error
        except (OverflowError, RecursionError, MemoryError) as error:
            raise TemplateFailed(type(error).__name__) from error


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


_ROLES = ("system", "user", "assistant")


class Turn(NamedTuple):
    """An answer of the assistant, and the messages before it.

    Attributes:
        name: the location of the turn: file and line, and the number of the answer if the line has several.
        prompt: the rendered text before the answer.
        response: the answer.
    """

    name: str
    prompt: str
    response: str


@register_task
@dataclass(frozen=True, kw_only=True)
class Instructions(Task):
    """Dialogues in a JSONL file, for fine-tuning or measurement.

    A record is {"prompt": text, "response": text}, or {"messages": [{"role": ..., "content": text}, ...]}.
    An optional system message comes first. Then user and assistant take turns, and the assistant is last.
    The context is the rendered text before an answer. The loss is on the answer and END.

    During tokenization, the text of the file is in memory and takes about twice the size of the file. Then
    a token takes 4 bytes (`FlatExamples`), in every process and every worker that makes batches.

    Metric: loss, the cross-entropy of the answers in nats per token, without END. The answers of a dialogue
    are one unit of intervals.

    Attributes:
        path: the JSONL file, or its URL; may be compressed: .jsonl.gz, .jsonl.xz, .jsonl.zst.
        template: the chat template, in Jinja (`ChatTemplate`); empty = `DEFAULT_TEMPLATE`.
        turns: "all" = an example for each answer of a dialogue; "last" = an example for the last answer.
        skip_bad_records: whether to skip and report bad records instead of refusing the file.
    """

    name: ClassVar[str] = "instructions"
    main_metric: ClassVar[str] = "loss"

    path: DataPath
    template: str = ""
    turns: Literal["all", "last"] = "all"
    skip_bad_records: bool = False

    def __post_init__(self):
        try:
            _compiled(self.template)
        except ValueError as error:
            raise ValueError(f"template: {error}; allowed: a Jinja template") from error

    def read_turns(self) -> tuple[list[Turn], list[str]]:
        """Return the answers in the order of the file, and a message for each skipped record.

        Raises:
            DataError: the file cannot be read, or records are bad. The message counts the bad records and
                names the first.
        """
        found, refused = read_records(self.path, self._parse, self.skip_bad_records)
        return [turn for turns in found for turn in turns], refused

    def training_examples(self, tokenizer: Tokenizer) -> FlatExamples:
        """Return an example for each answer."""
        turns, refused = self.read_turns()
        pairs = [(turn.prompt, turn.response) for turn in turns]
        return FlatExamples(pairs, [turn.name for turn in turns], refused, tokenizer)

    def check_data(self, tokenizer: Tokenizer) -> None:
        """Read the dialogues."""
        del tokenizer
        self.read_turns()

    def measure(self, model: TaskModel, progress: Progress = no_progress) -> TaskResult:
        """Return the loss of the answers, weighted by their numbers of tokens."""
        turns, refused = self.read_turns()
        questions = [Question(turn.name, turn.prompt, (turn.response,)) for turn in turns]
        limits = longest_choices(questions, model.tokenizer)
        questions, prompts, refused = model.prompts(questions, refused, limits)
        choices = [question.references for question in questions]
        likelihoods = model.choice_likelihoods(prompts, choices, progress)
        scored = []
        for question, (likelihood,) in zip(questions, likelihoods, strict=True):
            # A tokenizer can leave an answer without tokens; such an answer weighs 0.
            loss = -likelihood.log_likelihood / max(likelihood.tokens, 1)
            details = {"tokens": likelihood.tokens}
            answer = question.references[0]
            scored.append(ScoredAnswer(question, answer, {"loss": loss}, float(likelihood.tokens), details))
        return TaskResult(tuple(scored), tuple(refused))

    def unit_of(self, answer: ScoredAnswer) -> str:
        """Return the location of the dialogue, whose answers share their prompts."""
        return _ANSWER.sub("", answer.question.name)

    def _parse(self, record: Mapping[str, Any], where: str) -> list[Turn]:
        if ("messages" in record) == ("prompt" in record):
            both = "both" if "messages" in record else "neither"
            raise DataError(
                f"{where}: found {both} of the fields prompt and messages; allowed: prompt with response, "
                "or messages"
            )
        if "prompt" in record:
            messages = [
                {"role": "user", "content": read_text(record, "prompt", where)},
                {"role": "assistant", "content": read_text(record, "response", where)},
            ]
        else:
            messages = _read_messages(record, where)
        answers = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
        last = len(answers)
        return [
            Turn(
                where if last == 1 else f"{where} answer {number}",
                self._render(messages[:place], where),
                messages[place]["content"],
            )
            for number, place in enumerate(answers, start=1)
            if self.turns == "all" or number == last
        ]

    def _render(self, messages: Sequence[Mapping[str, str]], where: str) -> str:
        try:
            prompt = _compiled(self.template).render(messages)
        except TemplateFailed as error:
            raise DataError(f"{where}: its template cannot be rendered: {error}") from error
        return check_text(prompt, f"{where}: what the template renders")


# Not a field of the task: tasks are sent to the workers that make batches, and a compiled template
# cannot be.
@cache
def _compiled(source: str) -> ChatTemplate:
    return ChatTemplate(source)


def _read_messages(record: Mapping[str, Any], where: str) -> list[dict[str, str]]:
    messages = []
    for number, message in enumerate(read_field(record, "messages", list[dict[str, Any]], where)):
        place = f"{where}: messages[{number}]"
        role = read_field(message, "role", str, place)
        before = messages[-1]["role"] if messages else ""
        allowed = _roles_after(before)
        if role not in allowed:
            after = f"behind {before}" if before else "first"
            raise DataError(
                f"{place}: found the role {shown(role)} {after}; allowed: {' or '.join(allowed)}"
            )
        messages.append({"role": role, "content": read_text(message, "content", place)})
    if not messages or messages[-1]["role"] != "assistant":
        found = f"last the role {messages[-1]['role']}" if messages else "no message"
        raise DataError(f"{where}: messages: found {found}; allowed: messages that end with assistant")
    return messages


def _roles_after(role: str) -> tuple[str, ...]:
    """Return the roles that may follow `role`, or that may come first if `role` is empty."""
    return {"": _ROLES[:2], "system": ("user",), "user": ("assistant",), "assistant": ("user",)}[role]
