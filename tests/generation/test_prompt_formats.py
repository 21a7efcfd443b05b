"""A prompt has its objective's training format; objectives without a format are refused by name."""

import random

import numpy as np
import pytest

from birdie_jax import vocabulary
from birdie_jax.errors import PromptError
from birdie_jax.generation.prompt import Prompt
from birdie_jax.generation.prompt_formats import choose_arm, make_prompt, prompt_format
from birdie_jax.objectives import OBJECTIVES, make_mixture, make_objective, mixture_from_arms

FORMED = {
    "span_corruption": "the [MASK] of seven [MASK]",
    "full_span_corruption": "the [MASK] of",
    "full_span_corruption_deshuffling": "[MASK_1] the [MASK_0]",
    "selective_copying": "[START]the[END]of[CONTEXT]the river of seven",
    "fill_in_the_middle": "the [MASK] seven",
}


def ask(name, text, tokenizer, **parameters):
    return make_prompt(text, make_objective(name, **parameters), tokenizer)


# Objectives with generated answers; only these have a prompt format.
WRITTEN = [name for name, objective in OBJECTIVES.items() if not objective.in_place]


@pytest.mark.parametrize("name", WRITTEN)
def test_every_objective_has_a_prompt_format(name, tokenizer):
    prompt = ask(name, FORMED.get(name, "the river of seven"), tokenizer)
    objective = make_objective(name)
    assert (len(prompt.context) > 0) == objective.has_context
    assert (len(prompt.target_prefix) > 0) != objective.has_context
    if objective.has_context:
        assert prompt.context[0] == objective.marker
    first = vocabulary.FIRST_SENTINEL
    written = {
        "span_corruption": (first, first + 1, vocabulary.END),
        "selective_copying": (vocabulary.DONE,),
    }
    assert prompt.special_tokens == written.get(name, (vocabulary.END,))


@pytest.mark.parametrize("name", ["prefix_lm", "copying", "deshuffling"])
def test_a_whole_text_becomes_the_context(name, tokenizer):
    text = "the river [MASK] of"
    prompt = ask(name, text, tokenizer)
    np.testing.assert_array_equal(prompt.context[1:], tokenizer.encode(text))
    bare = ask(name, text, tokenizer, marker=None)
    np.testing.assert_array_equal(bare.context, tokenizer.encode(text))


@pytest.mark.parametrize("name", ["span_corruption", "full_span_corruption"])
def test_gaps_have_the_training_format(name, tokenizer):
    """The prompt is the context of the training example, as readable text."""
    tokens = tokenizer.encode("the river of seven return the seven of the river " * 3)
    objective = make_objective(name, mean_span=2.0)
    example = objective.build(tokens, np.random.default_rng(1))
    written = tokenizer.decode(example.context[1:])
    assert "[MASK_1]" in written
    prompt = make_prompt(written, objective, tokenizer)
    sentinels = prompt.context[prompt.context < vocabulary.NUM_SPECIAL_TOKENS]
    np.testing.assert_array_equal(sentinels, example.context[example.context < 256])
    assert tokenizer.decode(prompt.context) == tokenizer.decode(example.context)
    assert len(prompt.target_prefix) == 0


def test_gaps_without_numbers_are_counted(tokenizer):
    context = ask("span_corruption", "the[MASK] of[MASK][MASK_7]", tokenizer).context
    special = context[context < 256].tolist()
    first = vocabulary.FIRST_SENTINEL
    assert special == [vocabulary.SPAN_CORRUPTION, first, first + 1, first + 7]


@pytest.mark.parametrize("query_first", [True, False])
def test_queries_have_the_training_format(query_first, tokenizer):
    words = random.Random(2)
    tokens = tokenizer.encode("".join(words.choices("abcdefghijklmnop ", k=300)))
    objective = make_objective("selective_copying", spans=2, query_first=query_first)
    example = objective.build(tokens, np.random.default_rng(3))
    written = tokenizer.decode(example.context[1:])
    prompt = make_prompt(written, objective, tokenizer)
    assert tokenizer.decode(prompt.context) == tokenizer.decode(example.context)
    special = example.context[example.context < 256]
    np.testing.assert_array_equal(prompt.context[prompt.context < 256], special)


def test_fill_in_the_middle_begins_the_answer(tokenizer):
    prompt = ask("fill_in_the_middle", "the[MASK] seven", tokenizer)
    before, after = tokenizer.encode("the").tolist(), tokenizer.encode(" seven").tolist()
    assert prompt.target_prefix.tolist() == [
        vocabulary.MIDDLE_PREFIX,
        *before,
        vocabulary.MIDDLE_SUFFIX,
        *after,
        vocabulary.MIDDLE,
    ]


