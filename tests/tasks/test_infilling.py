"""The infilling task: prompts match the paper's figures, and answers have the highest likelihood."""

import string

import numpy as np

from birdie_jax.generation.likelihood import Likelihood
from birdie_jax.tasks.infilling import Infilling
from tests.tasks.json_lines import write_lines
from tests.tasks.tiny_task_model import tiny_task_model
from tests.trained_workdirs import small_tokenizer

# The example of the Birdie paper, Figure 4.
LETTER = {
    "entries": [
        "A stranger hands a letter to Ellie on a rainy afternoon.",
        None,
        "As she gets closer to the island, the edges of the map feel warm.",
    ],
    "choices": [
        "The letter contains information about a secret meeting happening at the end of the week.",
        "She ignores the letter and throws it away.",
        "Ellie finds a hidden treasure map in the envelope.",
        "The letter leads her to an uncharted island.",
    ],
    "label": "D",
}
FIGURE_4 = """\
Consider the following sequence of events, then select a choice that best fills in the missing entry:

1. A stranger hands a letter to Ellie on a rainy afternoon.
2. (blank)
3. As she gets closer to the island, the edges of the map feel warm.

Choices:

(A) The letter contains information about a secret meeting happening at the end of the week.
(B) She ignores the letter and throws it away.
(C) Ellie finds a hidden treasure map in the envelope.
(D) The letter leads her to an uncharted island.

Which choice best fills in the missing entry?"""


def story(entries=5, blank=2, **fields):
    """Return a story, by default as long as the story of Figure 5."""
    texts = [f"Event {number} happens. It takes a while." for number in range(entries)]
    texts[blank] = "(blank)"
    return {"entries": texts, "choices": ["They rest.", "They run.", "They sing."], "label": 1, **fields}


def test_the_prompt_matches_figure_4(tmp_path):
    path = write_lines(tmp_path / "s.jsonl", LETTER)
    ((question,), refused) = Infilling(path=path).questions(small_tokenizer())
    assert question.prompt == FIGURE_4
    assert question.references == ("(D) The letter leads her to an uncharted island.",)
    assert question.choices[0].startswith("(A) The letter contains")
    assert (question.name, question.groups, refused) == ("1", {"entries": 3}, [])
    ((bare,), _) = Infilling(path=path, letter_in_answer=False).questions(small_tokenizer())
    assert bare.prompt == FIGURE_4
    assert bare.references == ("The letter leads her to an uncharted island.",)
    assert bare.choices == tuple(LETTER["choices"])


def test_blanks_and_labels_have_two_notations(tmp_path):
    number = {**LETTER, "label": 3, "id": "letter"}
    number["entries"] = [entry or " (blank) " for entry in LETTER["entries"]]
    path = write_lines(tmp_path / "s.jsonl", LETTER, number, story())
    first, second, third = Infilling(path=path).questions(small_tokenizer())[0]
    assert second == first._replace(name="letter")
    lines = third.prompt.splitlines()
    assert lines[2:5] == [*(f"{n}. Event {n - 1} happens. It takes a while." for n in (1, 2)), "3. (blank)"]
    assert lines[6] == "5. Event 4 happens. It takes a while."
    assert third.groups == {"entries": 5}


def test_up_to_26_choices_have_letters(tmp_path):
    choices = [f"choice {letter}" for letter in string.ascii_uppercase]
    path = write_lines(tmp_path / "s.jsonl", story(choices=choices, label="Z"))
    ((question,), _) = Infilling(path=path).questions(small_tokenizer())
    assert question.references == ("(Z) choice Z",)


def test_the_answer_has_the_highest_likelihood_per_token(tmp_path, monkeypatch):
    path = write_lines(tmp_path / "s.jsonl", story(label="B"), story(label="C"))
    model = tiny_task_model()
    # Per token: -3, -2, -4. The first has the highest sum.
    found = [Likelihood(-3.0, 1, False), Likelihood(-8.0, 4, False), Likelihood(-4.0, 1, False)]
    scored_choices = []

    def likelihoods(prompts, choices, progress):
        scored_choices.extend(choices)
        return [found] * len(prompts)

    monkeypatch.setattr(model, "choice_likelihoods", likelihoods)
    result = Infilling(path=path).measure(model)
    assert scored_choices[0] == ("(A) They rest.", "(B) They run.", "(C) They sing.")
    assert [one.answer for one in result.answers] == ["(B) They run."] * 2
    assert [one.metrics["accuracy"] for one in result.answers] == [1, 0]
    assert [one.metrics["accuracy_of_sums"] for one in result.answers] == [0, 0]


def test_stories_are_training_examples(tmp_path):
    path = write_lines(tmp_path / "s.jsonl", LETTER, story())
    tokenizer = tiny_task_model().tokenizer
    examples = Infilling(path=path).training_examples(tokenizer)
    assert len(examples) == 2
    assert tokenizer.decode(examples[0].target[:-1]) == "(D) The letter leads her to an uncharted island."
    assert tokenizer.decode(examples[0].context).endswith(FIGURE_4)
    assert np.array_equal(
        examples.lengths, [len(e.context) + len(e.target) for e in (examples[0], examples[1])]
    )
