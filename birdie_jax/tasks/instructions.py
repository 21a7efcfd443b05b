"""Instruction tuning (Birdie paper, appendix A.2): dialogues, of which the answers are learned."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Literal, NamedTuple

from birdie_jax.storage import shown
from birdie_jax.tasks.chat_template import ChatTemplate, TemplateFailed
from birdie_jax.tasks.flat_examples import FlatExamples
from birdie_jax.tasks.question import Question, ScoredAnswer, TaskResult
from birdie_jax.tasks.records import DataPath, check_text, read_field, read_records, read_text
from birdie_jax.tasks.registry import register_task
from birdie_jax.tasks.task import Task
from birdie_jax.tasks.task_model import Progress, TaskModel, no_progress
from birdie_jax.text import DataError, Tokenizer

_ROLES = ("system", "user", "assistant")


class Turn(NamedTuple):
    """An answer of the assistant, and what stands before it.

    Attributes:
        name: the place of the turn: its file and line, and which of the line's answers it is if not the
            only one.
        prompt: everything before the answer, as the template renders it.
        response: the answer.
    """

    name: str
    prompt: str
    response: str


@register_task
@dataclass(frozen=True, kw_only=True)
class Instructions(Task):
    """Dialogues in a JSONL file, to be fine-tuned on, or with another file to be measured on.

    A record is {"prompt": text, "response": text}, or {"messages": [{"role": ..., "content": text}, ...]}
    with the roles system (first, if at all), user and assistant, which take turns and end with the
    assistant. The context is what the template renders of all messages before an answer; loss is on the
    answer and on the token that ends it.

    While a file is tokenized it is in memory as text, about twice its size; then tokens take 4 bytes each
    (`FlatExamples`), in every process and every worker that makes batches.

    Metric: loss, the cross-entropy in nats a token of the answers, without the token that ends them.

    Attributes:
        path: the JSONL file, or its URL; also compressed: .jsonl.gz, .jsonl.xz, .jsonl.zst.
        template: the chat template, Jinja (`ChatTemplate`); empty = `DEFAULT_TEMPLATE`.
        turns: "all", an example for each answer of a dialogue; or "last", for its last one alone.
        skip_bad_records: whether bad records are passed over and told, not refused.
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
        """Return the answers to learn, in the order of the file, and a line for each record passed over.

        Raises:
            DataError: the file cannot be read, or records are bad; names the first, and counts all.
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
        """Return the loss of the file's answers; each counts by its tokens."""
        turns, refused = self.read_turns()
        questions = [Question(turn.name, turn.prompt, (turn.response,)) for turn in turns]
        asked, prompts, refused = model.prompts(questions, refused, 0)
        choices = [question.references for question in asked]
        scored = []
        for question, (found,) in zip(
            asked, model.choice_likelihoods(prompts, choices, progress), strict=True
        ):
            loss = -found.log_likelihood / found.tokens
            details = {"tokens": found.tokens}
            answer = question.references[0]
            scored.append(ScoredAnswer(question, answer, {"loss": loss}, float(found.tokens), details))
        return TaskResult(tuple(scored), tuple(refused))

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


# Not kept by a task, which travels to the workers that make batches: a compiled template cannot.
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
    """Return the roles that a message may have behind one of `role`, or as the first one."""
    return {"": _ROLES[:2], "system": ("user",), "user": ("assistant",), "assistant": ("user",)}[role]
