"""Small tasks for tests."""

from dataclasses import dataclass
from typing import ClassVar

from birdie_jax.tasks import ChoiceTask, GenerationTask, Question

LETTERS = "abcdefghijklmno"


def letters(number: int, count: int) -> str:
    """Return a text of `count` letters of the small tokenizer."""
    return "".join(LETTERS[(number * 7 + place * (number + 3)) % 15] for place in range(count))


@dataclass(frozen=True, kw_only=True)
class Lengths(GenerationTask):
    """Prompts of many lengths. The score is the length of the answer."""

    name: ClassVar[str] = "lengths"
    main_metric: ClassVar[str] = "characters"
    sizes: ClassVar[tuple[int, ...]] = (5, 30, 90, 8, 0, 200, 41, 17, 60)

    max_tokens: int = 6

    def questions(self, tokenizer):
        """Return a question of each size. Size 0 has an empty prompt, which is invalid."""
        del tokenizer
        made = [
            Question(f"q{number}", letters(number, size), ("a",), groups={"size": size})
            for number, size in enumerate(self.sizes)
        ]
        return made, ["lengths.txt line 3: found no question"]

    def score(self, question, answer):
        """Return the length of the answer, and whether it is right."""
        return {"characters": float(len(answer)), "right": float(answer in question.references)}


@dataclass(frozen=True, kw_only=True)
class Picks(ChoiceTask):
    """Questions with three choices of different lengths."""

    name: ClassVar[str] = "picks"

    def questions(self, tokenizer):
        """Return five questions."""
        del tokenizer
        choices = ("ab", "cdefgh", "mno mno mno")
        made = [
            Question(f"p{number}", letters(number, 20 + number), (choices[number % 3],), choices)
            for number in range(5)
        ]
        return made, []


@dataclass(frozen=True, kw_only=True)
class OneChoice(ChoiceTask):
    """One question; its first choice is right."""

    name: ClassVar[str] = "one_choice"

    prompt: str
    choices: tuple[str, ...]

    def questions(self, tokenizer):
        """Return the question."""
        del tokenizer
        return [Question("one", self.prompt, self.choices[:1], self.choices)], []
