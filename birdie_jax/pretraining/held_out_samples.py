"""Readable held-out examples with the model's predictions of their targets."""

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

# For an arm with labels in place; other classes have one example.
_SAMPLES_OF_ARM = 6
# Only the first targets of an example: each target needs a row of logits.
_MAX_TARGETS = 64


class HeldOutSamples:
    """A hook that predicts targets of held-out text at the end of a run, and writes them to the workdir.

    Each token is predicted from the correct tokens before it, as in validation.

    Attributes:
        name: the name of the hook; its section of the train state is empty.
    """

    name = "held_out_samples"

    def __init__(self, run: ResolvedRun, workdir: Workdir, text: RowText, tokenizer: Tokenizer):
        """Make the examples: several for each arm with labels in place, one for each other class.

        Args:
            run: the run.
            workdir: the folder of the run.
            text: the validation split.
            tokenizer: the tokenizer of the run.

        Raises:
            DataError: no example of such an arm can be made from the validation text.
        """
        self._workdir, self._tokenizer = workdir, tokenizer
        mixture, settings = run.mixture, run.rows
        # The number of rows that a step computes at a time: they fit in memory and divide over the devices.
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
            # If there are fewer rows than samples, take a later example of the stream.
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
        """Return an empty section."""
        del key
        return {}

    def resume(self, state: TrainState) -> None:
        """Do nothing."""

    def is_due(self, step: int, num_steps: int) -> bool:
        """Return whether the run has ended."""
        return step == num_steps

    def run(self, state: TrainState, call: HookCall) -> HookResult | None:
        """Predict the targets of every example, and write the samples to the workdir."""
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
        """Do nothing."""


def _with_first_targets(batch: Batch, arms: Sequence[Arm]) -> Batch:
    """Return the batch with only the first `_MAX_TARGETS` targets of each row; labels in place stay."""
    mask = np.asarray(batch.loss_mask).copy()
    for row, arm in enumerate(arms):
        if not arm.objective.in_place:
            mask[row] &= np.cumsum(mask[row]) <= _MAX_TARGETS
    return batch._replace(loss_mask=mask)


def describe_sample(
    arm: Arm, row: int, batch: Batch, found: Predictions, tokenizer: Tokenizer
) -> dict[str, Any]:
    """Return an example and the predicted tokens, in the format of the report.

    Returns:
        `arm`, the name of the arm; `in_place`, whether the example has labels in place; `texts`, the text
        before, between and after the predicted tokens; and `hidden`, one entry per predicted token. An
        entry has the token, the input at its position (`shown`, empty without labels in place), the most
        probable token (`found`), whether that is right, its probability, and the loss in nats.
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
        # The position of a target is that of the token before it.
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
    """Return the text of each token by its id; ids that only pad the embedding table have empty text."""
    known = tokenizer.num_pieces + NUM_SPECIAL_TOKENS
    return {token: tokenizer.decode([token]) if token < known else "" for token in set(tokens.tolist())}
