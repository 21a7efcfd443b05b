"""Errors name the line of a bad record in a JSONL file, or the task skips it."""

import re
from dataclasses import replace

import pytest

from birdie_jax.errors import DataError
from birdie_jax.tasks.contract_nli import ContractNLI
from birdie_jax.tasks.infilling import Infilling
from birdie_jax.tasks.instructions import Instructions
from birdie_jax.tasks.jsonl import JsonlTask
from birdie_jax.tasks.labelled_text import LabelledText
from birdie_jax.tasks.quality import Quality
from tests.tasks.json_lines import write_lines
from tests.trained_workdirs import small_tokenizer

WRITTEN = {"prompt": "a b?", "reference": ["c", "d e"], "id": "x"}
CHOSEN = {"prompt": "a?", "choices": ["b", "c c"], "label": "B"}
STORY = {"entries": ["a", None], "choices": ["b", "c", "d"], "label": 1}
TEXT = {"text": "abc", "label": "mail", "kind": 1, "id": "a"}
CONTRACT = {"id": "a", "input": "abc def\n\nghi.", "output": "Entailment"}
QUESTION = {"question_unique_id": "p", "question": "abc?", "options": list("abcd"), "gold_label": 2}
ARTICLE = {"article": "def ghi", "questions": [QUESTION | {"difficult": 0}]}


def article(**changes):
    return ARTICLE | {"questions": [QUESTION | {"difficult": 0, "question_unique_id": "q"} | changes]}


def turns(*of):
    return {"messages": [{"role": role, "content": content} for role, content in of]}


