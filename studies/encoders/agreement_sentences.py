"""Sentences whose verb agrees with its subject across another noun, of words that are common in the corpus.

    The man near the kings was ...

They are the subject, prepositional phrase and verb of Marvin and Linzen 2018 in words of old prose, in the
JSON that the task `agreement` reads as `choices`.
"""

from typing import Any

import numpy as np

_NOUNS = (
    ("man", "men"),
    ("woman", "women"),
    ("king", "kings"),
    ("servant", "servants"),
    ("son", "sons"),
    ("friend", "friends"),
    ("brother", "brothers"),
    ("captain", "captains"),
    ("child", "children"),
    ("lady", "ladies"),
)
_PREPOSITIONS = ("near", "beside", "with", "before", "behind")
_VERBS = (("is", "are"), ("was", "were"), ("has", "have"))
_ENDS = {
    "is": ("not here", "very good"),
    "was": ("not there", "very great"),
    "has": ("been here", "come to the house"),
}
_NUMBERS = ("singular", "plural")


def agreement_sentences(count: int, rng: np.random.Generator) -> dict[str, Any]:
    """Return `count` different sentences as the JSON of the task; numbers of both nouns are balanced.

    Args:
        count: the number of sentences, at most some thousands.
        rng: the source of every random choice.
    """
    examples: dict[str, dict[str, Any]] = {}
    while len(examples) < count:
        subject, other = rng.choice(len(_NOUNS), size=2, replace=False)
        number, other_number = len(examples) % 2, len(examples) // 2 % 2
        verbs = _VERBS[int(rng.integers(len(_VERBS)))]
        ends = _ENDS[verbs[0]]
        end = ends[int(rng.integers(len(ends)))]
        preposition = _PREPOSITIONS[int(rng.integers(len(_PREPOSITIONS)))]
        begin = f"The {_NOUNS[subject][number]} {preposition} the {_NOUNS[other][other_number]}"
        examples.setdefault(
            f"{begin} {verbs[number]} {end}",
            {
                "input": begin,
                "target_scores": {f"{verbs[number]} {end}.": 1, f"{verbs[1 - number]} {end}.": 0},
                "comment": f"{_NUMBERS[number]}_{_NUMBERS[other_number]}",
            },
        )
    return {"examples": list(examples.values())}
