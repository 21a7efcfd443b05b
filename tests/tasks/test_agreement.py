"""The agreement task: its file formats, its scores and its errors."""

import json
import re

import jax.numpy as jnp
import numpy as np
import pytest

from birdie_jax import vocabulary
from birdie_jax.batching import layout_example
from birdie_jax.errors import ConfigError, DataError
from birdie_jax.objectives import Arm, Example, make_objective
from birdie_jax.tasks import LENGTH_GROUP
from birdie_jax.tasks.agreement import Agreement
from birdie_jax.tasks.agreement_formats import MinimalPair, read_pairs
from birdie_jax.tasks.task_model import FoundTokens, TaskModel
from tests.quick_jit import quick_jit
from tests.tasks.tiny_task_model import tiny_model_parts, tiny_task_model

SPECIAL = "[MASK]"


def choices(begin, good, bad, comment=""):
    return {"input": begin, "target_scores": {bad: 0, good: 1}, "comment": comment}


def write_choices(path, *records):
    path.write_text(json.dumps({"canary": "never train on it", "examples": list(records)}))
    return str(path)


TABLE = """pattern\tform\tclass\tn_attr\tlen_prefix\tsent
L__N\tgoes\tcorrect\t2\t2\t"A dog says "" no "" to cats . <eos>"
L__N\tgo\twrong\t2\t2\t"A dog says "" no "" to cats . <eos>"
"""
FILES = {
    "choices": (
        json.dumps({"examples": [choices("A dog of cats ", "goes home", "go home", "singular_plural")]}),
        MinimalPair("A dog of cats", "goes", "go", " home", "singular_plural", 1),
    ),
    "gulordava": (TABLE, MinimalPair("A dog", "goes", "go", ' " no " to cats .', "L__N", 2)),
    "linzen": (
        "3\t7\tthe dogs of a cat ***mask*** , he message .\tgo\tgoes\n",
        MinimalPair("the dogs of a cat", "go", "goes", " , he message .", "", 3),
    ),
    "marvin_linzen": (
        "simple\tsing\tthe dog laughs\tthe dog laugh\n",
        MinimalPair("the dog", "laughs", "laugh", "", "simple"),
    ),
}


@pytest.mark.parametrize("form", FILES)
def test_every_format_is_read(tmp_path, form):
    text, pair = FILES[form]
    path = tmp_path / "pairs"
    path.write_text(text)
    assert [found for _, found in read_pairs(str(path), form)] == [pair]


BAD = [
    ("choices", "[]", "found []; allowed: a JSON object"),
    ("choices", [{"input": "a ", "target_scores": {"b": 0}}], "examples[0]: target_scores: found [0];"),
    (
        "choices",
        [choices("a ", "goes up", "go down")],
        "examples[0]: target_scores: found ends that differ in",
    ),
    ("gulordava", "form\tsent\n", "has no columns class, len_prefix, n_attr, pattern; allowed: a table"),
    ("gulordava", TABLE.rpartition("L__N")[0], "line 2: found rows of the classes ['correct', None];"),
    ("gulordava", TABLE.replace("\t2\t2\t", "\t2\t90\t"), "line 2: len_prefix: found 90; allowed: 0 to 8"),
    ("gulordava", TABLE.replace("wrong\t2\t2\t", "wrong\t2\t"), "line 3: found 5 columns; allowed: 6:"),
    (
        "gulordava",
        TABLE.replace('<eos>"\nL', "<eos>\nL"),
        "line 2: found 'L__N\\tgoes\\tcorrect\\t2\\t2\\t\"A",
    ),
    ("gulordava", 'pattern\t"form\n', "line 1: found 'pattern\\t\"form' (unexpected end of data);"),
    ("linzen", "x\t1\ta ***mask*** b\tgo\tgoes", "line 1: attractors: found 'x'"),
    ("linzen", "1\t1\ta b\tgo\tgoes", "line 1: found 5 fields; allowed: 5, separated by tabs, the third a"),
    (
        "marvin_linzen",
        "x\ty\ta dog laughs\tthe dog laugh",
        "line 1: found sentences of 3 and 3 words that differ",
    ),
    ("linzen", "", "holds no pair; allowed: at least one"),
]


