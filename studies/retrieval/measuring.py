"""Measuring of a run: which tasks, and what is computed of their answers beside their metrics."""

from collections.abc import Mapping
from typing import Any

from studies.retrieval.baselines import commonest_digits, copy_any_entry
from studies.retrieval.plans import Scale
from studies.retrieval.text import Corpus

COPIED_DIGITS, COMMONEST_DIGITS = "copy_any_digit_accuracy", "commonest_digit_accuracy"
ABOVE_COMMONEST = "digit_accuracy_above_commonest"
LANGUAGE, INFILLING = "held_out_text", "infilling"
# All documents of a file that holds nothing else.
_ALL = 1 - 2**-30
_RECALL_LENGTHS = 8


def pretrained_tasks(scale: Scale, corpus: Corpus) -> dict[str, dict[str, Any]]:
    """Return the tasks that a pre-trained model is measured on as it is, by name."""
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
    return {
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


def baselines_of_books(kind: str, answer: Mapping[str, Any]) -> Mapping[str, float]:
    """Return what baselines give on a question about a phone book, and what its answer has beyond one.

    They are copying any entry and giving the commonest digits, by what they are expected to give.
    """
    if kind != "phonebook":
        return {}
    asked_of = answer["prompt"], answer["references"][0]
    commonest = commonest_digits(*asked_of)
    return {
        COPIED_DIGITS: copy_any_entry(*asked_of),
        COMMONEST_DIGITS: commonest,
        ABOVE_COMMONEST: answer["metrics"]["digit_accuracy"] - commonest,
    }
