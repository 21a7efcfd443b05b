"""Held-out examples for people, with the model's predictions of their targets."""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from birdie_jax.array_types import Key
from birdie_jax.batch import Batch
from birdie_jax.batching import RowStream, pack_rows
from birdie_jax.engine.mesh import LocalRows, replicated
from birdie_jax.engine.protocols import HookCall, HookResult
from birdie_jax.engine.state import TrainState
from birdie_jax.models.predictions import Predictions, predict_targets
from birdie_jax.objectives import Arm
from birdie_jax.resolve import ResolvedRun
from birdie_jax.storage.workdir import Workdir
from birdie_jax.text import Tokenizer
from birdie_jax.text.corpora import RowText
from birdie_jax.vocabulary import NUM_SPECIAL_TOKENS

# Of an arm that hides tokens in place; of other classes one example says as much.
_SAMPLES_OF_ARM = 6
# The first targets of a text; all of them would take as many rows of logits.
_MAX_TARGETS = 64


class HeldOutSamples:
    """At the end of a run lets the model predict targets of held-out text, and writes them down.

    Each token is predicted from the right ones before it, as in validation.

    Attributes:
        name: the name of the hook; it keeps no arrays.
    """

    name = "held_out_samples"

    def __init__(self, run: ResolvedRun, workdir: Workdir, text: RowText, tokenizer: Tokenizer):
        """Make the examples: of arms with labels in place the first of some rows, of other classes one.

        Args:
            run: the run.
            workdir: the folder of the run.
            text: the validation split.
            tokenizer: the tokenizer of the run.

        Raises:
            DataError: the validation text cannot make an example of such an arm.
        """
        self._workdir, self._tokenizer = workdir, tokenizer
        mixture, settings = run.mixture, run.rows
        # As many rows as a step computes at a time: they fit the memory, and divide over the devices.
        rows = settings.rows // run.config.train.accumulation_steps
        in_place = [number for number, arm in enumerate(mixture.arms) if arm.objective.in_place]
        chosen = [(arm, row) for row in range(_SAMPLES_OF_ARM) for arm in in_place][:rows]
        first_of_class: dict[str, int] = {}
        for number, arm in enumerate(mixture.arms):
            if not arm.objective.in_place:
                first_of_class.setdefault(arm.group, number)
        chosen += [(arm, 0) for arm in first_of_class.values()]
        examples = []
        for arm, row in chosen:
            stream = RowStream(text, mixture.arms, settings, row % settings.rows)
            stream.set_mixture(np.eye(len(mixture.arms))[arm])
            # Another one of the stream where there are fewer rows than samples.
            examples.append([[stream.next_row()[0] for _ in range(1 + row // settings.rows)][-1]])
        self._arms = [mixture.arms[arm] for arm, _ in chosen]
        padded = examples + [[]] * (-len(examples) % rows)
        self._batches = [
            _with_first_targets(
                pack_rows(padded[at : at + rows], settings.length, settings.spacing),
                self._arms[at : at + rows],
            )
            for at in range(0, len(padded), rows)
        ]
        self._rows = LocalRows(rows, settings.length, run.mesh)
        places = max(int(batch.loss_mask.sum(axis=1).max()) for batch in self._batches)
        self._predict = jax.jit(
            partial(predict_targets, run.model, places), out_shardings=replicated(run.mesh)
        )

    def create_section(self, key: Key) -> PyTree:
        """Keep nothing."""
        del key
        return {}

    def resume(self, state: TrainState) -> None:
        """Need nothing."""

    def is_due(self, step: int, num_steps: int) -> bool:
        """Whether the run has ended."""
        return step == num_steps

    def run(self, state: TrainState, call: HookCall) -> HookResult | None:
        """Predict the targets of every example, and write all of them into the workdir."""
        call.heartbeat("held-out examples")
        samples = []
        for number, batch in enumerate(self._batches):
            found = jax.device_get(self._predict(state.params, self._rows.put_replicated(batch)))
            rows = len(batch.tokens)
            samples += [
                describe_sample(arm, row, batch, found, self._tokenizer)
                for row, arm in enumerate(self._arms[number * rows : (number + 1) * rows])
            ]
        if jax.process_index() == 0:
            self._workdir.write(self._workdir.samples, {"step": call.step, "samples": samples})
        return HookResult(state, {})

    def close(self) -> None:
        """Hold nothing."""


def _with_first_targets(batch: Batch, arms: Sequence[Arm]) -> Batch:
    """Return the batch with the first targets of each row as the only ones; labels in place stay."""
    mask = np.asarray(batch.loss_mask).copy()
    for row, arm in enumerate(arms):
        if not arm.objective.in_place:
            mask[row] &= np.cumsum(mask[row]) <= _MAX_TARGETS
    return batch._replace(loss_mask=mask)


def describe_sample(
    arm: Arm, row: int, batch: Batch, found: Predictions, tokenizer: Tokenizer
) -> dict[str, Any]:
    """Return an example and the predicted tokens, as the report reads them.

    Returns:
        The name of the arm; whether labels stand in place of what is read; `texts`, what stands before,
        between and behind the predicted tokens; and `hidden`, for each of these the token itself, what the
        model saw in its place, which is nothing where tokens follow each other, what it found most
        probable there, how probable that is, and the loss in nats.
    """
    tokens, targets = np.asarray(batch.tokens[row]), np.asarray(batch.targets[row])
    (places,) = np.nonzero(batch.loss_mask[row])
    end = int((np.asarray(batch.segment_ids[row]) > 0).sum())
    is_in_place = arm.objective.in_place
    word = {**_words(tokens[places], tokenizer), **_words(targets[places], tokenizer)}
    word |= _words(np.asarray(found.tokens[row]), tokenizer)
    if is_in_place:
        borders = [-1, *places.tolist(), end]
        texts = [tokenizer.decode(tokens[left + 1 : right]) for left, right in pairwise(borders)]
    else:
        # The place of a target is that of the token before it.
        texts = [tokenizer.decode(tokens[: places[0] + 1]), *[""] * len(places)]
    return {
        "arm": arm.name,
        "in_place": is_in_place,
        "texts": texts,
        "hidden": [
            {
                "token": word[int(targets[place])],
                "shown": word[int(tokens[place])] if is_in_place else "",
                "found": word[int(found.tokens[row, number])],
                "is_right": bool(found.tokens[row, number] == targets[place]),
                "probability": float(found.probabilities[row, number]),
                "loss": float(found.losses[row, number]),
            }
            for number, place in enumerate(places.tolist())
        ],
    }


def _words(tokens: np.ndarray, tokenizer: Tokenizer) -> dict[int, str]:
    """Return the text of each token by its id; an id that pads the embedding table has none."""
    known = tokenizer.num_pieces + NUM_SPECIAL_TOKENS
    return {token: tokenizer.decode([token]) if token < known else "" for token in set(tokens.tolist())}
