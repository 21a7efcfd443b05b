"""Results by condition: losses of text windows, and answers about items among noise."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from birdie_jax.evaluation_record import Interval
from birdie_jax.pruning_cost.cells import DENSE, paired_difference
from birdie_jax.tasks.bootstrap import bootstrap_differences, bootstrap_means
from studies.pruning.plans import MAIN, RANDOM, Run

Results = Mapping[Run, Mapping[str, Any]]

_RANDOM_OF_SEED = f"{RANDOM}_"


class Measured(NamedTuple):
    """The losses of one model's windows under a condition.

    Attributes:
        losses: the mean loss of each window's continuation; for random choices, also the mean over seeds.
        paper_flops: the FLOPs of reading a context, in the unit of Simba.
    """

    losses: Float[np.ndarray, " windows"]
    paper_flops: float


class TextLosses:
    """The losses of a model on held-out text.

    Attributes:
        documents: the index of each window's document.
    """

    def __init__(self, losses: Mapping[str, Any]):
        """Read the losses of a result, in the form that `measuring.measure_text` returns."""
        self.documents = np.array(losses["documents"], np.int64)
        self._cells: dict[tuple[str, float, int], list[Measured]] = {}
        for cell in losses["cells"]:
            key = (_policy_name(cell["variant"], cell["policy"]), cell["keep"], cell["context"])
            measured = Measured(np.array(cell["losses"], np.float64), cell["paper_flops"])
            self._cells.setdefault(key, []).append(measured)

    def policies(self, context: int) -> list[str]:
        """Return the names of the policies measured at a length of context, without the dense model."""
        names = (name for name, _, length in self._cells if length == context and name != DENSE)
        return list(dict.fromkeys(names))

    def shares(self, policy: str, context: int) -> list[float]:
        """Return the measured shares of a policy, the largest first."""
        found = {keep for name, keep, length in self._cells if (name, length) == (policy, context)}
        return sorted(found, reverse=True)

    def get(self, policy: str, keep: float, context: int) -> Measured | None:
        """Return the losses under a condition; None if it was not measured."""
        found = self._cells.get((policy, keep, context))
        if found is None:
            return None
        return Measured(np.mean([one.losses for one in found], axis=0), found[0].paper_flops)

    def dense(self, context: int) -> Measured:
        """Return the losses of the model without pruning."""
        found = self.get(DENSE, 1.0, context)
        assert found is not None
        return found

    def difference(self, first: Measured, second: Measured) -> Interval:
        """Return the mean loss of the second minus the first, with its 95 % interval over documents."""
        return paired_difference(first.losses, second.losses, self.documents)


def _policy_name(variant: str, policy: str) -> str:
    """Return the name of a condition: its policy, and its variant if that is not the default."""
    if variant in (MAIN, DENSE, "lengths", "tuned", policy) or variant.startswith(_RANDOM_OF_SEED):
        return policy
    return f"{policy}, {variant}"


class Needle(NamedTuple):
    """The answers about items among noise under a condition.

    Attributes:
        policy: the name of the policy; "dense" if it drops no token.
        keep: the final share of the schedule.
        accuracy: the share of correct tokens in each answer.
    """

    policy: str
    keep: float
    accuracy: Float[np.ndarray, " questions"]

    @property
    def mean(self) -> Interval:
        """The mean with its 95 % interval over questions."""
        return bootstrap_means(self.accuracy[:, None], np.ones(len(self.accuracy)))[0]


def needles_of(fine_tuned: Mapping[str, Any]) -> list[Needle]:
    """Return the answers of a model fine-tuned for items among noise; the dense ones first."""
    return [
        Needle(one["policy"], one["keep"], np.array(one["accuracy"], np.float64))
        for one in fine_tuned["needles"]
    ]


def accuracy_difference(first: Needle, second: Needle) -> Interval:
    """Return the accuracy of the second minus that of the first, with its 95 % interval over questions."""
    weights = np.ones(len(first.accuracy))
    return bootstrap_differences(first.accuracy[:, None], second.accuracy[:, None], weights, weights)[0]


def find_needle(needles: Sequence[Needle], policy: str, keep: float) -> Needle:
    """Return the answers under a condition."""
    return next(one for one in needles if (one.policy, one.keep) == (policy, keep))


def pruned_results(results: Results) -> Iterator[tuple[Run, Mapping[str, Any], TextLosses]]:
    """Yield the results of the pruned models, with their losses on text."""
    for run, result in results.items():
        if not run.is_smaller:
            yield run, result, TextLosses(result["losses"])


def smaller_result(results: Results, run: Run) -> TextLosses | None:
    """Return the losses of the smaller model that corresponds to a run; None without its result."""
    for other, result in results.items():
        if other.is_smaller and (other.mixer, other.seed) == (run.mixer, run.seed):
            return TextLosses(result["losses"])
    return None
