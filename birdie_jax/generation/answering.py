"""Answers to many prompts, in batches: on the terminal, or as JSONL that is gone on with."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from birdie_jax.generation.generator import Generator
from birdie_jax.generation.jsonl import Record, append_lines, count_finished_lines, to_jsonl
from birdie_jax.generation.prompt import Prompt
from birdie_jax.generation.text_generation import TextAnswer, generate_texts
from birdie_jax.models.saved_state import SavedState
from birdie_jax.text import Tokenizer

# A prompt, and the number of one of its answers.
_Request = tuple[Prompt, int]


@dataclass(frozen=True)
class Answering:
    """A model that is asked, and how.

    Attributes:
        generator: the generator of the model.
        tokenizer: the model's tokenizer.
        state: the state from which every prompt goes on; None = they begin samples.
        max_tokens: the largest number of tokens of an answer.
        samples: the number of answers to each prompt.
        first_seed: the random seed of the first answer to each prompt; those after it have the next ones.
        stop_strings: strings; an answer ends before the first of them.
        batch: the largest number of answers that are generated at a time.
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
        """Stream one answer as it is decoded; print several one after the other, each under its number."""
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
        """Write a line for each record and sample, in order, after the lines of an earlier start.

        Args:
            prompts: the prompts.
            records: the record of each prompt, which its answers' lines repeat.
            settings: what tells answers apart that were asked for otherwise.
            output: the file; None = standard output.

        Raises:
            PromptError: the file holds something else, or cannot be read or written.
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
                print(f"{output}: going on after line {done}", file=sys.stderr)
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