QUERY_FORM = (
    "[START] before [END] after, once or more, with [CONTEXT] text behind or in front of it, no part of it "
    "empty"
)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "prefix_lm",
            "",
            "the prompt is empty (found 0 characters); prefix_lm allows: text of at least one token",
        ),
        (
            "span_corruption",
            "the river",
            "the prompt has 0 gaps; span_corruption allows: text with [MASK] where something is missing",
        ),
        (
            "span_corruption",
            "[MASK_192] of",
            "the prompt's gaps are [MASK_192]; span_corruption allows: each of [MASK_0] to [MASK_191] once",
        ),
        (
            "span_corruption",
            "[MASK] of [MASK_99999999999]",
            "the prompt's gaps are [MASK_0], [MASK_99999999999]; span_corruption allows: each of [MASK_0] "
            "to [MASK_191] once",
        ),
        (
            "full_span_corruption",
            "[MASK] of [MASK_0]",
            "the prompt's gaps are [MASK_0], [MASK_0]; full_span_corruption allows: each of [MASK_0] to "
            "[MASK_191] once",
        ),
        (
            "fill_in_the_middle",
            "the river",
            "the prompt has [MASK] 0 times; fill_in_the_middle allows: once, for the middle",
        ),
        (
            "selective_copying",
            "the river",
            "the prompt has [START] 0 times, [END] 0 times and [CONTEXT] 0 times; selective_copying "
            "allows: " + QUERY_FORM,
        ),
    ],
)
def test_invalid_prompts_are_refused(name, text, message, tokenizer):
    with pytest.raises(PromptError) as error:
        ask(name, text, tokenizer)
    assert str(error.value) == message


@pytest.mark.parametrize(
    "text",
    [
        "[CONTEXT]the river",
        "[START]the[CONTEXT]the river",
        "[START][END]of[CONTEXT]the river",
        "[START]the[END][CONTEXT]the river",
        "[START]the[END]of[CONTEXT]",
        "[START]the[END]of[END]x[CONTEXT]the river",
        "stray [START]the[END]of[CONTEXT]the river",
        "stray [CONTEXT]the river[START]the[END]of",
        "[START]the[END]of[CONTEXT]the [START]river[END]x",
    ],
)
def test_invalid_queries_are_refused(text, tokenizer):
    with pytest.raises(PromptError, match="selective_copying allows: "):
        ask("selective_copying", text, tokenizer)


def test_text_that_is_not_unicode_is_refused(tokenizer):
    with pytest.raises(PromptError, match="the prompt is not Unicode text"):
        ask("prefix_lm", "a\ud800", tokenizer)


def test_an_import_can_register_a_format(tokenizer):
    class Shouting(OBJECTIVES["prefix_lm"]):
        name = "shouting"

    @prompt_format("shouting")
    def shout(text, objective, tokenizer):
        return Prompt(tokenizer.encode(text.upper()), np.empty(0, np.int32))

    prompt = make_prompt("the river", Shouting(), tokenizer)
    np.testing.assert_array_equal(prompt.context, tokenizer.encode("THE RIVER"))


def test_a_model_without_known_arms_accepts_the_name_of_an_objective():
    arm = choose_arm((), "copying")
    assert (arm.name, arm.objective) == ("copying", make_objective("copying"))
    for name in (None, "riddle"):
        with pytest.raises(PromptError) as error:
            choose_arm((), name)
        assert str(error.value) == (
            f"objective: found {name!r}, and the objectives of this model are unknown; allowed: one of "
            f"{', '.join(WRITTEN)}"
        )


def arms_of(mixture):
    return make_mixture(mixture, 256).arms


def test_choose_arm_returns_an_arm_of_the_run():
    assert choose_arm(arms_of("tiny"), None).name == "prefix_lm"
    assert choose_arm(arms_of("causal_lm"), None).name == "causal_lm"
    assert choose_arm(arms_of("tiny"), "copying").objective.marker == vocabulary.COPYING
    assert choose_arm(arms_of("ul2"), None).objective.marker == vocabulary.UL2_SEQUENTIAL
    assert choose_arm(arms_of("ul2"), "span_corruption_r50_w8").objective.marker == vocabulary.UL2_EXTREME
    only = mixture_from_arms({"mine": {"objective": "copying"}}).arms
    assert choose_arm(only, None) == only[0]


@pytest.mark.parametrize(
    ("mixture", "name", "message"),
    [
        (
            "pt5",
            "masked",
            "objective 'masked' is unknown; allowed: those that this model was trained on: causal_lm, "
            "prefix_lm, span_corruption, deshuffling, copying",
        ),
        (
            "masked_lm",
            None,
            "the model was trained as an encoder, on masked_lm alone: it names hidden tokens of a text, "
            "and has not learned to write an answer; allowed: a model trained on one of "
            f"{', '.join(WRITTEN)}",
        ),
        (
            "causal_lm",
            "copying",
            "objective 'copying': this model was not trained on it; allowed: causal_lm",
        ),
        (
            "ul2",
            "span_corruption",
            "objective 'span_corruption': its arms have different markers; allowed: the name of an arm: "
            "span_corruption_r15_w3, span_corruption_r15_w8, span_corruption_r50_w3, "
            "span_corruption_r50_w8, span_corruption_r15_w64, span_corruption_r50_w64",
        ),
    ],
)
def test_objectives_without_a_format_are_refused(mixture, name, message):
    with pytest.raises(PromptError) as error:
        choose_arm(arms_of(mixture), name)
    assert str(error.value) == message


def test_choose_arm_skips_objectives_without_a_format():
    arms = mixture_from_arms({"hide": {"objective": "masked_lm"}, "copy": {"objective": "copying"}}).arms
    assert choose_arm(arms, "copy") == choose_arm(arms, None) == arms[1]
    with pytest.raises(PromptError) as error:
        choose_arm(arms, "masked_lm")
    assert str(error.value) == "objective 'masked_lm': a prompt cannot take its form; allowed: copying"
