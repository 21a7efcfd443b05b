"""Phone books of the paper's Figure 6: format, sizes, questions, scores and training examples."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from birdie_jax import vocabulary
from birdie_jax.errors import ConfigError
from birdie_jax.tasks import Question, task_of_flag
from birdie_jax.tasks.phonebook import Phonebook
from birdie_jax.tasks.phonebook_text import (
    Book,
    BookForm,
    BookMaker,
    Entry,
    draw_entries,
    find_names,
    read_numbers,
)
from birdie_jax.tasks.registry import task_flag
from tests.tasks.tokenizers import word_tokenizer

FIGURE = (Path(__file__).with_name("figure_6_prompt.txt")).read_text().rstrip("\n")
LABELS = (Path(__file__).with_name("figure_6_labels.txt")).read_text().rstrip("\n")
METRICS = ("exact_match", "number_accuracy", "digit_accuracy", "copied_entry", "asked_entry")
SMALL = {
    "min_entries": 4,
    "max_entries": 40,
    "max_numbers": 4,
    "max_positions": 512,
    "number_format": "####",
    "name_words": 1,
}


def book_of(prompt):
    lines = prompt.split("Phonebook:\n")[1].split("\n\n")[0].split("\n")
    return [Entry(*line.split(": ")) for line in lines]


def requested_names(prompt):
    question = prompt.split("\n\n")[0] if prompt.startswith("What") else prompt.split("\n\n")[-1]
    names = question.split(" for ")[1].split("? Find")[0]
    return names.replace(", and ", ", ").replace(" and ", ", ").split(", ")


def test_the_prompt_matches_figure_6():
    entries = tuple(book_of(FIGURE))
    names = requested_names(FIGURE)
    assert (len(entries), len(names)) == (8, 32)
    requested = tuple(Entry(name, number) for name, number in zip(names, LABELS.split(", "), strict=True))
    book = Book(entries, requested)
    assert book.prompt(BookForm(2, "###-###-####", "both")) == FIGURE
    assert book.answer() == LABELS
    # The figure prints this number in the book and in the labels.
    assert dict(requested)["Matthew Zeigler"] == dict(entries)["Matthew Zeigler"]


def test_the_question_is_before_or_after_the_book():
    book = Book(
        (Entry("Ann Lee", "12"), Entry("Bo Ray", "34")), (Entry("Bo Ray", "34"), Entry("Ann Lee", "12"))
    )
    listed = "Phonebook:\nAnn Lee: 12\nBo Ray: 34"
    question = "What are the phone numbers for Bo Ray and Ann Lee? Find them in the phonebook {}."
    both, before, after = (BookForm(2, "##", place) for place in ("both", "before", "after"))
    assert book.prompt(before) == f"{question.format('below')}\n\n{listed}"
    assert book.prompt(after) == f"{listed}\n\n{question.format('above')}"
    assert book.prompt(both) == f"{question.format('below')}\n\n{listed}\n\n{question.format('above')}"
    one = Book(book.entries, book.asked[:1])
    assert one.prompt(before).startswith(
        "What is the phone number for Bo Ray? Find it in the phonebook below."
    )
    assert read_numbers(book.prompt(both)) == {"12", "34"}


def test_a_question_may_be_only_names():
    entries = (Entry("Ann", "12"), Entry("Bo", "34"), Entry("Cy", "56"))
    form = BookForm(1, "##", "both", "names")
    listed = "Ann: 12\nBo: 34\nCy: 56"
    assert Book(entries, entries[1:2]).prompt(form) == f"Bo?\n\n{listed}\n\nBo?"
    two = Book(entries, (entries[2], entries[0]))
    assert two.prompt(replace(form, question_place="after")) == f"{listed}\n\nCy and Ann?"
    assert two.prompt(replace(form, question_place="before")) == f"Cy and Ann?\n\n{listed}"
    assert read_numbers(two.prompt(form)) == {"12", "34", "56"}


@given(
    seed=st.integers(0, 2**32),
    count=st.integers(1, 400),
    words=st.sampled_from([1, 2]),
    form=st.sampled_from(["###-###-####", "###", "##-##"]),
    split=st.sampled_from([0, 1]),
)
def test_names_and_numbers_of_a_book_are_distinct_and_splits_differ(seed, count, words, form, split):
    entries = draw_entries(np.random.default_rng(seed), count, words, form, split)
    assert len({entry.name for entry in entries}) == len({entry.number for entry in entries}) == count
    lists = find_names()
    assert (lists.first if words == 1 else lists.last).index(entries[0].name.split()[-1]) % 2 == split
    for name, number in entries:
        assert len(name.split()) == words
        assert "".join("#" if character.isdigit() else character for character in number) == form
        assert number[0] != "0"


def test_every_number_of_a_format_can_be_drawn():
    entries = draw_entries(np.random.default_rng(0), 90, 1, "#-#", 0)
    assert {entry.number for entry in entries} == {f"{n // 10}-{n % 10}" for n in range(10, 100)}


@cache
def maker_of(place):
    return BookMaker(word_tokenizer(), BookForm(2, "###-####", place))


@given(
    seed=st.integers(0, 2**32),
    numbers=st.integers(1, 8),
    entries=st.integers(1, 60),
    positions=st.integers(40, 900),
    place=st.sampled_from(["both", "before", "after"]),
)
def test_a_book_fits_and_contains_the_answer(seed, numbers, entries, positions, place):
    maker = maker_of(place)
    made = maker.make(np.random.default_rng(seed), 1, numbers, entries, max_positions=positions)
    again = maker.make(np.random.default_rng(seed), 1, numbers, entries, max_positions=positions)
    if made is None:
        assert again is None
        assert positions < maker.mean_positions(numbers, numbers) * 1.5
        return
    assert again is not None
    book, example = made
    prompt = book.prompt(maker.form)
    assert np.array_equal(again.example.context, example.context)
    assert len(example.context) + len(example.target) <= positions
    assert requested_names(prompt) == [entry.name for entry in book.asked]
    assert len(book.asked) == numbers <= len(book.entries) <= max(numbers, entries)
    written = dict(book_of(prompt))
    assert len(written) == len(book.entries)
    assert book.answer().split(", ") == [written[name] for name in requested_names(prompt)]
    assert example.context[0] == vocabulary.PREFIX_LM
    assert word_tokenizer().decode(example.context[1:]) == prompt
    assert word_tokenizer().decode(example.target[:-1]) == book.answer()
    assert example.target[-1] == vocabulary.END


def test_a_book_has_as_many_entries_as_fit():
    maker = BookMaker(word_tokenizer(), BookForm(2, "###-###-####", "both"))
    for seed in range(5):
        rng = np.random.default_rng(seed)
        made = maker.make(rng, 0, 4, 800, max_positions=4096, answer_positions=100)
        assert made is not None
        assert 4096 - 3 * maker.mean_entry < len(made.example.context) + 100 <= 4096


def test_questions_cover_all_counts_and_do_not_depend_on_their_number():
    few, refused = Phonebook(**SMALL, num_questions=7).questions(word_tokenizer())
    many, _ = Phonebook(**SMALL, num_questions=48).questions(word_tokenizer())
    assert not refused
    assert list(many[:7]) == list(few)
    other, _ = Phonebook(**SMALL, num_questions=7, seed=1).questions(word_tokenizer())
    assert not {question.prompt for question in other} & {question.prompt for question in few}
    assert len({question.name for question in many}) == len({question.prompt for question in many}) == 48
    numbers = [question.groups["numbers"] for question in many]
    assert {count: numbers.count(count) for count in numbers}.keys() == {1, 2, 4}
    assert max(map(numbers.count, numbers)) - min(map(numbers.count, numbers)) <= 4
    entries = [question.groups["entries"] for question in many]
    assert set(entries) >= {4, 8}
    assert max(entries) > 16
    task = Phonebook(**SMALL)
    for question in many:
        book = dict(book_of(question.prompt))
        assert len(book) == question.groups["entries"]
        assert question.references == (", ".join(book[name] for name in requested_names(question.prompt)),)
        assert task.score(question, question.references[0]) == dict.fromkeys(METRICS, 1)
        # The marker, the start token, and an answer with a token for every character.
        answer = 4 * len("1234") + 3 * len(", ") + 2
        assert len(word_tokenizer().encode(question.prompt)) + 2 + answer <= task.max_positions


BOOK = "Phonebook:\nAnn: 111\nBob: 222\nCid: 333\nDot: 444"


@pytest.mark.parametrize(
    ("answer", "scores"),
    [
        ("222, 444", (1, 1, 1, 1, 1)),
        (" 222,444 ", (1, 1, 1, 1, 1)),
        ("444, 222", (0, 0, 0, 1, 0)),
        ("222, 333", (0, 1 / 2, 1 / 2, 1, 1 / 2)),
        ("222", (0, 1 / 2, 1 / 2, 1, 1)),
        ("222, 443", (0, 1 / 2, 5 / 6, 1 / 2, 1 / 2)),
        ("222, 444, 111", (0, 1, 1, 1, 2 / 3)),
        ("", (0, 0, 0, 0, 0)),
        ("the number, of Bob", (0, 0, 0, 0, 0)),
    ],
)
def test_answers_are_scored(answer, scores):
    question = Question("0", BOOK, ("222, 444",))
    assert Phonebook().score(question, answer) == pytest.approx(dict(zip(METRICS, scores, strict=True)))


def fill_rows(task, length, rows, spacing=3):
    examples = task.training_examples(word_tokenizer())
    rng = np.random.default_rng(0)
    drawn, used = [], 0
    for _ in range(rows):
        room = length
        while (example := examples.draw(rng, room)) is not None:
            covered = len(example.context) + len(example.target)
            assert covered <= room
            drawn.append(example)
            used += covered
            room -= covered + spacing
    return drawn, 1 - used / (rows * length)


@pytest.mark.parametrize(("length", "rows"), [(1024, 40), (16_384, 6)])
def test_books_fill_most_of_a_row(length, rows):
    assert fill_rows(Phonebook(), length, rows)[1] < 0.05


def test_training_covers_all_sizes_and_no_book_of_the_evaluation():
    drawn, _ = fill_rows(Phonebook(**SMALL), 512, 50)
    prompts = [word_tokenizer().decode(example.context[1:]) for example in drawn]
    assert {len(requested_names(prompt)) for prompt in prompts} == {1, 2, 3, 4}
    sizes = [len(book_of(prompt)) for prompt in prompts]
    assert min(sizes) == 4
    assert max(sizes) > 20
    questions, _ = Phonebook(**SMALL, num_questions=60).questions(word_tokenizer())
    training, evaluation = (
        {book_of(prompt)[0].name for prompt in of} for of in (prompts, [q.prompt for q in questions])
    )
    assert training and evaluation and not training & evaluation


def test_no_example_is_drawn_if_none_fits():
    examples = Phonebook(**SMALL).training_examples(word_tokenizer())
    assert examples.draw(np.random.default_rng(0), 30) is None


def test_too_few_positions_are_refused():
    task = Phonebook(max_positions=512)
    with pytest.raises(ConfigError, match="max_positions: found 512; a book of 32 entries takes about "):
        task.questions(word_tokenizer())
    # Training uses fewer numbers if a row has no room for more.
    assert task.training_examples(word_tokenizer())
    with pytest.raises(ConfigError, match=r"found 100; a book of 8 entries takes about \d+ positions when"):
        Phonebook(max_positions=100).training_examples(word_tokenizer())
    with pytest.raises(ConfigError, match="max_entries: found 6000; allowed: at most 5163, the different"):
        Phonebook(max_entries=6000, name_words=1).questions(word_tokenizer())


@pytest.mark.parametrize("length", [4096, 1024, 512, 256, 160])
def test_settings_within_fits_training_rows(length):
    task = Phonebook(num_questions=8, seed=3)
    found = task.settings_within(word_tokenizer(), length)
    fitted = task_of_flag(task_flag("phonebook", task, found))
    assert fitted == replace(task, **found)
    assert fitted.max_positions == length
    assert len(fitted.questions(word_tokenizer())[0]) == 8
    if length == 4096:
        assert found == {"max_positions": length}
    assert task.settings_within(word_tokenizer(), 16) == {}