@pytest.mark.parametrize(("form", "text", "message"), BAD)
def test_errors_name_the_bad_record(tmp_path, form, text, message):
    path = tmp_path / "pairs"
    path.write_text(text if isinstance(text, str) else json.dumps({"examples": text}))
    pattern = f"^{re.escape(str(path))}: (1 of 1 records are bad: )?{re.escape(message)}"
    with pytest.raises(DataError, match=pattern):
        Agreement(path=str(path), format=form).measure(tiny_task_model())


# `str.splitlines` breaks lines at these characters.
OTHER_LINE_BREAKS = ("\u2028", "\x85", "\x0b", "\x1c")


@pytest.mark.parametrize("character", OTHER_LINE_BREAKS)
@pytest.mark.parametrize("form", ["gulordava", "linzen", "marvin_linzen"])
def test_only_line_feeds_end_lines(tmp_path, form, character):
    text, pair = FILES[form]
    path = tmp_path / "pairs"
    path.write_bytes(text.replace("dog", f"d{character}g").replace("\n", "\r\n").encode())
    ((_, found),) = read_pairs(str(path), form)
    assert isinstance(found, MinimalPair)
    assert (found.good, found.bad, found.attractors) == (pair.good, pair.bad, pair.attractors)


def test_a_bad_row_removes_only_its_own_pair(tmp_path):
    """If a row is missing, lacks a column or cannot be read, later rows still pair correctly."""
    head, right, wrong = TABLE.splitlines()
    path = tmp_path / "pairs.tab"
    bad = [wrong, right, right.replace("\t2\t2", ""), right, wrong.replace('"A', "A"), right, wrong]
    path.write_text("\n".join([head, right, wrong, *bad, right]) + "\n")
    found = {
        where.rpartition(" ")[2]: isinstance(entry, MinimalPair)
        for where, entry in read_pairs(str(path), "gulordava")
    }
    assert found == dict.fromkeys(("4", "5", "7", "11"), False) | {"2": True, "9": True}


@pytest.mark.parametrize("form", ["gulordava", "linzen", "marvin_linzen"])
def test_a_line_that_is_not_utf_8_removes_only_its_own_pair(tmp_path, form):
    """The error names line and byte, also after a byte order mark."""
    text, pair = FILES[form]
    path = tmp_path / "pairs"
    # The table of Gulordava et al. has a header and two rows for each pair.
    *head, last = text.encode().splitlines(keepends=True)
    pairs = b"".join(head[1:]) + last
    path.write_bytes(b"\xef\xbb\xbf" + b"".join(head[:1]) + pairs.replace(b"dog", b"d\xffg") + pairs)
    number = 2 if form == "gulordava" else 1
    message = f"line {number}: byte {pairs.index(b'dog') + 1}: is not UTF-8 (invalid start byte)"
    with pytest.raises(DataError, match=f"^{re.escape(f'{path}: 1 of 2 records are bad: {message}')}$"):
        Agreement(path=str(path), format=form).measure(tiny_task_model())
    bad, good = (found for _, found in read_pairs(str(path), form))
    assert (str(bad), good) == (f"{path}: {message}", pair)


def test_an_error_names_the_line_and_byte_that_are_not_utf_8(tmp_path):
    path = tmp_path / "pairs"
    for form, contents, message in (
        ("choices", b'\xef\xbb\xbf{"examples":\n ["\xff"]}', "line 2: byte 3: is not UTF-8 (invalid"),
        ("gulordava", b"pattern\xff\n", "line 1: byte 7: is not UTF-8 (invalid start byte)"),
    ):
        path.write_bytes(contents)
        with pytest.raises(DataError, match=f"^{re.escape(f'{path}: {message}')}"):
            list(read_pairs(str(path), form))


