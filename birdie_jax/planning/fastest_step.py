"""Search for the fastest step that fits, over meshes, values of `model.remat` and parts of a batch."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from birdie_jax.models.rematerialisation import CHOICES, LEVELS
from birdie_jax.planning.planner import RunPlan, plan_run
from birdie_jax.planning.topology import Topology
from birdie_jax.resolve import ResolvedRun


@dataclass(frozen=True)
class Candidate:
    """A compiled step.

    Attributes:
        remat: the value of `config.model.remat`.
        accumulation_steps: the number of parts of a batch.
        plan: its plan.
    """

    remat: str
    accumulation_steps: int
    plan: RunPlan

    @property
    def seconds(self) -> float:
        """The minimum time of a step in the order of its program; infinite if it does not fit."""
        if not self.plan.fits or self.plan.bounds is None:
            return float("inf")
        return self.plan.bounds.program_order


def search_steps(
    runs: Sequence[ResolvedRun],
    topology: Topology,
    plan: Callable[[ResolvedRun, Topology], RunPlan] = plan_run,
) -> Iterator[Candidate]:
    """Yield every compiled step: for each run and level, up to the fewest parts of a batch that fit.

    A level that keeps less is compiled only if no previous level fits a whole batch, because otherwise it
    could only be slower. The level that keeps everything never ends the search.

    Args:
        runs: the run on each mesh.
        topology: the devices.
        plan: compiles a step and plans it.
    """
    for run in runs:
        for level in LEVELS:
            fitting = None
            for parts in _parts(run):
                config = replace(run.config, train=replace(run.config.train, accumulation_steps=parts))
                tried = run.with_batches_of(config).with_model(remat=level)
                found = Candidate(level, parts, plan(tried, topology))
                yield found
                if found.plan.fits:
                    fitting = parts
                    break
            if fitting == 1 and level in CHOICES:
                break


def frontier(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the steps that no other step beats in both time and memory, fastest first."""
    ordered = sorted(candidates, key=lambda one: (one.seconds, one.plan.bytes_per_device.total))
    kept: list[Candidate] = []
    for one in ordered:
        smallest = min((other.plan.bytes_per_device.total for other in kept), default=float("inf"))
        if one.plan.fits and one.plan.bytes_per_device.total < smallest:
            kept.append(one)
    return kept


def _parts(run: ResolvedRun) -> Iterator[int]:
    """Yield 1, 2, 4, ... parts, as far as they divide the rows of a device."""
    shape = run.mesh.shape
    rows = run.config.batching.rows // (shape["data"] * shape["fsdp"])
    parts = 1
    while parts <= rows and rows % parts == 0:
        yield parts
        parts *= 2
