"""Skip steps whose loss or gradient is not finite or an outlier, and steps that a field excludes.

The decision is a pure function of the train state and the batch, computed from sums over all processes. It
is the same on every process, on every mesh, and after a resume.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PyTree

from birdie_jax.array_types import Scalar
from birdie_jax.config_sections import TrainConfig
from birdie_jax.config_types import MAX_STEPS
from birdie_jax.errors import ConfigError, shown

SECTION = "bad_steps"
"""The section of the train state that holds `RecentSteps`."""
WINDOW = 128
"""The number of finite steps whose loss and gradient norm are kept."""
ARMED = WINDOW // 2
"""The number of finite steps that the rule for outliers requires."""
LEAST_DEVIATION = 0.01
"""The smallest standard deviation that the rule assumes, relative to the mean."""
LARGEST_KEPT = 1000.0
"""The number of deviations above the mean at which a kept value is clipped, so one spike does not hide the
next."""
# The sum of its square over the window fits float32.
_LARGEST = 1e15
_Tree = TypeVar("_Tree")


class RecentSteps(NamedTuple):
    """Statistics of the steps so far.

    Attributes:
        losses: the last finite losses, in any order.
        grad_norms: the gradient norms of the same steps.
        num_finite: the number of steps with finite values.
        skipped: the number of steps that changed nothing.
        bad_in_a_row: the number of bad steps since the last step that changed the parameters.
    """

    losses: Float[Array, " window"]
    grad_norms: Float[Array, " window"]
    num_finite: Int[Array, ""]
    skipped: Int[Array, ""]
    bad_in_a_row: Int[Array, ""]


@dataclass(frozen=True)
class BadStepRule:
    """Decides whether a step changes nothing.

    A step is bad if its loss or the norm of its gradient is not finite. With `outlier_deviations`, it is
    also bad if one of them is more than this number of standard deviations above the mean of the last
    `WINDOW` finite steps before it. This rule applies after `ARMED` finite steps.

    Attributes:
        outlier_deviations: the number of standard deviations; 0: no finite step is bad.
        max_in_a_row: the number of bad steps in a row to skip; one more ends the run.
        left_out: (first, last) of each range of steps to skip, whatever their batches contain.
    """

    outlier_deviations: float = 0.0
    max_in_a_row: int = 10
    left_out: Sequence[tuple[int, int]] = ()

    def judge(
        self, recent: RecentSteps, step: Int[Array, ""], loss: Scalar, grad_norm: Scalar
    ) -> tuple[Bool[Array, ""], RecentSteps]:
        """Return whether the step after `step` changes nothing, and the statistics after it."""
        finite = jnp.isfinite(loss) & jnp.isfinite(grad_norm)
        bad = ~finite
        armed, place = recent.num_finite >= ARMED, recent.num_finite % WINDOW
        losses_and_norms = []
        for value, values in ((loss, recent.losses), (grad_norm, recent.grad_norms)):
            known = jnp.arange(WINDOW) < recent.num_finite
            mean = jnp.mean(values, where=known)
            deviation = jnp.maximum(jnp.std(values, where=known), LEAST_DEVIATION * jnp.abs(mean))
            if self.outlier_deviations:
                bad |= armed & (value > mean + self.outlier_deviations * deviation)
            most = jnp.where(armed, mean + LARGEST_KEPT * deviation, _LARGEST)
            cut = jnp.minimum(value, most)
            losses_and_norms.append(values.at[place].set(jnp.where(finite, cut, values[place])))
        left_out = jnp.zeros((), bool)
        for first, last in self.left_out:
            left_out |= (first <= step + 1) & (step + 1 <= last)
        skipped = bad | left_out
        in_a_row = jnp.where(skipped, recent.bad_in_a_row + (bad & ~left_out), 0)
        losses, grad_norms = losses_and_norms
        num_finite, num_skipped = recent.num_finite + finite, recent.skipped + skipped
        return skipped, RecentSteps(losses, grad_norms, num_finite, num_skipped, in_a_row)


def bad_step_rule(config: TrainConfig) -> BadStepRule:
    """Return the rule of a configuration.

    Raises:
        ConfigError: `train.skip_batches` is invalid.
    """
    left_out = read_skip_batches(config.skip_batches)
    return BadStepRule(config.outlier_deviations, config.bad_steps, left_out)


def read_skip_batches(value: str) -> tuple[tuple[int, int], ...]:
    """Return the first and last step of each range in `train.skip_batches`.

    Raises:
        ConfigError: `value` is invalid.
    """
    left_out = []
    for text in filter(None, value.split(",")):
        match = re.fullmatch(r"([1-9][0-9]{0,9}):([1-9][0-9]{0,9})", text.strip())
        if match is None or int(match[1]) > int(match[2]):
            raise ConfigError(
                f"config.train.skip_batches: found {shown(text)}; allowed: first:last, numbers of steps, "
                "with commas between several, such as 4000:4020,7100:7100"
            )
        left_out.append((int(match[1]), min(int(match[2]), MAX_STEPS)))
    return tuple(left_out)


def check_skip_batches(value: str, num_steps: int, *, done: int = 0, before: str = "") -> None:
    """Check that no range of `train.skip_batches` lies where it has no effect.

    Args:
        value: the ranges.
        num_steps: the number of train steps of the run; 0: unknown.
        done: the step from which the run resumes.
        before: the ranges of the run so far, which it skipped.

    Raises:
        ConfigError: a range begins after the last step, or at a step that the run has done without it.
    """
    applied = read_skip_batches(before)
    for first, last in read_skip_batches(value):
        if num_steps and first > num_steps:
            allowed = f"steps of the run, whose last one is {num_steps}"
        elif _is_within(first, min(last, done), applied):
            continue
        else:
            allowed = (
                f"batches after step {done}, from which this run resumes, or ranges that it had before "
                "(docs/operate.md)"
            )
        raise ConfigError(f"config.train.skip_batches: found {first}:{last}; allowed: {allowed}")


def _is_within(first: int, last: int, ranges: Sequence[tuple[int, int]]) -> bool:
    """Return whether ranges cover all steps from `first` to `last`; True if there are none."""
    for begin, end in sorted(ranges):
        if begin <= first:
            first = max(first, end + 1)
    return first > last


def create_recent_steps() -> RecentSteps:
    """Return the statistics before the first step."""
    zero = jnp.zeros((), jnp.int32)
    values = jnp.zeros(WINDOW, jnp.float32)
    return RecentSteps(values, values, zero, zero, zero)


def unless_skipped(skipped: Bool[Array, ""], before: _Tree, after: _Tree) -> _Tree:
    """Return `before` if the step is skipped, else `after`; schedules advance in either case.

    The rate of a schedule depends on the number of steps, skipped or not.
    """

    def choose(old: PyTree, new: PyTree) -> PyTree:
        if isinstance(new, optax.ScaleByScheduleState):
            return new
        return jnp.where(skipped, old, new)

    return jax.tree.map(
        choose, before, after, is_leaf=lambda node: isinstance(node, optax.ScaleByScheduleState)
    )