USER, ANSWER = ("user", "a"), ("assistant", "b")
# name -> (task of a path, a good record, [(a bad record, the start of its error)])
TASKS = {
    "contracts": (
        ContractNLI,
        CONTRACT,
        [
            (CONTRACT | {"id": "b", "output": "Neutral"}, "output: found 'Neutral'; allowed:"),
            (CONTRACT | {"id": "b", "input": "abc\ndef"}, "input: found 'abc\\ndef'; allowed: a"),
            ({"id": "b", "input": "a\n\nb"}, "has no field 'output'; its fields are ['id', 'input']"),
            (CONTRACT, "found the id 'a', which line 1 has; allowed: another"),
        ],
    ),
    "stories": (
        Infilling,
        STORY,
        [
            (STORY | {"entries": [None]}, "entries: found 1, 1 of them blank; allowed: at least 2,"),
            (STORY | {"entries": ["a", "b"]}, "entries: found 2, 0 of them blank; allowed: at least 2"),
            (STORY | {"entries": [None, "(blank)", "b"]}, "entries: found 3, 2 of them blank"),
            (STORY | {"entries": ["a", " ", None]}, "entries[1]: found ' '; allowed: text with more than"),
            (STORY | {"entries": ["a", 1, None]}, "entries[1]: found 1 (int); allowed: str or None"),
            (STORY | {"choices": ["a"]}, "choices: found 1, 1 of them different; allowed: 2 to 26"),
            (STORY | {"choices": ["a", "b", "a"]}, "choices: found 3, 2 of them different; allowed: 2 to"),
            (STORY | {"choices": ["a", ""]}, "choices[1]: found ''; allowed: text with more than white"),
            (STORY | {"label": 3}, 'label: found 3; allowed: a number from 0 to 2, or a letter from "A"'),
            (STORY | {"label": "D"}, "label: found 'D'; allowed: a number from 0 to 2, or a letter"),
            (STORY | {"label": "AB"}, "label: found 'AB'; allowed: a number from 0 to 2"),
            (STORY | {"label": -1}, "label: found -1; allowed: a number from 0 to 2"),
            (STORY | {"label": True}, "label: found True (bool); allowed: int or str"),
        ],
    ),
    "dialogues": (
        Instructions,
        {"prompt": "a", "response": "b"},
        [
            ("[1]", "found [1]; allowed: a JSON object"),
            ({"prompt": "a"}, "has no field 'response'"),
            ({"response": "a"}, "found neither of the fields prompt and messages; allowed: prompt with"),
            ({"prompt": "a", "messages": []}, "found both of the fields prompt and messages"),
            ({"prompt": " ", "response": "a"}, "prompt: found ' '; allowed: text with more than white"),
            (turns(), "messages: found no message; allowed: messages that end with assistant"),
            (turns(USER), "messages: found last the role user; allowed: messages that end"),
            (turns(ANSWER), "messages[0]: found the role 'assistant' first; allowed: system"),
            (turns(USER, USER), "messages[1]: found the role 'user' behind user; allowed: assistant"),
            (turns(USER, ("tool", "b")), "messages[1]: found the role 'tool' behind user"),
            (turns(USER, ("assistant", "")), "messages[1]: content: found ''; allowed: text"),
        ],
    ),
    "written answers": (
        JsonlTask,
        WRITTEN,
        [
            (
                CHOSEN,
                "has no field 'reference', which exact_match, f1, contains need; to choose one of its",
            ),
            ({"prompt": "a", "reference": []}, "reference: found []; allowed: at least one text"),
            ({"prompt": "a", "reference": ["b", ""]}, "reference: found ''; allowed: text with more than"),
            ({"prompt": "a", "reference": 5}, "reference: found 5 (int); allowed: str or a list of str"),
            ({"prompt": "", "reference": "b"}, "prompt: found ''; allowed: text with more than white"),
        ],
    ),
    "chosen answers": (
        lambda path: JsonlTask(path=path, metrics=("accuracy",), group_fields=("n",)),
        CHOSEN | {"n": 1},
        [
            (WRITTEN, "has no field 'choices'; its fields are ['id', 'prompt', "),
            (CHOSEN | {"choices": ["a", "a"]}, "choices: found 2, 1 of them different"),
            (CHOSEN | {"label": 2}, "label: found 2; allowed: a number from 0 to 1"),
            (CHOSEN | {"n": 1.5}, "n: found 1.5 (float); allowed: int"),
        ],
    ),
    "labelled texts": (
        lambda path: LabelledText(path=path, classes=("mail", "spam", "news"), group_fields=("kind",)),
        TEXT,
        [
            (TEXT | {"id": "b", "label": "post"}, "label: found 'post'; allowed: mail, spam, news"),
            (TEXT | {"id": "b", "text": " "}, "text: found ' '; allowed: text with more than white"),
            (TEXT | {"id": "b", "text_pair": 3}, "text_pair: found 3"),
            ({"text": "abc", "label": "mail"}, "has no field 'kind'; its fields are ["),
            (TEXT, "found the id 'a', which line 1 has; allowed: another"),
        ],
    ),
    "articles": (
        Quality,
        ARTICLE,
        [
            (article(gold_label=5), "questions[0]: gold_label: found 5; allowed: 1 to 4"),
            (article(options=["a", "b"]), "questions[0]: options: found 2; allowed: 4"),
            (ARTICLE | {"questions": [{"question": "a"}]}, "questions[0]: has no field 'options'; its"),
            (ARTICLE, "questions[0]: question_unique_id: found 'p', which line 1: questions[0] has;"),
        ],
    ),
}


@pytest.mark.parametrize("name", TASKS)
def test_a_bad_record_is_named_or_skipped(tmp_path, name):
    make, good, bad = TASKS[name]
    for record, message in bad:
        path = write_lines(tmp_path / "a.jsonl", good, record)
        task, tokenizer = make(path=path), small_tokenizer()
        with pytest.raises(
            DataError, match=re.escape(f"{path}: 1 of 2 records are bad: line 2: {message}")
        ):
            task.training_examples(tokenizer)
        examples = replace(task, skip_bad_records=True).training_examples(tokenizer)
        assert len(examples) == 1
        assert [line.startswith(f"{path}: line 2: {message}") for line in examples.refused] == [True], (
            message
        )
