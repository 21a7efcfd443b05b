"""The tasks that measure a run, and the baseline of digits for answers about phone books.

The baseline ignores the name: it writes the most frequent digit of the book at each position of a number.
Of all answers that depend only on the book, it has the most correct digits.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from birdie_jax.tasks.phonebook_text import read_numbers
from studies.retrieval.plans import LANGUAGE, Scale
from studies.retrieval.text import Corpus

ABOVE_COMMONEST = "digit_accuracy_above_commonest"
INFILLING, SQUAD = "infilling", "squad"
# Validation takes all documents of the file of held-out documents.
_ALL = 1 - 2**-30
_RECALL_LENGTHS = 8


def pretrained_tasks(scale: Scale, corpus: Corpus) -> dict[str, dict[str, Any]]:
    """Return the tasks that measure a pre-trained model without fine-tuning, by name."""
    plan = scale.measuring
    passages = {
        "lengths": plan.lengths,
        "questions_per_length": plan.questions_per_length,
        "source": str(corpus.held_out),
        "validation_fraction": _ALL,
    }
    selective = {"task": "selective_copying_by_length", "spans": 1, **passages}
    recall = {
        f"associative_recall_{pairs}": {
            "task": "associative_recall",
            "vocab_size": plan.recall_vocabulary,
            "sequence_length": _RECALL_LENGTHS * pairs,
            "key_value_pairs": pairs,
            "num_sequences": plan.recall_sequences,
        }
        for pairs in plan.pairs
    }
    tasks = {
        "copying": {"task": "copying_by_length", **passages},
        "selective_copying_first": {**selective, "query_first": True},
        "selective_copying_last": {**selective, "query_first": False},
        **recall,
        INFILLING: {"task": "infilling", "path": str(corpus.stories)},
        LANGUAGE: {
            "task": "perplexity",
            "path": str(corpus.held_out),
            "window": plan.window,
            "max_documents": plan.documents,
        },
    }
    return {name: task for name, task in tasks.items() if not scale.measured or name in scale.measured}


def above_baseline(kind: str, answer: Mapping[str, Any]) -> Mapping[str, float]:
    """Return an answer's digit accuracy above the baseline; empty unless the task is a phone book."""
    if kind != "phonebook":
        return {}
    baseline = commonest_digits(answer["prompt"], answer["references"][0])
    return {ABOVE_COMMONEST: answer["metrics"]["digit_accuracy"] - baseline}


def commonest_digits(prompt: str, answer: str) -> float:
    """Return the expected digit accuracy of giving the book's commonest digit at each position.

    If several digits are equally common, a random one of them counts.

    Args:
        prompt: the prompt with the book.
        answer: the correct answer: numbers with a comma and a space between them.
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
    """Return the mean of `commonest_digits` over pairs (prompt, answer)."""
    return float(np.mean([commonest_digits(prompt, answer) for prompt, answer in questions]))
