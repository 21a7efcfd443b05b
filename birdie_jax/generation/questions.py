"""What a user writes becomes a prompt in the form of one training objective.

Text never gives special tokens. Where an objective's own form has such tokens at places that the user
chooses, and only there, they are written by their names: [MASK] for a gap, and [START], [END], [CONTEXT]
for queries.
"""

import re
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Int32

from birdie_jax import vocabulary
from birdie_jax.generation.prompt import Prompt
from birdie_jax.objectives import OBJECTIVES, Arm, Objective
from birdie_jax.text import Tokenizer

_NOTHING = np.empty(0, np.int32)
_GAP = re.compile(r"\[MASK(?:_(\d+))?\]")
_QUERY = re.compile(r"\[START\](?P<start>.*?)\[END\](?P<end>.*?)(?=\[START\]|\[CONTEXT\]|\Z)", re.DOTALL)


class PromptError(ValueError):
    """A prompt, or the form it is to be asked in, cannot be used; the message names both sides."""


def choose_arm(arms: Sequence[Arm], name: str | None) -> Arm:
    """Return the arm of a run's mixture whose form a prompt takes.

    Args:
        arms: what the model was trained on.
        name: of an objective or of an arm; None = prefix_lm, or else causal_lm, or else the first arm.

    Raises:
        PromptError: the name is unknown, the model never saw that objective, arms of that objective have
            different markers, or no prompt can ask in its form.
    """
    trained = list(dict.fromkeys(arm.objective.name for arm in arms if arm.objective.name in _FORMS))
    if name is None:
        name = next((known for known in ("prefix_lm", "causal_lm") if known in trained), arms[0].name)
    found = [arm for arm in arms if arm.name == name] or [arm for arm in arms if arm.objective.name == name]
    if not found and name not in OBJECTIVES:
        raise PromptError(
            f"objective {name!r} is unknown; allowed: those that this model was trained on: "
            f"{', '.join(trained)}"
        )
    if not found:
        raise PromptError(
            f"objective {name!r}: this model was not trained on it; allowed: {', '.join(trained)}"
        )
    markers = {arm.objective.marker for arm in found}
    if len(markers) > 1:
        raise PromptError(
            f"objective {name!r}: its arms have different markers; allowed: the name of an arm: "
            f"{', '.join(arm.name for arm in found)}"
        )
    if found[0].objective.name not in _FORMS:
        raise PromptError(
            f"objective {name!r}: a prompt cannot take its form; allowed: {', '.join(trained)}"
        )
    return found[0]


def make_prompt(text: str, objective: Objective, tokenizer: Tokenizer) -> Prompt:
    """Return the prompt that asks in the form of `objective`.

    - prefix_lm, copying, deshuffling: marker and text are the context; what to deshuffle is given shuffled.
    - causal_lm: no context; the text is the beginning of the answer.
    - span_corruption, full_span_corruption, full_span_corruption_deshuffling: marker, and the text with
      [MASK] for each gap, which becomes the next sentinel; [MASK_5] is sentinel 5 itself.
    - selective_copying: marker, and `[START] before [END] after` for each span that is asked for, with
      `[CONTEXT] text` behind or in front of the queries.
    - fill_in_the_middle: no context; the text has one [MASK], where the middle goes.

    Raises:
        PromptError: the text is empty, or has not that form.
    """
    if not text:
        raise PromptError(
            f"the prompt is empty (found 0 characters); {objective.name} allows: text of at least one token"
        )
    try:
        prompt = _FORMS[objective.name](text, objective, tokenizer)
    except UnicodeEncodeError as error:
        raise PromptError(f"the prompt is not Unicode text: {error}") from error
    if len(prompt.context) + len(prompt.begun) <= objective.marker_length:
        raise PromptError(
            f"the prompt {text!r} gives no token; {objective.name} allows: text of at least one token"
        )
    return prompt


def _marker(objective: Objective) -> Int32[np.ndarray, " marker"]:
    return _NOTHING if objective.marker is None else np.array([objective.marker], np.int32)


def _read_whole(text: str, objective: Objective, tokenizer: Tokenizer) -> Prompt:
    return Prompt(np.concatenate([_marker(objective), tokenizer.encode(text)]), _NOTHING)


def _continue(text: str, objective: Objective, tokenizer: Tokenizer) -> Prompt:
    return Prompt(_NOTHING, tokenizer.encode(text))


def _fill_gaps(text: str, objective: Objective, tokenizer: Tokenizer) -> Prompt:
    parts = [_marker(objective)]
    written, sentinels = 0, []
    for gap in _GAP.finditer(text):
        sentinels.append(len(sentinels) if gap[1] is None else int(gap[1]))
        parts += [
            tokenizer.encode(text[written : gap.start()]),
            np.array([vocabulary.FIRST_SENTINEL + sentinels[-1]], np.int32),
        ]
        written = gap.end()
    most = vocabulary.NUM_SENTINELS
    if not sentinels:
        raise PromptError(
            f"the prompt has 0 gaps; {objective.name} allows: text with [MASK] where something is missing"
        )
    if max(sentinels) >= most or len(set(sentinels)) < len(sentinels):
        raise PromptError(
            f"the prompt's gaps are {', '.join(f'[MASK_{number}]' for number in sentinels)}; "
            f"{objective.name} allows: each of [MASK_0] to [MASK_{most - 1}] once"
        )
    return Prompt(np.concatenate([*parts, tokenizer.encode(text[written:])]), _NOTHING)


def _ask_for_spans(text: str, objective: Objective, tokenizer: Tokenizer) -> Prompt:
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
    asked = []
    for span in spans:
        if not span["start"] or not span["end"] or "[END]" in span["end"]:
            raise wrong
        asked += [_one(vocabulary.SPAN_START), tokenizer.encode(span["start"])]
        asked += [_one(vocabulary.SPAN_END), tokenizer.encode(span["end"])]
    given = [_one(vocabulary.CONTEXT), tokenizer.encode(passage)]
    parts = asked + given if queries_first else given + asked
    return Prompt(np.concatenate([_marker(objective), *parts]), _NOTHING)


def _fill_the_middle(text: str, objective: Objective, tokenizer: Tokenizer) -> Prompt:
    parts = text.split("[MASK]")
    if len(parts) != 2:
        raise PromptError(
            f"the prompt has [MASK] {len(parts) - 1} times; {objective.name} allows: once, for the middle"
        )
    begun = [_one(vocabulary.MIDDLE_PREFIX), tokenizer.encode(parts[0])]
    begun += [_one(vocabulary.MIDDLE_SUFFIX), tokenizer.encode(parts[1]), _one(vocabulary.MIDDLE)]
    return Prompt(_NOTHING, np.concatenate(begun))


def _one(token: int) -> Int32[np.ndarray, " 1"]:
    return np.array([token], np.int32)


_FORMS: dict[str, Callable[[str, Objective, Tokenizer], Prompt]] = {
    "prefix_lm": _read_whole,
    "causal_lm": _continue,
    "copying": _read_whole,
    "deshuffling": _read_whole,
    "span_corruption": _fill_gaps,
    "full_span_corruption": _fill_gaps,
    "full_span_corruption_deshuffling": _fill_gaps,
    "selective_copying": _ask_for_spans,
    "fill_in_the_middle": _fill_the_middle,
}
