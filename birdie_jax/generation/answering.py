"""Reads prompts from JSONL and writes their answers, on the terminal or as JSONL."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from birdie_jax.errors import PromptError, one_line
from birdie_jax.generation.generator import Generator
from birdie_jax.generation.prompt import Prompt
from birdie_jax.generation.text_generation import TextAnswer, generate_texts
from birdie_jax.models.saved_state import SavedState
from birdie_jax.storage import endless_kind
from birdie_jax.storage.json_text import RepeatedField, parse_json
from birdie_jax.text import Tokenizer

# A JSON object: a prompt, and the other fields of its line.
Record = dict[str, Any]

PROMPT_FIELD = "prompt"
# The fields that an output line adds to its record.
ANSWER_FIELDS = ("generated", "generated_tokens", "stopped_by", "sample", "settings")


def read_records(path: Path) -> list[Record]:
    """Return the records of a file: one JSON object per line, with a text in the field `prompt`.

    Raises:
        PromptError: the file cannot be read, has no records, or has an unusable record. The message names
            the line.
    """
    if endless := endless_kind(path):
        raise PromptError(f"{path}: found {endless}; allowed: a file, or --prompt_file=/dev/stdin")
    try:
        lines = path.read_bytes().splitlines()
    except (OSError, ValueError) as error:
        raise PromptError(f"{path}: cannot be read: {describe_os_error(error)}") from error
    records = []
    for number, line in enumerate(lines, start=1):
        where = f"{path} line {number}"
        if not line.strip():
            raise PromptError(f"{where}: is empty; allowed: a JSON object with the field {PROMPT_FIELD!r}")
        try:
            # The answers are JSON and repeat its fields.
            record = parse_json(line, finite=True)
        except RepeatedField as error:
            raise PromptError(f"{where}: {error}") from error
        except ValueError as error:
            raise PromptError(f"{where}: is not JSON ({error})") from error
        if not isinstance(record, dict) or not isinstance(record.get(PROMPT_FIELD), str):
            found = sorted(record) if isinstance(record, dict) else type(record).__name__
            raise PromptError(
                f"{where}: found {one_line(str(found), 200)}; allowed: a JSON object with the field "
                f"{PROMPT_FIELD!r}, a text"
            )
        taken = [field for field in ANSWER_FIELDS if field in record]
        if taken:
            raise PromptError(
                f"{where}: has the field {taken[0]!r}, which the answer adds; allowed: any other name"
            )
        records.append(record)
    if not records:
        raise PromptError(f"{path}: holds no record; allowed: one JSON object a line")
    return records


def count_finished_lines(path: Path, expected: Sequence[Record]) -> int:
    """Return the number of whole lines in `path` from an earlier run of the same command.

    Truncate a last line without a line end, which an interruption leaves. Do not change a file with other
    content.

    Args:
        path: the output file.
        expected: the fields that each line of the whole output must have: record, sample and settings.

    Raises:
        PromptError: the file cannot be read or written, or has other content.
    """
    if not path.exists():
        return 0
    if not path.is_file():
        # A device or a pipe has no earlier lines to read.
        return 0
    other = f"{path}: exists, and"
    try:
        *lines, unfinished = path.read_bytes().split(b"\n")
    except OSError as error:
        raise PromptError(f"{path}: cannot be read: {describe_os_error(error)}") from error
    count = len(lines) + bool(unfinished)
    if count > len(expected):
        raise PromptError(f"{other} has {count} lines; this command writes {len(expected)}")
    same = [_is_answer(line, fields) for line, fields in zip(lines, expected, strict=False)]
    if unfinished:
        same.append(_begins_answer(unfinished, expected[len(lines)]))
    if not all(same):
        raise PromptError(
            f"{other} its line {same.index(False) + 1} is not an answer of this command to its record and "
            "settings; allowed: another --output, or the same command to resume it"
        )
    if unfinished:
        try:
            os.truncate(path, sum(len(line) + 1 for line in lines))
        except OSError as error:
            raise PromptError(f"{path}: cannot be written: {describe_os_error(error)}") from error
    return len(lines)


def _is_answer(line: bytes, fields: Record) -> bool:
    try:
        found = parse_json(line)
        # Compare text, because NaN is not equal to itself.
        return json.dumps({name: found.get(name) for name in fields}) == json.dumps(fields)
    except (ValueError, AttributeError):
        return False


def _begins_answer(line: bytes, fields: Record) -> bool:
    """Return whether an unfinished line agrees with the line of an answer, in either form of `to_jsonl`."""
    for ascii_only in (False, True):
        begin = json.dumps(fields, ensure_ascii=ascii_only)[:-1].encode(errors="surrogatepass")
        if line.startswith(begin[: len(line)]):
            return True
    return False


def to_jsonl(records: Iterable[Record]) -> str:
    """Return records as JSONL, one JSON object per line.

    A line with half a character (a lone surrogate), which UTF-8 cannot encode, is escaped as ASCII. Other
    text is written as UTF-8. Both read back as the same text.
    """
    return "".join(_to_line(record) for record in records)


def append_lines(path: Path, lines: str) -> None:
    """Append whole lines to a file.

    Raises:
        PromptError: the file cannot be written.
    """
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(lines)
    except OSError as error:
        raise PromptError(f"{path}: cannot be written: {describe_os_error(error)}") from error


def describe_os_error(error: Exception) -> str:
    """Return the reason of an error about a file, without the file's name."""
    return getattr(error, "strerror", None) or str(error)


