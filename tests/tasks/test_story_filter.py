"""The story filter: near duplicates, majorities of votes, and the command."""

import json
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from birdie_jax.errors import BirdieError, DataError
from birdie_jax.tasks.story_filter import (
    Story,
    Vote,
    filter_stories,
    find_near_duplicates,
    has_majority,
    read_stories,
    read_votes,
    similarity,
    word_set,
)
from tests.pages.verbs import parsed


def by_all_pairs(texts, threshold):
    stays, duplicates, sets = [], {}, list(map(word_set, texts))
    for index, words in enumerate(sets):
        found = [one for one in stays if similarity(words, sets[one]) >= threshold]
        if found:
            duplicates[index] = found[0]
        else:
            stays.append(index)
    return duplicates


words = st.sampled_from(["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"])
stories = st.lists(st.lists(words, max_size=14).map(" ".join), max_size=14)


@given(stories, st.sampled_from([0.15, 0.3, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 1.0]))
def test_near_duplicates_match_a_comparison_of_all_pairs(texts, threshold):
    assert find_near_duplicates(texts, threshold) == by_all_pairs(texts, threshold)


def test_near_duplicates_among_many_stories():
    draw = random.Random(0)
    vocabulary = [f"w{number}" for number in range(300)]
    texts = []
    for _ in range(40):
        text = draw.sample(vocabulary, 20)
        texts.append(" ".join(text))
        # 17, 18 and 19 words of 20 in common: similarities of 0.74, 0.82 and 0.90.
        for common in (17, 18, 19):
            texts.append(" ".join(text[:common] + draw.sample(vocabulary, 20 - common)))
    found = find_near_duplicates(texts, 0.85)
    assert found == by_all_pairs(texts, 0.85)
    assert len(found) >= 40


def test_words_ignore_case_and_punctuation():
    assert word_set("The cat, the CAT's hat! 3.5 Straße") == {"the", "cat", "s", "hat", "3", "5", "strasse"}
    assert similarity(word_set("a b c"), word_set("b c d")) == 0.5
    # 17 of 20 words is exactly the decimal 0.85.
    twenty = " ".join(map(str, range(20)))
    assert find_near_duplicates([twenty, " ".join(map(str, range(17)))], 0.85) == {1: 0}
    assert find_near_duplicates([twenty, " ".join(map(str, range(16)))], 0.85) == {}
    assert find_near_duplicates(["...", "a", "!"], 0.85) == {2: 0}


def test_the_first_of_near_duplicates_is_kept():
    # The second text is similar to both others, but these are not similar to each other.
    texts = ["a b c d", "b c d e", "c d e f"]
    assert find_near_duplicates(texts, 0.6) == {1: 0}
    for threshold in (0.0, -1.0, 1.5):
        with pytest.raises(ValueError, match="allowed: more than 0 and at most 1"):
            find_near_duplicates(texts, threshold)


def some_story(name):
    return Story(name, name, {"id": name})


@pytest.mark.parametrize("votes", ["yyyy", "yyyn", "yyn", "y", "yynn", "nnnn", "yn"])
def test_a_majority_is_more_than_half(votes):
    given_votes = [Vote("s", f"judge {number}", vote == "y") for number, vote in enumerate(votes)]
    keeps = votes.count("y") > votes.count("n")
    assert has_majority([some_story("s")], given_votes, "votes.jsonl") == [keeps]


@pytest.mark.parametrize(
    ("votes", "message"),
    [
        ([Vote("a", "m", True)], "v.jsonl: found no vote of m on 'b'; allowed: a vote of each of 1 judges"),
        ([Vote("a", "m", True), Vote("a", "m", True)], "v.jsonl: found two votes of m on 'a'; allowed:"),
        ([Vote("c", "m", True)], "v.jsonl: found votes on 'c', which is no story of --input; allowed:"),
    ],
)
def test_missing_repeated_and_unknown_votes_are_refused(votes, message):
    with pytest.raises(DataError, match=re.escape(message)):
        filter_stories([some_story("a"), some_story("b")], votes, "v.jsonl", 0.85)


