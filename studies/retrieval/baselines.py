"""What answers score that do not look at the name: the baselines of retrieval from phone books.

Copying any entry writes some number of the book. Giving the commonest digits writes, in each place of a
number, the digit that most entries have there: of all answers that depend on the book alone, and not on the
name that is asked for, it has the most digits right.
"""

from collections import Counter
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


def commonest_digits(prompt: str, answer: str) -> float:
    """Return the expected digit accuracy of giving the commonest digit of each place in the book.

    Of several that are equally common, any is given.

    Args:
        prompt: the prompt with the book.
        answer: the right answer: numbers with a comma and a space between them.
    """
    shares = []
    for place, characters in enumerate(zip(*read_numbers(prompt), strict=True)):
        if not characters[0].isdigit():
            continue
        counts = Counter(characters)
        commonest = {digit for digit, count in counts.items() if count == max(counts.values())}
        shares += [(number[place] in commonest) / len(commonest) for number in answer.split(", ")]
    return float(np.mean(shares))


def mean_commonest_digits(questions: Iterable[tuple[str, str]]) -> float:
    """Return the mean of `commonest_digits` over (prompt, answer)."""
    return float(np.mean([commonest_digits(prompt, answer) for prompt, answer in questions]))


def _right_digits(found: str, wanted: str) -> int:
    return sum(one == other for one, other in zip(found, wanted, strict=True) if other.isdigit())
