"""JSONL prompts in the form of every objective, and the JSONL files of tasks."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.fuzzing.cases import Case, Refused, Wrong
from benchmarks.fuzzing.mutations import (
    HOSTILE_JSON,
    HOSTILE_TEXTS,
    encode_loosely,
    mutate_bytes,
    mutate_json,
)
from benchmarks.fuzzing.valid_files import MODEL
from birdie_jax.errors import BirdieError

_MARKS = (
    "[MASK]",
    "[MASK_0]",
    "[MASK_99]",
    "[MASK_99999999999]",
    "[START]",
    "[END]",
    "[CONTEXT]",
    "[DONE]",
)
_NAME = "mutated"


def make_prompt_case(draws: random.Random, folder: Path, valid: Path) -> Case:
    """Return a case: a file of prompts, read in the form of an objective."""
    records = [{"prompt": _prompt(draws), "id": number} for number in range(draws.randint(1, 4))]
    path, done = _write(draws, folder, records)

    def run() -> str:
        from birdie_jax.generation import choose_arm, make_context, make_prompt, make_question
        from birdie_jax.generation.answering import read_records
        from birdie_jax.objectives import OBJECTIVES
        from birdie_jax.text import Tokenizer

        tokenizer = Tokenizer(valid / MODEL)
        found = read_records(path)
        expected = [line for line in path.read_bytes().splitlines() if line.strip()]
        if [record["prompt"] for record in found] != [json.loads(line)["prompt"] for line in expected]:
            raise Wrong("the prompts are others than the file's")
        objective = draws.choice([*OBJECTIVES, "hostile"])
        try:
            arm = choose_arm(
                (), draws.choice((None, *HOSTILE_TEXTS)) if objective == "hostile" else objective
            )
            for record in found:
                for make in (make_prompt, make_context, make_question):
                    prompt = make(record["prompt"], arm.objective, tokenizer)
                    for tokens in (prompt.context, prompt.target_prefix):
                        if len(tokens) and not 0 <= tokens.min() <= tokens.max() < tokenizer.vocab_size:
                            raise Wrong(f"the tokens of a prompt are outside of the vocabulary: {tokens}")
        except BirdieError as error:
            # The verb prints the position of the record before the message.
            raise Refused(f"{_NAME}: {error}") from error
        return f"{len(found)} prompts as {objective}"

    return Case(done, (_NAME,), run)


def _prompt(draws: random.Random) -> str:
    parts = [
        draws.choice((*_MARKS, *_MARKS, " a bc ", "fed", "", draws.choice(HOSTILE_TEXTS))) for _ in range(5)
    ]
    return "".join(parts)[:20_000].encode("utf-8", "replace").decode()


# Task -> a valid record of its file, and settings to add after the path.
_CHOICE = {"prompt": "a?", "choices": ["b", "c c"], "label": "B", "n": 1, "id": "q"}
_TASKS: dict[str, tuple[dict[str, Any], Sequence[str]]] = {
    "jsonl": (
        {"prompt": "a b?", "reference": ["c", "d e"], "id": "x"},
        ("", ",skip_bad_records=true", ',metrics=["f1"]', ",prompt_field=other", ",max_tokens=1"),
    ),
    "jsonl:choices": (_CHOICE, (',metrics=["accuracy"]', ',metrics=["accuracy"],group_fields=["n"]')),
    "infilling": ({"entries": ["a", None], "choices": ["b", "c", "d"], "label": 1}, ("",)),
    "instructions": (
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
        ("", ",skip_bad_records=true"),
    ),
    "labelled_text": (
        {"text": "abc", "label": "mail", "kind": 1, "id": "a"},
        (',classes=["mail","spam"]', ',classes=["mail"]', ""),
    ),
    "contract_nli": ({"id": "a", "input": "abc def\n\nghi.", "output": "Entailment"}, ("",)),
    "quality": (
        {
            "article": "def ghi",
            "questions": [
                {
                    **{"question_unique_id": "p", "question": "abc?", "options": list("abcd")},
                    **{"gold_label": 2, "difficult": 0},
                }
            ],
        },
        ("",),
    ),
    "squad": (
        {
            "version": "1.1",
            "data": [
                {
                    "title": "t",
                    "paragraphs": [
                        {
                            "context": "a b c d",
                            "qas": [
                                {
                                    "id": "1",
                                    "question": "b?",
                                    "answers": [{"text": "b c", "answer_start": 2}],
                                }
                            ],
                        }
                    ],
                }
            ],
        },
        ("", ",skip_bad_records=true"),
    ),
}


def make_task_case(draws: random.Random, folder: Path, valid: Path) -> Case:
    """Return a case: a task's file, read as evaluation and fine-tuning read it."""
    name = draws.choice(tuple(_TASKS))
    record, settings = _TASKS[name]
    records = [{**record, **({"id": str(number)} if "id" in record else {})} for number in range(3)]
    records = records[: 1 if name in ("squad", "quality") else draws.randint(1, 3)]
    path, done = _write(draws, folder, records)
    flag = f"{name.partition(':')[0]}:path={path}{draws.choice(settings)}"
    if draws.random() < 0.05:
        flag = draws.choice(
            (f"{flag},{draws.choice(HOSTILE_TEXTS)}", f"a={flag}", flag.replace("path", "paht"))
        )

    def run() -> str:
        from birdie_jax.tasks.evaluation import tasks_of_flags
        from birdie_jax.text import Tokenizer

        (named,) = tasks_of_flags([flag])
        tokenizer = Tokenizer(valid / MODEL)
        named.task.check_data(tokenizer)
        examples = named.task.training_examples(tokenizer)
        return f"{type(examples).__name__} of {len(examples) if hasattr(examples, '__len__') else 'many'}"  # pyright: ignore

    return Case(f"{flag[:200]}: {done}", (_NAME, "--task", "the task"), run)


def _write(draws: random.Random, folder: Path, records: list[dict[str, Any]]) -> tuple[Path, str]:
    """Write records, usually with a fault. Return the file and a description of the fault."""
    path = folder / f"{_NAME}.jsonl"
    lines = [json.dumps(record, ensure_ascii=draws.random() < 0.5) for record in records]
    number, done = draws.randrange(len(lines)), "valid"
    match draws.randrange(8):
        case 0 | 1 | 2:
            lines[number], done = (
                mutate_json(draws, records[number], draws.randint(1, 3)),
                "a record changed",
            )
        case 3:
            hostile = draws.choice(HOSTILE_JSON)
            key = draws.choice([*records[number], "x"])
            given = json.dumps(records[number])[:-1]
            lines[number] = draws.choice(
                (hostile, f'{given}, "{key}": {hostile}}}', f'{given}, "x": {hostile}}}')
            )
            done = f"hostile: {hostile[:40]}"
        case 4:
            lines.insert(number, draws.choice(("", " ", "\ufeff", lines[number], "[]", "\x1c")))
            done = "a line inserted"
    data = encode_loosely("\n".join(lines) + draws.choice(("\n", "")))
    if draws.random() < 0.25:
        data, done = mutate_bytes(draws, data), f"{done}, bytes changed"
    path.write_bytes(data)
    return path, done
