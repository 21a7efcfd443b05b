"""Formats a user's text as a prompt of a training objective.

Text never becomes special tokens, unless the objective's format has them at places that the user chooses.
Write these by name: [MASK] for a gap, and [START], [END], [CONTEXT] for queries.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Int32

from birdie_jax import vocabulary
from birdie_jax.errors import PromptError, shown
from birdie_jax.generation.prompt import Prompt
from birdie_jax.objectives import OBJECTIVES, Arm, Objective, make_objective
from birdie_jax.registry import Registry
from birdie_jax.text import Tokenizer

_NO_TOKENS = np.empty(0, np.int32)
_GAP = re.compile(r"\[MASK(?:_(\d+))?\]")
_MAX_DIGITS = 9
_QUERY = re.compile(r"\[START\](?P<start>.*?)\[END\](?P<end>.*?)(?=\[START\]|\[CONTEXT\]|\Z)", re.DOTALL)


# (text, objective, tokenizer) -> prompt
PromptFormat = Callable[[str, Objective, Tokenizer], Prompt]

_FORMATS: Registry[PromptFormat] = Registry("objective of a prompt")


def prompt_format(*objectives: str) -> Callable[[PromptFormat], PromptFormat]:
    """Return a decorator that registers a function as the prompt format of the named objectives."""

    def register(function: PromptFormat) -> PromptFormat:
        for name in objectives:
            _FORMATS.register(name, function)
        return function

    return register


def _form_of(name: str) -> str:
    """Return the name of the objective whose prompt format `name` uses; empty if it has none."""
    known = OBJECTIVES.get(name)
    forms = (name, known.prompt_like if known else "")
    return next((form for form in forms if form in _FORMATS), "")


def choose_arm(arms: Sequence[Arm], name: str | None) -> Arm:
    """Return the arm of a run's mixture that defines the prompt's format.

    Args:
        arms: the arms that the model was trained on.
        name: the name of an objective or of an arm; None: prefix_lm, or else causal_lm, or else the first
            arm with a prompt format.

    Raises:
        PromptError: the model was trained as an encoder only; the name is unknown; the model was not
            trained on that objective; arms of that objective have different markers; the objective has no
            prompt format; or the arms are unknown, and the name is missing or does not name an objective.
    """
    if not arms:
        return _arm_of_objective(name)
    if all(arm.objective.in_place for arm in arms):
        learned = ", ".join(dict.fromkeys(arm.objective.name for arm in arms))
        raise PromptError(
            f"the model was trained as an encoder, on {learned} alone: it names hidden tokens of a text, "
            "and has not learned to write an answer; allowed: a model trained on one of "
            f"{', '.join(known for known in OBJECTIVES if _form_of(known))}"
        )
    trained = list(dict.fromkeys(arm.objective.name for arm in arms if arm.objective.name in _FORMATS))
    if name is None:
        formed = [arm.name for arm in arms if _form_of(arm.objective.name)]
        preferred = [known for known in ("prefix_lm", "causal_lm") if known in trained]
        name = [*preferred, *formed, arms[0].name][0]
    found = [arm for arm in arms if arm.name == name] or [arm for arm in arms if arm.objective.name == name]
    if not found and name not in OBJECTIVES:
        raise PromptError(
            f"objective {shown(name)} is unknown; allowed: those that this model was trained on: "
            f"{', '.join(trained)}"
        )
    if not found:
        raise PromptError(
            f"objective {shown(name)}: this model was not trained on it; allowed: {', '.join(trained)}"
        )
    markers = {arm.objective.marker for arm in found}
    if len(markers) > 1:
        raise PromptError(
            f"objective {shown(name)}: its arms have different markers; allowed: the name of an arm: "
            f"{', '.join(arm.name for arm in found)}"
        )
    if not _form_of(found[0].objective.name):
        raise PromptError(
            f"objective {shown(name)}: a prompt cannot take its form; allowed: {', '.join(trained)}"
        )
    return found[0]


def _arm_of_objective(name: str | None) -> Arm:
    """Return an arm of the objective `name` with default parameters, for a model without known arms."""
    if name is None or name not in OBJECTIVES or not _form_of(name):
        raise PromptError(
            f"objective: found {shown(name)}, and the objectives of this model are unknown; allowed: "
            f"one of {', '.join(known for known in OBJECTIVES if _form_of(known))}"
        )
    return Arm(name, make_objective(name), group=name)


def make_prompt(text: str, objective: Objective, tokenizer: Tokenizer) -> Prompt:
    """Return the text as a prompt in the format of `objective`.

    - prefix_lm, copying, deshuffling: marker and text are the context; for deshuffling, give shuffled text.
    - causal_lm: no context; the text is the target prefix.
    - span_corruption, full_span_corruption, full_span_corruption_deshuffling: marker, and the text with
    [MASK] for each gap. Each [MASK] becomes the next sentinel; [MASK_5] is sentinel 5.
    - selective_copying: marker, and `[START] before [END] after` for each span to copy, with `[CONTEXT]
    text` after or before the queries.
    - fill_in_the_middle: no context; the text has one [MASK], at the place of the middle.

    Raises:
        PromptError: the text is empty or does not have that format.
    """
    if not text:
        raise PromptError(
            f"the prompt is empty (found 0 characters); {objective.name} allows: text of at least one token"
        )
    try:
        prompt = _FORMATS[_form_of(objective.name)](text, objective, tokenizer)
    except UnicodeEncodeError as error:
        found = shown(text[error.start : error.end], 40)
        raise PromptError(
            f"the prompt is not Unicode text (found {found} at character {error.start}); {objective.name} "
            "allows: whole characters"
        ) from error
    if len(prompt.context) + len(prompt.target_prefix) <= objective.marker_length:
        raise PromptError(
            f"the prompt {shown(text)} gives no token; {objective.name} allows: text of at least one token"
        )
    return prompt._replace(special_tokens=objective.answer_special_tokens(prompt.context))


def _marker_tokens(objective: Objective) -> Int32[np.ndarray, " marker"]:
    return _NO_TOKENS if objective.marker is None else np.array([objective.marker], np.int32)


@prompt_format("prefix_lm", "copying", "deshuffling")
def _format_context(text: str, objective: Objective, tokenizer: Tokenizer) -> Prompt:
    return Prompt(np.concatenate([_marker_tokens(objective), tokenizer.encode(text)]), _NO_TOKENS)


@prompt_format("causal_lm")
def _format_target_prefix(text: str, objective: Objective, tokenizer: Tokenizer) -> Prompt:
    return Prompt(_NO_TOKENS, tokenizer.encode(text))


@prompt_format("span_corruption", "full_span_corruption", "full_span_corruption_deshuffling")
def _format_gaps(text: str, objective: Objective, tokenizer: Tokenizer) -> Prompt:
    gaps = [*_GAP.finditer(text)]
    if not gaps:
        raise PromptError(
            f"the prompt has 0 gaps; {objective.name} allows: text with [MASK] where something is missing"
        )
    numbers = [str(place) if gap[1] is None else gap[1] for place, gap in enumerate(gaps)]
    # int32 and Python's conversion both limit the number of digits.
    sentinels = [int(number) for number in numbers if len(number) <= _MAX_DIGITS]
    allowed = len(set(sentinels)) == len(gaps) and max(sentinels) < vocabulary.NUM_SENTINELS
    if not allowed:
        raise PromptError(
            f"the prompt's gaps are {', '.join(f'[MASK_{number}]' for number in numbers)}; "
            f"{objective.name} allows: each of [MASK_0] to [MASK_{vocabulary.NUM_SENTINELS - 1}] once"
        )
    parts, end = [_marker_tokens(objective)], 0
    for gap, sentinel in zip(gaps, sentinels, strict=True):
        parts += [
            tokenizer.encode(text[end : gap.start()]),
            np.array([vocabulary.FIRST_SENTINEL + sentinel], np.int32),
        ]
        end = gap.end()
    return Prompt(np.concatenate([*parts, tokenizer.encode(text[end:])]), _NO_TOKENS)


@prompt_format("selective_copying")
def _format_queries(text: str, objective: Objective, tokenizer: Tokenizer) -> Prompt:
    form = "[START] before [END] after, once or more, with [CONTEXT] text behind or in front of it"
    wrong = PromptError(
        f"the prompt has [START] {text.count('[START]')} times, [END] {text.count('[END]')} times and "
        f"[CONTEXT] {text.count('[CONTEXT]')} times; {objective.name} allows: {form}, no part of it empty"
    )
    if text.count("[CONTEXT]") != 1:
        raise wrong
    left, right = text.split("[CONTEXT]")
    queries_first = "[START]" in left
    if queries_first:
        queries, passage = left, right
    else:
        begin = right.find("[START]")
        queries, passage = right[max(begin, 0) :], right[: max(begin, 0)]
        if left.strip():
            raise wrong
    spans = list(_QUERY.finditer(queries))
    whole = "".join(span[0] for span in spans) == queries
    if not spans or not whole or not passage or "[END]" in passage or "[START]" in passage:
        raise wrong
    query_tokens = []
    for span in spans:
        if not span["start"] or not span["end"] or "[END]" in span["end"]:
            raise wrong
        query_tokens += [_as_array(vocabulary.SPAN_START), tokenizer.encode(span["start"])]
        query_tokens += [_as_array(vocabulary.SPAN_END), tokenizer.encode(span["end"])]
    passage_tokens = [_as_array(vocabulary.CONTEXT), tokenizer.encode(passage)]
    parts = query_tokens + passage_tokens if queries_first else passage_tokens + query_tokens
    return Prompt(np.concatenate([_marker_tokens(objective), *parts]), _NO_TOKENS)


@prompt_format("fill_in_the_middle")
def _format_middle(text: str, objective: Objective, tokenizer: Tokenizer) -> Prompt:
    parts = text.split("[MASK]")
    if len(parts) != 2:
        raise PromptError(
            f"the prompt has [MASK] {len(parts) - 1} times; {objective.name} allows: once, for the middle"
        )
    prefix = [_as_array(vocabulary.MIDDLE_PREFIX), tokenizer.encode(parts[0])]
    prefix += [
        _as_array(vocabulary.MIDDLE_SUFFIX),
        tokenizer.encode(parts[1]),
        _as_array(vocabulary.MIDDLE),
    ]
    return Prompt(_NO_TOKENS, np.concatenate(prefix))


def _as_array(token: int) -> Int32[np.ndarray, " 1"]:
    return np.array([token], np.int32)


# A state and its question have the form of one prompt, as in training. If the format has a context, marker
# and text begin it, the question ends it, and the start token follows. If it has none (causal_lm), the text
# follows the start token, and the question follows the text. The two parts are tokenized separately.

# The objectives with prompts of plain text, so text may follow text.
CONTINUED = ("prefix_lm", "copying", "deshuffling", "causal_lm")


def make_context(text: str, objective: Objective, tokenizer: Tokenizer) -> Prompt:
    """Return the part of a prompt that a state reads: the text, in the form of `make_prompt`.

    Raises:
        PromptError: the text is empty or not Unicode, or nothing can follow a text in this format.
    """
    if objective.name not in CONTINUED:
        raise PromptError(
            f"objective {objective.name}: a question cannot follow a text that was read in its form; "
            f"allowed: {', '.join(CONTINUED)}"
        )
    return make_prompt(text, objective, tokenizer)


def make_question(text: str, objective: Objective, tokenizer: Tokenizer) -> Prompt:
    """Return the part of a prompt that follows the result of `make_context`: the text without a marker.

    Raises:
        PromptError: the text is empty or not Unicode, or nothing can follow a text in this format.
    """
    return make_context(text, replace(objective, marker=None), tokenizer)
