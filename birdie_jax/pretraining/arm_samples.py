"""The parameters of each arm and an example as text, for the report."""

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Int32

from birdie_jax.batching import RowSettings, RowStream
from birdie_jax.errors import ConfigError
from birdie_jax.objectives import NO_LABEL, Arm, Example, Mixture
from birdie_jax.pretraining.mixture_shares import MixtureShares, small_loss_shares
from birdie_jax.storage.workdir import Workdir
from birdie_jax.text import Tokenizer
from birdie_jax.text.corpora import Corpora, RowText
from birdie_jax.vocabulary import NUM_SPECIAL_TOKENS, special_token_name

_SHOWN_TOKENS = 320
_BETWEEN_LABELS = " · "


def write_arms(
    workdir: Workdir,
    mixture: Mixture,
    shares: MixtureShares,
    text: RowText,
    tokenizer: Tokenizer,
    *,
    settings: RowSettings,
) -> None:
    """Write arms.json; in a new run, print the arms with little of the loss."""
    workdir.write(workdir.arms, describe_arms(mixture, shares, text, tokenizer, settings))
    small = small_loss_shares(mixture, shares)
    if small and not workdir.saved_steps():
        print(small, flush=True)


def describe_arms(
    mixture: Mixture,
    shares: MixtureShares,
    text: RowText,
    tokenizer: Tokenizer,
    settings: RowSettings,
) -> list[dict[str, Any]]:
    """Return the contents of arms.json, one entry per arm.

    An entry has the arm's name, group, objective, parameters, weight, corpora, its expected shares at the
    start of the run, and one example as text.
    """
    expected, described = shares.expected(), []
    for number, arm in enumerate(mixture.arms):
        stream = RowStream(text, mixture.arms, settings, row=number % settings.rows)
        stream.set_mixture(np.eye(len(mixture.arms))[number])
        example = stream.next_row()[0]
        check_answer(arm, example)
        described.append(
            {
                "name": arm.name,
                "group": arm.group,
                "objective": arm.objective.name,
                "parameters": dataclasses.asdict(arm.objective),
                "weight": float(mixture.weights[number]),
                "corpora": list(arm.corpora or filter(None, Corpora.of(text).names)),
                "expected_shares": {
                    "examples": float(expected.examples[number]),
                    "positions": float(expected.positions[number]),
                    "target_tokens": float(expected.target_tokens[number]),
                    "counted_examples": int(shares.lengths.examples[number]),
                },
                "examples": [
                    {
                        "context": _in_words(example.context, tokenizer),
                        "target": _target_in_words(example, tokenizer),
                    }
                ],
            }
        )
    return described


def check_answer(arm: Arm, example: Example) -> None:
    """Check that generation can produce the target of an example.

    Raises:
        ConfigError: the target contains a special token that the objective does not name.
    """
    if not arm.objective.has_context:
        # A prompt may contain the beginning of a target, with its special tokens.
        return
    allowed = arm.objective.answer_special_tokens(example.context)
    special = example.target[example.target < NUM_SPECIAL_TOKENS].tolist()
    for token in special:
        if token not in allowed:
            names = ", ".join(map(special_token_name, allowed))
            raise ConfigError(
                f"arm {arm.name}: found {special_token_name(token)} in a target; allowed: {names}, as "
                f"answer_special_tokens of the objective {arm.objective.name} returns"
            )


def _target_in_words(example: Example, tokenizer: Tokenizer) -> str:
    """Return the target as text, or the labels in place, separated by dots."""
    if example.labels is None:
        return _in_words(example.target, tokenizer)
    labels = example.labels[example.labels != NO_LABEL]
    return _BETWEEN_LABELS.join(tokenizer.decode(label) for label in labels[:_SHOWN_TOKENS, None])


def _in_words(tokens: Int32[np.ndarray, " tokens"], tokenizer: Tokenizer) -> str:
    if len(tokens) <= _SHOWN_TOKENS:
        return tokenizer.decode(tokens)
    half = _SHOWN_TOKENS // 2
    left_out = len(tokens) - 2 * half
    return f"{tokenizer.decode(tokens[:half])} [… {left_out} tokens …] {tokenizer.decode(tokens[-half:])}"