def test_scores_match_the_models_logits(tmp_path):
    """The reference masks later pieces, reads one sentence at a time, and uses logits in float64."""
    path = write_choices(
        tmp_path / "pairs.json",
        choices("abc de ", "fgh ijk", "fghoa ijk", "singular"),
        choices("", "lmno.", "abcd."),
    )
    model, params, tokenizer = tiny_model_parts()
    answers = Agreement(path=path).measure(tiny_task_model(rows=4)).answers
    apply = quick_jit(model.apply)

    def log_probability(before, word, after):
        """Return the log-probability of the word, and the number of its pieces."""
        pieces, total = tokenizer.encode(word).tolist(), 0.0
        start, end = tokenizer.encode(before).tolist(), tokenizer.encode(after).tolist()
        for place, piece in enumerate(pieces):
            hidden = pieces[:place] + [vocabulary.MASK] * (len(pieces) - place)
            tokens = np.array([vocabulary.MASKED_LM, *start, *hidden, *end, vocabulary.SEPARATOR], np.int32)
            row = layout_example(Example(tokens, tokens[:0], labels=tokens))
            batched = type(row)(*(jnp.asarray(np.pad(field, (0, 32 - len(field))))[None] for field in row))
            logits = np.asarray(apply({"params": params}, batched)[0], np.float64)[1 + len(start) + place]
            total += logits[piece] - np.log(np.exp(logits).sum())
        return total, len(pieces)

    for answer, (before, after), forms in zip(
        answers, [("abc de", " ijk."), ("", ".")], [(" fgh", " fghoa"), ("lmno", "abcd")], strict=True
    ):
        (good, first), (bad, second) = (log_probability(before, form, after) for form in forms)
        assert answer.details["log_probabilities"] == pytest.approx([good, bad], rel=1e-4)
        assert answer.metrics["log_odds"] == pytest.approx(good - bad, abs=1e-3)
        assert answer.metrics["accuracy"] == (good > bad)
        assert answer.question.groups["pieces"] == max(first, second)
        assert answer.answer.strip() == forms[0 if good > bad else 1].strip()
    assert max(answer.question.groups["pieces"] for answer in answers) > 1
    assert answers[0].question.prompt == f"abc de {SPECIAL} ijk."


def test_pairs_have_groups_and_categories(tmp_path):
    path = write_choices(
        tmp_path / "pairs.json",
        choices("abc de ", "fgh", "fg", "singular"),
        choices("abc de of ab ", "fgh", "fg", "singular_plural"),
        choices("abc de of ab ", "fgh", "fg", "plural_plural"),
    )
    questions = [answer.question for answer in Agreement(path=path).measure(tiny_task_model()).answers]
    groups = [question.groups for question in questions]
    assert [group.get("attractors") for group in groups] == [None, 1, 0]
    assert [question.categories for question in questions] == [
        {"construction": ("singular",)},
        {"construction": ("singular_plural",)},
        {"construction": ("plural_plural",)},
    ]
    assert groups[1][LENGTH_GROUP] > groups[0][LENGTH_GROUP]


def test_skipped_pairs_are_reported(tmp_path):
    record = choices("abc de ", "fgh ijk", "fg ijk")
    long = choices("abc " * 30, "fgh", "fg")
    path = write_choices(tmp_path / "pairs.json", record, {"input": "a "}, long)
    with pytest.raises(DataError, match=r"1 of 3 records are bad: examples\[1\]: has no field"):
        Agreement(path=path).measure(tiny_task_model())
    result = Agreement(path=path, skip_bad_records=True).measure(tiny_task_model(max_length=32))
    assert [answer.question.name for answer in result.answers] == ["examples[0]"]
    assert result.refused[0].startswith(f"{path}: examples[1]: has no field")
    assert re.match(r"question examples\[2\]: found \d+ positions; allowed: 32, the", result.refused[1])
    arm = Arm("prefix_lm", make_objective("prefix_lm"), group="prefix_lm")
    message = "task agreement: found the objective prefix_lm; allowed: masked_lm"
    with pytest.raises(ConfigError, match=f"^{message}$"):
        Agreement(path=path, skip_bad_records=True).measure(tiny_task_model(arm_in_place=arm))


def test_examples_have_the_marker_of_the_arm(tmp_path, monkeypatch):
    path = write_choices(tmp_path / "pairs.json", choices("abc de ", "fgh ijk", "fg ijk"))
    given = []

    def keep(model, examples, progress):
        del model, progress
        given.extend(examples)
        return [FoundTokens(np.zeros(1, np.int32), np.ones(1, np.float32)) for _ in examples]

    monkeypatch.setattr(TaskModel, "fill_in", keep)
    arm = Arm("hide", make_objective("masked_lm", marker=vocabulary.COPYING), group="hide")
    Agreement(path=path).measure(tiny_task_model(arm_in_place=arm))
    assert {example.context[0] for example in given} == {vocabulary.COPYING}
    assert {example.context[-1] for example in given} == {vocabulary.SEPARATOR}
    for example in given:
        (place,) = np.nonzero(example.labels)
        assert example.context[place] == vocabulary.MASK
