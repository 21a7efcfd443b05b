"""Signals at random instants: anywhere, while saving, while restoring, and in preparation."""

import random
import signal

from benchmarks.fault_kinds.layer import Action, Class, Disturbance
from benchmarks.fault_kinds.play import Reference, Step
from benchmarks.fault_kinds.starts import Moment

_CHECKPOINTS = "checkpoints/"
# The longest wait between the drawn CPU time and the signal, as a share of the CPU time of a whole run.
_MAX_WAIT_SHARE = 0.05


def anywhere(draws: random.Random, reference: Reference, number: int = signal.SIGKILL) -> list[Step]:
    """Send a signal at two instants of the CPU time of an undisturbed run."""

    def moment() -> Moment:
        seconds, wait = reference.cpu_seconds * draws.random(), _MAX_WAIT_SHARE * draws.random()
        return Moment(seconds, reference.cpu_seconds * wait, number)

    return [Step(moment=moment()), Step(moment=moment())]


def while_saving(draws: random.Random, reference: Reference, *, terminate: bool = False) -> list[Step]:
    """Send a signal at two operations that change a checkpoint, possibly in the middle of a write."""
    changes = reference.count(Class.CHANGES, _CHECKPOINTS)

    def step(most: int) -> Step:
        action = Action.TERMINATE if terminate else draws.choice([Action.KILL, Action.TORN])
        return Step(Disturbance("", _CHECKPOINTS, Class.CHANGES, draws.randint(1, most), action))

    # The second start has fewer checkpoints left to save.
    return [step(changes), step(changes // 2)]


def while_restoring(draws: random.Random, reference: Reference, *, terminate: bool = False) -> list[Step]:
    """Kill a run that has a checkpoint, and send a signal at an operation of the restore that follows."""
    changes = reference.count(Class.CHANGES, _CHECKPOINTS)
    restore = reference.count(Class.ALL, _CHECKPOINTS, resumed=True)
    first = Disturbance(
        "", _CHECKPOINTS, Class.CHANGES, draws.randint(2 * changes // 5, changes), Action.KILL
    )
    action = Action.TERMINATE if terminate else Action.KILL
    second = Disturbance("", _CHECKPOINTS, Class.ALL, draws.randint(1, restore), action)
    return [Step(first), Step(second)]


def in_preparation(draws: random.Random, reference: Reference, number: int = signal.SIGKILL) -> list[Step]:
    """Send a signal to a preparation twice: at a moment, and at an operation on a file."""
    changes = reference.count(Class.CHANGES)
    actions = [Action.TERMINATE] if number == signal.SIGTERM else [Action.KILL, Action.TORN]
    operation = Disturbance("", "", Class.CHANGES, draws.randint(1, changes), draws.choice(actions))
    # The second start has less work.
    early = operation._replace(at=(operation.at + 1) // 2)
    moment = anywhere(draws, reference, number)[0]
    return [Step(operation), moment] if draws.random() < 0.5 else [moment, Step(early)]