def test_near_duplicates_need_no_votes():
    stories = [Story("a", "x y z", {}), Story("b", "z y x", {}), Story("c", "other", {})]
    votes = [Vote("a", "m", True), Vote("c", "m", False)]
    kept, lines = filter_stories(stories, votes, "v.jsonl", 0.85)
    assert [story.name for story in kept] == ["a"]
    assert lines == [
        "stories: 3",
        "near duplicates left out: 1",
        "without a majority of 1 judges: 1",
        "kept: 1",
    ]


def record(words, **fields):
    choices = {"choices": ["x", "y"], "label": 0}
    return {"entries": [words, None], **choices, **fields}


def test_stories_and_votes_are_read(tmp_path):
    path = tmp_path / "s.jsonl"
    path.write_text(json.dumps(record("a b")) + "\n" + json.dumps(record("c", id="x")) + "\n")
    first, second = read_stories(str(path))
    assert first == Story("1", "a b", {"id": "1", **record("a b")})
    assert second.name == "x"
    votes = tmp_path / "v.jsonl"
    votes.write_text('{"id": 1, "judge": "m", "vote": true}\n')
    assert read_votes(str(votes)) == [Vote("1", "m", True)]
    votes.write_text('{"id": 1, "judge": "m", "vote": "yes"}\n')
    with pytest.raises(DataError, match=re.escape("line 1: vote: found 'yes' (str); allowed: bool")):
        read_votes(str(votes))


def run(*arguments):
    with parsed("tasks.infilling_filter", arguments, whole=True) as command:
        command.main([])


def test_the_command_filters_stories(tmp_path, capsys):
    stories, votes, output = (tmp_path / name for name in ("all.jsonl", "votes.jsonl", "kept.jsonl"))
    records = [record("the cat sat"), record("The cat sat!"), record("a dog ⋯", id=7), record("no one")]
    stories.write_text("".join(json.dumps(one) + "\n" for one in records))
    judged = [("1", "yyn"), ("7", "yyy"), ("4", "ynn")]
    votes.write_text(
        "".join(
            json.dumps({"id": name, "judge": f"m{number}", "vote": vote == "y"}) + "\n"
            for name, given in judged
            for number, vote in enumerate(given)
        )
    )
    files = (f"--input={stories}", f"--output={output}")
    run(*files)
    assert capsys.readouterr().out == (f"stories: 4\nnear duplicates left out: 1\nkept: 3\nin {output}\n")
    assert len(output.read_text().splitlines()) == 3
    run(*files, f"--votes={votes}")
    assert capsys.readouterr().out == (
        "stories: 4\nnear duplicates left out: 1\nwithout a majority of 3 judges: 1\n"
        f"kept: 2\nin {output}\n"
    )
    kept = [json.loads(line) for line in output.read_text().splitlines()]
    assert kept == [{"id": "1", **records[0]}, records[2]]


def test_the_command_refuses_unusable_flags(tmp_path):
    stories = tmp_path / "all.jsonl"
    stories.write_text(json.dumps(record("the cat sat")) + "\n")
    for arguments, message in (
        ((f"--input={stories}", f"--output={tmp_path}/x", "--similarity=0"), "--similarity: found 0.0;"),
        (
            (f"--input={stories}", f"--output={stories}"),
            f"--output={stories}: is what --input reads;",
        ),
        ((f"--input={tmp_path}/none.jsonl", f"--output={tmp_path}/x"), f"{tmp_path}/none.jsonl: cannot"),
        ((f"--input={stories}", f"--output={tmp_path}/no/x"), f"--output={tmp_path}/no/x: found no folder"),
    ):
        with pytest.raises(BirdieError, match=f"^{re.escape(message)}"):
            run(*arguments)
