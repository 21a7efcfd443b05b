"""What answers score that copy any entry of the phone book: the baseline of retrieval."""

from collections.abc import Iterable

import numpy as np

from birdie_jax.tasks.phonebook_text import read_numbers


def copy_any_entry(prompt: str, answer: str) -> float:
    """Return the expected digit accuracy of writing any number of the book for each one asked for.

    Exact: the mean over all entries of the book, the one asked for among them, as
    `birdie_jax.tasks.phonebook` counts the digits.

    Args:
        prompt: the prompt with the book.
        answer: the right answer: numbers with a comma and a space between them.
    """
    entries = sorted(read_numbers(prompt))
    shares = [
        [_right_digits(entry, number) / sum(map(str.isdigit, number)) for entry in entries]
        for number in answer.split(", ")
    ]
    return float(np.mean(shares))


def mean_copy_any_entry(questions: Iterable[tuple[str, str]]) -> float:
    """Return the mean of `copy_any_entry` over (prompt, answer)."""
    return float(np.mean([copy_any_entry(prompt, answer) for prompt, answer in questions]))


def _right_digits(found: str, wanted: str) -> int:
    return sum(one == other for one, other in zip(found, wanted, strict=True) if other.isdigit())
