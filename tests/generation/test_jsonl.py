"""Reading and writing of records: errors name file and line; an incomplete last line is rewritten."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from birdie_jax.errors import PromptError
from birdie_jax.generation.answering import count_finished_lines, read_records, to_jsonl


def test_answers_repeat_all_fields_of_their_records(tmp_path):
    path = tmp_path / "prompts.jsonl"
    records = [{"prompt": "öne", "id": 1, "tags": ["a"]}, {"prompt": "two"}]
    path.write_text(to_jsonl(records), encoding="utf-8")
    assert read_records(path) == records


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "{path}: holds no record; allowed: one JSON object a line"),
        ('{"prompt": "a"}\n\n', "{path} line 2: is empty; allowed: a JSON object with the field 'prompt'"),
        (
            '{"text": "a", "id": 3}\n',
            "{path} line 1: found ['id', 'text']; allowed: a JSON object with the field 'prompt', a text",
        ),
        ('["a"]\n', "{path} line 1: found list; allowed: a JSON object with the field 'prompt', a text"),
        (
            '{"prompt": "a", "generated": "b"}\n',
            "{path} line 1: has the field 'generated', which the answer adds; allowed: any other name",
        ),
        ('{"prompt": "a", "prompt": "b"}\n', "{path} line 1: has the field 'prompt' twice; allowed: once"),
        (
            '{"prompt": "a", "more": [{"id": 1, "id": 1}]}\n',
            "{path} line 1: has the field 'id' twice; allowed: once",
        ),
        *(
            (
                f'{{"prompt": "a", "score": {number}}}\n',
                f"{{path}} line 1: is not JSON (found {number}; allowed: finite numbers)",
            )
            for number in ("NaN", "-Infinity", "1e999")
        ),
    ],
)
def test_invalid_records_are_refused(tmp_path, content, message):
    path = tmp_path / "prompts.jsonl"
    path.write_text(content)
    with pytest.raises(PromptError) as error:
        read_records(path)
    assert str(error.value) == message.format(path=path)


def test_a_line_that_is_not_json_is_named(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a"}\n{"prompt": \n')
    with pytest.raises(PromptError, match=r"prompts\.jsonl line 2: is not JSON"):
        read_records(path)
    with pytest.raises(PromptError, match=r"absent: cannot be read: No such file"):
        read_records(tmp_path / "absent")


EXPECTED = [{"prompt": text, "sample": 0, "settings": "abc"} for text in ("one", "two", "three")]


def test_a_command_resumes_after_the_last_whole_line(tmp_path):
    path = tmp_path / "answers.jsonl"
    assert count_finished_lines(path, EXPECTED) == 0
    lines = to_jsonl({**record, "generated": "x"} for record in EXPECTED[:2])
    path.write_text(lines + '{"prompt": "thr')
    assert count_finished_lines(path, EXPECTED) == 2
    assert path.read_text() == lines


# The half character in the second answer makes its line ASCII.
@pytest.mark.parametrize("generated", ["\u00f6", "\ud800"])
def test_a_command_resumes_after_an_interruption_at_any_byte(tmp_path, generated):
    path = tmp_path / "answers.jsonl"
    record = {"prompt": "\u00f6ne", "sample": 0, "settings": "abc"}
    whole = to_jsonl([{**record, "generated": generated, "stopped_by": "end"}]).encode()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert count_finished_lines(path, [record]) == 0
        assert path.read_bytes() == b""


@pytest.mark.parametrize(
    ("content", "number"),
    [
        (json.dumps({**EXPECTED[0], "settings": "other"}) + "\n", 1),
        (json.dumps({"prompt": "one"}) + "\n", 1),
        ("[1]\n", 1),
        ("{\n", 1),
        ('{"my": "notes"}', 1),
        ("my\nnotes", 1),
        (to_jsonl(EXPECTED[:1]) + json.dumps(EXPECTED[2]), 2),
    ],
)
def test_an_output_of_another_command_is_refused(tmp_path, content, number):
    path = tmp_path / "answers.jsonl"
    path.write_text(content)
    with pytest.raises(PromptError) as error:
        count_finished_lines(path, EXPECTED)
    assert str(error.value) == (
        f"{path}: exists, and its line {number} is not an answer of this command to its record and "
        "settings; allowed: another --output, or the same command to resume it"
    )
    assert path.read_text() == content


def test_an_output_with_too_many_lines_is_refused(tmp_path):
    path = tmp_path / "answers.jsonl"
    for content in ("{}\n" * 4, to_jsonl(EXPECTED) + "my notes"):
        path.write_text(content)
        with pytest.raises(PromptError, match="exists, and has 4 lines; this command writes 3"):
            count_finished_lines(path, EXPECTED)
        assert path.read_text() == content


# Any JSON value, including half characters (lone surrogates).
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters()), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(_JSON)
def test_any_record_is_written_and_resumed(tmp_path_factory, value):
    path = tmp_path_factory.mktemp("answers") / "answers.jsonl"
    fields = json.loads(json.dumps({"prompt": "a", "mine": value}))
    path.write_text(to_jsonl([{**fields, "generated": "b"}]), encoding="utf-8")
    assert count_finished_lines(path, [fields]) == 1


def test_half_a_character_is_kept(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "ö", "id": "\\ud800"}\n', encoding="utf-8")
    (record,) = read_records(path)
    path.write_text(to_jsonl([record]), encoding="utf-8")
    assert read_records(path) == [{"prompt": "ö", "id": "\ud800"}]


def test_pipes_of_a_shell_are_read_and_named_pipes_are_refused(tmp_path):
    named = tmp_path / "pipe"
    os.mkfifo(named)
    with pytest.raises(
        PromptError, match=r"found a named pipe; allowed: a file, or --prompt_file=/dev/stdin"
    ):
        read_records(named)
    with pytest.raises(PromptError, match=r"^/dev/zero: found a device; allowed: a file, or"):
        read_records(Path("/dev/zero"))
    reading, writing = os.pipe()
    os.write(writing, b'{"prompt": "a"}\n')
    os.close(writing)
    assert read_records(Path(f"/dev/fd/{reading}")) == [{"prompt": "a"}]
    os.close(reading)


def test_a_device_has_no_finished_lines():
    assert count_finished_lines(Path("/dev/null"), []) == 0
