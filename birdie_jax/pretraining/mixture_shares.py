"""The configured and the expected share of each arm in the examples, positions and loss."""

import json
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Float64, Int

from birdie_jax.batching.arm_lengths import ArmLengths, count_lengths
from birdie_jax.config import Config
from birdie_jax.engine.coordination import Processes
from birdie_jax.objectives import Mixture
from birdie_jax.objectives.shares import EXAMPLES, sampling_probabilities, shares_of_tokens
from birdie_jax.resolve import first_mixture, row_settings
from birdie_jax.text.corpora import RowText

# The number of examples to draw for the expected shares: in total or per arm, whichever gives more.
_EXAMPLES, _EXAMPLES_OF_ARM = 1024, 16
# The same if batches depend on the shares: the arms' shares of the loss are then accurate to about 2 %.
_EXACT_EXAMPLES, _EXACT_EXAMPLES_OF_ARM = 16_384, 128
# Report an arm if its share of the loss is below this fraction of its share of the examples.
_SMALL_PART = 1 / 3
_MAX_NAMED = 4


@dataclass(frozen=True)
class ExpectedShares:
    """The expected shares of the arms of a mixture; each array sums to 1.

    Attributes:
        examples: the shares of the examples: the probabilities of drawing the arms.
        positions: the shares of the positions, context and target, and so of the time of a step.
        target_tokens: the shares of the target tokens, and so of the loss, which is a mean over them.
    """

    examples: Float64[np.ndarray, " arms"]
    positions: Float64[np.ndarray, " arms"]
    target_tokens: Float64[np.ndarray, " arms"]


@dataclass(frozen=True)
class MixtureShares:
    """The unit of a run's mixture probabilities: shares of examples or of target tokens.

    Attributes:
        shares_of: "examples" or "target_tokens" (`config.objectives.shares_of`).
        first: the mixture of the run's first steps, as known before the run.
        lengths: the lengths of the arms' examples, counted on the text of the run.
    """

    shares_of: str
    first: Float[np.ndarray, " arms"]
    lengths: ArmLengths

    def sampling(self, mixture: Float[np.ndarray, " arms"]) -> Float[np.ndarray, " arms"]:
        """Return the probability of drawing each arm under a mixture."""
        if self.shares_of == EXAMPLES:
            return mixture
        return sampling_probabilities(mixture, self.lengths.mean_target_tokens)

    def expected(self) -> ExpectedShares:
        """Return the expected shares of the arms in the run's first steps."""
        probabilities = self.sampling(self.first)
        return ExpectedShares(
            probabilities / probabilities.sum(dtype=np.float64),
            shares_of_tokens(probabilities, self.lengths.mean_positions),
            shares_of_tokens(probabilities, self.lengths.mean_target_tokens),
        )

    def to_json(self) -> str:
        """Return this object as JSON, for the other processes of a run."""
        counts = [each.tolist() for each in self.lengths]
        return json.dumps([self.shares_of, self.first.tolist(), *counts])

    @classmethod
    def from_json(cls, text: str) -> "MixtureShares":
        """Return the object that `to_json` wrote."""
        shares_of, first, *counts = json.loads(text)
        lengths = ArmLengths(*(np.array(each, np.int64) for each in counts))
        return cls(shares_of, np.array(first, np.float64), lengths)


def measure_shares(config: Config, mixture: Mixture, text: RowText) -> MixtureShares:
    """Count the lengths of the arms' examples, and return the shares of the run's mixtures.

    The result depends only on the configuration and the text, so every process and every restart of a run
    gets the same. An example's length depends slightly on the other examples in its row. So if mixtures are
    shares of target tokens, the lengths are counted a second time, under the probabilities from the first
    count. Under bandit mixtures far from the first one, the lengths can be off by a similarly small amount.

    Args:
        config: the configuration of the run.
        mixture: the arms of the run.
        text: the training split.

    Raises:
        DataError: the text cannot be read, or no example of an arm can be made from it; names the arm.
    """
    arms, settings, unit = mixture.arms, row_settings(config), config.objectives.shares_of
    count = max(_EXAMPLES, _EXAMPLES_OF_ARM * len(arms))
    first = first_mixture(config, mixture)
    shares = MixtureShares(unit, first, count_lengths(text, arms, settings, first, count))
    if unit == EXAMPLES:
        return shares
    count = max(_EXACT_EXAMPLES, _EXACT_EXAMPLES_OF_ARM * len(arms))
    probabilities = shares.sampling(first)
    return MixtureShares(unit, first, count_lengths(text, arms, settings, probabilities, count))


def agree_on_shares(config: Config, mixture: Mixture, text: RowText, processes: Processes) -> MixtureShares:
    """Call `measure_shares` in the first process; return its result in every process."""
    return MixtureShares.from_json(
        processes.broadcast_from_first(
            "shares of arms", lambda: measure_shares(config, mixture, text).to_json()
        )
    )


def small_loss_shares(mixture: Mixture, shares: MixtureShares) -> str:
    """Return a line that names the arms with much less of the loss than of the examples.

    These are the arms whose share of the loss is less than a third of their share of the examples, under
    the first mixture of the run. If this holds for a class as a whole, the line names the class instead of
    its arms. The line is empty if there are no such arms, or if mixtures are shares of target tokens.
    """
    if shares.shares_of != EXAMPLES:
        return ""
    expected = shares.expected()
    groups = np.array(mixture.groups)
    named: list[tuple[str, float, float]] = []
    for group in dict.fromkeys(mixture.groups):
        members = np.flatnonzero(groups == group)
        parts = [(mixture.names[arm], np.array([arm])) for arm in members]
        if len(members) > 1 and _is_small(*_sums(expected, members)):
            parts = [(f"the {len(members)} arms of {group}", members)]
        sums = [(name, *_sums(expected, arms)) for name, arms in parts]
        named += [each for each in sums if _is_small(*each[1:])]
    if not named:
        return ""
    # Sort by the difference of the shares, largest first.
    named.sort(key=lambda each: each[2] - each[1])
    shown = "; ".join(
        f"{name}: {examples:.1%} of the examples, {loss:.1%} of the loss"
        for name, examples, loss in named[:_MAX_NAMED]
    )
    rest = f"; and {len(named) - _MAX_NAMED} more, see the report" if len(named) > _MAX_NAMED else ""
    return (
        f"arms with little of the loss: {shown}{rest}; the mixture has shares of examples, and "
        "config.objectives.shares_of = 'target_tokens' makes them shares of the loss"
    )


def _sums(expected: ExpectedShares, arms: Int[np.ndarray, " members"]) -> tuple[float, float]:
    """Return the total share of the examples and of the loss of some arms."""
    return float(expected.examples[arms].sum()), float(expected.target_tokens[arms].sum())


def _is_small(examples: float, loss: float) -> bool:
    return loss < _SMALL_PART * examples
