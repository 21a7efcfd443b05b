"""What masked LM has learned, for people: held-out texts with what the model put in the hidden places."""

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
from birdie_jax.models.masked_predictions import MaskedPredictions, predict_masked
from birdie_jax.resolve import ResolvedRun
from birdie_jax.storage.workdir import Workdir
from birdie_jax.text import Tokenizer, TokenShards
from birdie_jax.vocabulary import NUM_SPECIAL_TOKENS

_SAMPLES_OF_ARM = 6


class MaskedSamples:
    """At the end of a run lets the model fill in hidden tokens of held-out text, and writes it down.

    Attributes:
        name: the name of the hook; it keeps no arrays.
    """

    name = "masked_samples"

    def __init__(self, run: ResolvedRun, workdir: Workdir, text: TokenShards, tokenizer: Tokenizer):
        """Make the texts: for each arm with labels in place the first examples of some rows.

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
        arms = [number for number, arm in enumerate(mixture.arms) if arm.objective.in_place]
        chosen = [(arm, row) for row in range(_SAMPLES_OF_ARM) for arm in arms][:rows]
        self._arms = [mixture.names[arm] for arm, _ in chosen]
        examples = []
        for arm, row in chosen:
            stream = RowStream(text, mixture.arms, settings, row % settings.rows)
            stream.set_mixture(np.eye(len(mixture.arms))[arm])
            # Another one of the stream where there are fewer rows than samples.
            examples.append([[stream.next_row()[0] for _ in range(1 + row // settings.rows)][-1]])
        self._batch = pack_rows(examples + [[]] * (rows - len(examples)), settings.length, settings.spacing)
        self._rows = LocalRows(rows, settings.length, run.mesh)
        places = self._batch.loss_mask.sum(axis=1)
        self._predict = jax.jit(
            partial(predict_masked, run.model, int(places.max())), out_shardings=replicated(run.mesh)
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
        """Fill in every text, and write all of them into the workdir."""
        call.heartbeat("held-out texts")
        found = jax.device_get(self._predict(state.params, self._rows.put_replicated(self._batch)))
        if jax.process_index() == 0:
            samples = [
                describe_sample(arm, row, self._batch, found, self._tokenizer)
                for row, arm in enumerate(self._arms)
            ]
            self._workdir.write(self._workdir.masked_samples, {"step": call.step, "samples": samples})
        return HookResult(state, {})

    def close(self) -> None:
        """Hold nothing."""


def describe_sample(
    arm: str, row: int, batch: Batch, found: MaskedPredictions, tokenizer: Tokenizer
) -> dict[str, Any]:
    """Return a text and its hidden tokens, as the report reads them.

    Returns:
        The name of the arm; `texts`, what stands before, between and behind the hidden tokens; and
        `hidden`, for each of these the token itself, what the model saw in its place, what it found most
        probable there, how probable that is, and the loss in nats.
    """
    tokens, targets = np.asarray(batch.tokens[row]), np.asarray(batch.targets[row])
    (places,) = np.nonzero(batch.loss_mask[row])
    end = int((np.asarray(batch.segment_ids[row]) > 0).sum())
    borders = [-1, *places.tolist(), end]
    word = {**_words(tokens[places], tokenizer), **_words(targets[places], tokenizer)}
    word |= _words(np.asarray(found.tokens[row]), tokenizer)
    return {
        "arm": arm,
        "texts": [tokenizer.decode(tokens[left + 1 : right]) for left, right in pairwise(borders)],
        "hidden": [
            {
                "token": word[int(targets[place])],
                "shown": word[int(tokens[place])],
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
