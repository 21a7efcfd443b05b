"""A hook that logs statistics of the gates and the state of each layer."""

from functools import partial

import jax
import numpy as np
from jaxtyping import PyTree

from birdie_jax.array_types import Key
from birdie_jax.batch import Batch
from birdie_jax.batching import RowStream, pack_rows
from birdie_jax.engine.mesh import LocalRows, replicated
from birdie_jax.engine.protocols import HookCall, HookResult
from birdie_jax.engine.state import TrainState
from birdie_jax.errors import ConfigError
from birdie_jax.models.gate_statistics import COLLECTION
from birdie_jax.models.language_model import LanguageModel
from birdie_jax.models.layout import batch_layout
from birdie_jax.resolve import ResolvedRun
from birdie_jax.text.corpora import RowText


class LogGateStatistics:
    """Logs `gates/STATISTIC/LAYER` on held-out rows of all arms; see `models.gate_statistics`.

    Attributes:
        name: the name of the hook; its section of the train state is empty.
    """

    name = "gate_statistics"

    def __init__(self, run: ResolvedRun, text: RowText):
        """Make the rows.

        Args:
            run: the run.
            text: the validation split.

        Raises:
            ConfigError: the model has no recurrent layer.
            DataError: no example of an arm can be made from the validation text.
        """
        self._every_steps = run.config.train.gate_statistics_every_steps
        settings, arms = run.rows, run.mixture.arms
        rows = settings.rows // run.config.train.accumulation_steps
        streams = [RowStream(text, arms, settings, row) for row in range(rows)]
        for stream in streams:
            stream.set_mixture(np.full(len(arms), 1.0 / len(arms)))
        packed = pack_rows([stream.next_row() for stream in streams], settings.length, settings.spacing)
        self._batch = LocalRows(rows, settings.length, run.mesh).put_replicated(packed)
        self._measure = jax.jit(partial(gate_statistics, run.model), out_shardings=replicated(run.mesh))

    def create_section(self, key: Key) -> PyTree:
        """Return an empty section."""
        del key
        return {}

    def resume(self, state: TrainState) -> None:
        """Do nothing."""

    def is_due(self, step: int, num_steps: int) -> bool:
        """Return whether `step` is a multiple of the configured interval, or the last step."""
        return step % self._every_steps == 0 or step == num_steps

    def run(self, state: TrainState, call: HookCall) -> HookResult:
        """Measure the statistics and return them as scalars.

        Raises:
            ConfigError: the model has no recurrent layer.
        """
        call.heartbeat("statistics of gates")
        found = jax.device_get(self._measure(state.params, self._batch))
        scalars: dict[str, float] = {}
        for path, values in jax.tree_util.tree_leaves_with_path(found):
            *place, statistic = (str(part.key) for part in path)
            layers = np.atleast_1d(values).reshape(-1)
            for layer, value in enumerate(layers):
                number = [f"{layer:0{len(str(len(layers) - 1))}}"] if len(layers) > 1 else []
                scalars["/".join(("gates", statistic, *place, *number))] = float(value)
        if not scalars:
            raise ConfigError(
                f"config.train.gate_statistics_every_steps: found {self._every_steps}; allowed: 0 for a "
                "model without a recurrent layer"
            )
        return HookResult(state, scalars)

    def close(self) -> None:
        """Do nothing."""


def gate_statistics(model: LanguageModel, params: PyTree[jax.Array], batch: Batch) -> PyTree[jax.Array]:
    """Return the statistics of each layer on a batch, by module path; scanned layers give [layers]."""
    _, left = model.apply(
        {"params": params}, batch.tokens, batch_layout(batch), method="encode", mutable=[COLLECTION]
    )
    return left.get(COLLECTION, {})