def _to_line(record: Record) -> str:
    line = json.dumps(record, ensure_ascii=False)
    try:
        line.encode()
    except UnicodeEncodeError:
        line = json.dumps(record)
    return line + "\n"


# A prompt, and the number of an answer to it.
_Request = tuple[Prompt, int]


@dataclass(frozen=True)
class Answering:
    """A model, and the settings of its answers.

    Attributes:
        generator: the generator of the model.
        tokenizer: the model's tokenizer.
        state: the state that every prompt continues; None: each prompt begins a sample.
        max_tokens: the maximum number of tokens in an answer.
        samples: the number of answers to each prompt.
        first_seed: the random seed of the first answer to each prompt; the next answer has the next seed.
        stop_strings: an answer ends before the first of these strings.
        batch: the maximum number of answers to generate at a time.
    """

    generator: Generator
    tokenizer: Tokenizer
    state: SavedState | None
    max_tokens: int
    samples: int
    first_seed: int
    stop_strings: Sequence[str]
    batch: int

    def print_answers(self, prompts: Sequence[Prompt]) -> None:
        """Stream a single answer during decoding; print several answers in turn, each under its number."""
        requests = self._requests(prompts)
        if len(requests) == 1:
            self._generate(requests, lambda _, text: print(text, end="", flush=True))
            print()
            return
        for first in range(0, len(requests), self.batch):
            answers = self._generate(requests[first : first + self.batch])
            for number, answer in enumerate(answers, start=first):
                prompt, sample = divmod(number, self.samples)
                print(f"--- prompt {prompt + 1}, sample {sample + 1}\n{answer.text}", flush=True)

    def write_answers(
        self, prompts: Sequence[Prompt], records: Sequence[Record], settings: str, output: Path | None
    ) -> None:
        """Write a line for each record and sample, in order, after the lines of an earlier run.

        Args:
            prompts: the prompts.
            records: the record of each prompt; the lines of its answers repeat it.
            settings: a hash of the settings that determine an answer.
            output: the file; None: standard output.

        Raises:
            PromptError: the file has other content, or cannot be read or written.
        """
        requests = self._requests(prompts)
        expected = [
            {**record, "sample": sample, "settings": settings}
            for record in records
            for sample in range(self.samples)
        ]
        done = 0
        if output is not None:
            done = count_finished_lines(output, expected)
            if done:
                print(f"{output}: resuming after line {done}", file=sys.stderr)
        for first in range(done, len(requests), self.batch):
            answers = self._generate(requests[first : first + self.batch])
            lines = to_jsonl(
                {
                    **expected[first + number],
                    "generated": answer.text,
                    "generated_tokens": answer.tokens,
                    "stopped_by": answer.stopped_by,
                }
                for number, answer in enumerate(answers)
            )
            if output is None:
                print(lines, end="", flush=True)
            else:
                append_lines(output, lines)

    def _requests(self, prompts: Sequence[Prompt]) -> list[_Request]:
        return [(prompt, sample) for prompt in prompts for sample in range(self.samples)]

    def _generate(
        self, requests: Sequence[_Request], show: Callable[[int, str], None] | None = None
    ) -> list[TextAnswer]:
        return generate_texts(
            self.generator,
            self.tokenizer,
            [prompt for prompt, _ in requests],
            max_tokens=self.max_tokens,
            seeds=[self.first_seed + sample for _, sample in requests],
            stop_strings=self.stop_strings,
            show=show,
            state=self.state,
        )
