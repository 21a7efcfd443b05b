"""Make answer_scores.json: scores of other programs on difficult answers.

    python -m venv /tmp/oracle && /tmp/oracle/bin/pip install 'transformers==4.57.6' hypothesis absl-py
    /tmp/oracle/bin/pip install --no-deps t5==0.9.4 lm-eval==0.4.13
    /tmp/oracle/bin/python tests/tasks/make_answer_scores.py

SQuAD v1.1: `t5.evaluation.qa_utils`. SQuAD v2.0: the copy of the official script in `transformers`.
Verbatim: the recall tasks of lm-eval. The script reads single files of t5 and lm-eval, because the
packages have many dependencies.
"""

import importlib
import importlib.util
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

HAND_MADE = [
    ("Denver Broncos", ["Denver Broncos", "the Broncos"]),
    ("the denver  broncos!", ["Denver Broncos"]),
    ("It was the Denver Broncos who won.", ["Denver Broncos", "Broncos"]),
    ("Broncos, Denver", ["Denver Broncos"]),
    ("", ["Denver"]),
    ("", ["the"]),
    ("the", ["the"]),
    ("a", ["an", "the"]),
    ("!", ["?"]),
    ("word", ["the", "!"]),
    ("word", ["the", "word"]),
    ("the", ["the", "word"]),
    ("U.S.", ["US", "United States"]),
    ("US", ["U.S."]),
    ("$5.2 million", ["5.2 million dollars", "$5.2 million"]),
    ("3–1", ["3-1"]),
    ("3-1", ["31"]),
    ("2016", ["20", "16"]),
    ("theatre", ["the", "atre"]),
    ("the-atre", ["theatre"]),
    ("a-la-carte", ["a la carte"]),
    ("don't", ["dont"]),
    ("don’t", ["don't"]),
    ("a.b.c", ["abc", "b c"]),
    ("one\ttwo\nthree", ["one two three"]),
    ("one\u00a0two", ["one two"]),
    ("one\u200btwo", ["onetwo", "one two"]),
    ("İstanbul", ["istanbul", "i̇stanbul"]),
    ("STRASSE", ["straße", "Strasse"]),
    ("Kelvin", ["\u212aelvin"]),
    ("ſ", ["s", "S"]),
    ("naïve", ["nai\u0308ve", "naive"]),
    ("the the the cat", ["cat", "the cat"]),
    ("cat cat dog", ["cat dog dog"]),
    ("cat dog", ["dog cat", "cat"]),
    ("yes, a", ["yes", "yes an"]),
    ("東京", ["東京", "東 京"]),
    ("x_y", ["xy", "x y"]),
    ("a*b(c", ["b(c", "*"]),
    ("(.*)", [".*", "abc"]),
    ("The Black Cloister,", [' "The Black Cloister,"']),
    ("23–16", [" 23–16", "23-16"]),
]

_WORDS = [
    "the",
    "a",
    "an",
    "An",
    "The",
    "cat",
    "Cat",
    "dog",
    "US",
    "U.S.",
    "don't",
    "3-1",
    "31",
    "straße",
    "İ",
    "é",
]
_JOINTS = [" ", "  ", "\n", "\t", "\u00a0", "\u3000", "-", ", ", ".", "", "'", "–", "_"]


def texts():
    words = st.sampled_from(_WORDS) | st.text(st.sampled_from("aAtThHeE nN.,!-\u0130ß\u00a0"), max_size=6)
    parts = st.lists(st.tuples(words, st.sampled_from(_JOINTS)), max_size=5)
    return parts.map(lambda found: "".join(word + joint for word, joint in found)[:-1])


def hypothesis_made(count):
    found = []

    # Use only generation, and no database, to make the same pairs in every run.
    @settings(
        max_examples=count,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
    )
    @given(texts(), st.lists(texts().filter(str.strip), min_size=1, max_size=3))
    def collect(answer, references):
        found.append((answer, references))

    collect()
    return found


def definitions(package, path, pattern, names):
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.submodule_search_locations is not None
    source = (Path(spec.submodule_search_locations[0]) / path).read_text()
    found = re.search(pattern, source, re.MULTILINE | re.DOTALL)
    assert found is not None
    exec(found[0], names)
    return names


def main():
    official = importlib.import_module("transformers.data.metrics.squad_metrics")
    old: dict[str, Any] = definitions("t5", "evaluation/qa_utils.py", r".*", {})
    one_function = r"^def contains_score.*?(?=^\S|\Z)"
    verbatim: dict[str, Any] = definitions(
        "lm_eval", "tasks/squad_completion/task.py", one_function, {"re": re}
    )
    scores = []
    for answer, references in HAND_MADE + hypothesis_made(500):
        example = SimpleNamespace(qas_id="", answers=[{"text": text} for text in references])
        exact, f1 = official.get_raw_scores([example], {"": answer})
        normalized = list(map(old["normalize_squad"], references))
        v1 = old["qa_metrics"]([normalized], [old["normalize_squad"](answer)])
        kept = [one for one in map(official.normalize_answer, references) if one]
        within = official.normalize_answer(answer)
        scores.append(
            {
                "answer": answer,
                "references": references,
                "v1": {"exact_match": v1["em"] / 100, "f1": v1["f1"] / 100},
                "v2": {"exact_match": exact[""], "f1": f1[""]},
                "contains": int(any(one in within for one in kept) if kept else not within),
                "contains_verbatim": verbatim["contains_score"](answer, references),
            }
        )
    lines = ",\n".join(json.dumps(one) for one in scores)
    Path(__file__).with_name("answer_scores.json").write_text(f"[\n{lines}\n]\n")
    print(f"{len(scores)} answers scored", file=sys.stderr)


if __name__ == "__main__":
    main()
