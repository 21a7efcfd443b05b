"""The timeline of a compiled program: when a device works, and when it waits.

Instructions run one after another in the order of the text. Each takes the time of its products or of its
bytes, whichever is longer. Copies between memories run concurrently with the instructions, one after
another. A collective runs concurrently from its `-start` to its `-done`, or as parts of several fusions; on
each kind of link, collectives run one after another. A `-done` waits until its transfer is complete. Any
other collective blocks the instructions.

The timeline ignores the vector unit's time, the overhead of starting an instruction, and the main memory
bandwidth that copies and instructions share. So it is a lower bound of the step time.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from hlo_analysis.collectives import Collective, collectives_of
from hlo_analysis.flops import instruction_flops
from hlo_analysis.memory_traffic import memory_traffic
from hlo_analysis.module import ASYNC_FUSION_DONE, ASYNC_FUSION_START, Computation, HloModule, Instruction
from hlo_analysis.replica_groups import MeshShape
from hlo_analysis.schedule import (
    BRANCHES,
    CALLED,
    ExecutedInstruction,
    called_frames,
    is_call,
    result_shapes,
)
from hlo_analysis.trip_counts import CallFrame, trip_count


class Rates(NamedTuple):
    """The speed of a device.

    Attributes:
        flops: the FLOPs per second of matrix products.
        memory_bandwidth: the bytes per second between the device and its main memory.
        busy_seconds: collective -> the seconds that one execution occupies each kind of link.
    """

    flops: float
    memory_bandwidth: float
    busy_seconds: Callable[[Collective], Mapping[str, float]]


class Transfer(NamedTuple):
    """The time of a collective.

    Attributes:
        collective: the collective.
        seconds: the seconds of all its executions on its links.
        exposed_seconds: the part of `seconds` in which the device waits.
        behind: the seconds of the instructions that run meanwhile, by place in the JAX program.
    """

    collective: Collective
    seconds: float
    exposed_seconds: float
    behind: Mapping[str, float]

    def times(self, executions: int) -> "Transfer":
        """Return the time of `executions` repetitions."""
        collective = self.collective._replace(executions=self.collective.executions * executions)
        behind = {place: seconds * executions for place, seconds in self.behind.items()}
        return Transfer(collective, self.seconds * executions, self.exposed_seconds * executions, behind)


class Timeline(NamedTuple):
    """The time of a program.

    Attributes:
        seconds: the seconds from start to end.
        transfers: its collectives, each instruction once.
    """

    seconds: float
    transfers: tuple[Transfer, ...]

    def times(self, executions: int) -> "Timeline":
        """Return the time of `executions` repetitions, one after another."""
        transfers = tuple(transfer.times(executions) for transfer in self.transfers)
        return Timeline(self.seconds * executions, transfers)


def read_timeline(module: HloModule, rates: Rates, mesh_shape: MeshShape, slices: int = 1) -> Timeline:
    """Return the timeline of one call of a program.

    Args:
        module: the program.
        rates: the speed of a device.
        mesh_shape: the number of devices along each mesh axis.
        slices: the number of TPU slices; they are the outermost part of the first axis.

    Raises:
        UnknownTripCountError: the trip count of a loop is unknown.
    """
    return _Program(module, rates, mesh_shape, slices).run(CallFrame(module.entry))


class _Flight(NamedTuple):
    """A transfer that runs concurrently with the instructions.

    Attributes:
        begin: the time when it was requested.
        end: the time when it completes.
        collectives: the collectives, each with its seconds on the links; empty for a copy.
    """

    begin: float
    end: float
    collectives: tuple[tuple[Collective, float], ...] = ()


class _Clock:
    """The time in one execution of a computation."""

    def __init__(self) -> None:
        self.now = 0.0
        self.transfers: list[Transfer] = []
        self._flights: dict[str, _Flight] = {}
        self._free: dict[str, float] = defaultdict(float)
        self._worked: list[tuple[float, float, str]] = []

    def work(self, seconds: float, place: str) -> None:
        """Run an instruction."""
        if seconds:
            self._worked.append((self.now, self.now + seconds, place))
        self.now += seconds

    def launch(
        self, name: str, busy: Mapping[str, float], collectives: tuple[Collective, ...] = ()
    ) -> None:
        """Start a transfer that occupies each link for its seconds in `busy`."""
        begin = max([self.now, *(self._free[link] for link in busy)])
        end = begin + max(busy.values(), default=0.0)
        self._free.update(dict.fromkeys(busy, end))
        shares = tuple((one, (end - begin) / len(collectives)) for one in collectives)
        self._flights[name] = _Flight(self.now, end, shares)

    def rename(self, name: str, later: str) -> None:
        """Rename a transfer in flight."""
        if name in self._flights:
            self._flights[later] = self._flights.pop(name)

    def wait(self, name: str) -> None:
        """Wait for a transfer in flight."""
        flight = self._flights.pop(name, None)
        if flight is None:
            return
        waited = max(0.0, flight.end - self.now)
        behind: dict[str, float] = defaultdict(float)
        for begin, end, place in self._worked:
            meanwhile = min(end, flight.end) - max(begin, flight.begin)
            if meanwhile > 0:
                behind[place] += meanwhile
        for collective, seconds in flight.collectives:
            exposed = min(seconds, waited / len(flight.collectives))
            self.transfers.append(Transfer(collective, seconds, exposed, dict(behind)))
        self.now = max(self.now, flight.end)

    def end(self) -> Timeline:
        """Wait for all transfers in flight."""
        for name in list(self._flights):
            self.wait(name)
        return Timeline(self.now, tuple(self.transfers))


_MEMORY = "copies"


class _Program(NamedTuple):
    module: HloModule
    rates: Rates
    mesh_shape: MeshShape
    slices: int

    def run(self, frame: CallFrame) -> Timeline:
        """Return the timeline of one execution of a computation."""
        clock, computation = _Clock(), frame.computation
        sends = [one.name for one in computation if one.opcode == "send"]
        receives = [one.name for one in computation if one.opcode == "recv"]
        for instruction in computation:
            opcode, place = instruction.opcode, _place(instruction)
            inner = self._inner(frame, instruction)
            if inner is not None and opcode == "async-start":
                collectives = tuple(transfer.collective for transfer in inner.transfers)
                busy = self._busy(collectives) if collectives else {_MEMORY: inner.seconds}
                clock.launch(instruction.name, busy, collectives)
            elif inner is not None:
                clock.work(inner.seconds, place)
                clock.transfers += inner.transfers
            elif opcode == "recv-done":
                # A transfer between slices completes at the recv-done.
                number = receives.index(instruction.operands[0])
                if number < len(sends):
                    clock.wait(sends[number])
            elif opcode.endswith("-update"):
                clock.rename(instruction.operands[0], instruction.name)
            elif opcode.endswith("-done"):
                if opcode != "send-done":
                    clock.wait(instruction.operands[0])
            else:
                self._step(clock, computation, instruction)
        return clock.end()

    def _inner(self, frame: CallFrame, instruction: Instruction) -> Timeline | None:
        """Return the timeline of the computations that an instruction runs, or None if it runs none."""
        opcode = instruction.opcode
        if opcode == "while":
            count = trip_count(self.module, frame, instruction)
            return _in_turn(self._called(frame, instruction, ("condition", "body"))).times(count)
        if opcode == "conditional":
            return max(self._called(frame, instruction, BRANCHES), key=lambda branch: branch.seconds)
        if opcode in ("call", "async-start") or is_call(self.module, frame.computation, instruction):
            return _in_turn(self._called(frame, instruction, CALLED))
        return None

    def _called(
        self, frame: CallFrame, instruction: Instruction, attributes: tuple[str, ...]
    ) -> list[Timeline]:
        return [self.run(called) for called in called_frames(self.module, frame, instruction, attributes)]

    def _busy(self, collectives: Iterable[Collective]) -> Mapping[str, float]:
        """Return the seconds of several collectives on each kind of link."""
        busy: dict[str, float] = defaultdict(float)
        for collective in collectives:
            for link, seconds in self.rates.busy_seconds(collective).items():
                busy[link] += seconds
        return busy

    def _step(self, clock: _Clock, computation: Computation, instruction: Instruction) -> None:
        """Run one instruction, and start or end its transfers."""
        shapes = result_shapes(computation, instruction)
        executed = ExecutedInstruction(
            instruction, 1, shapes, computation.operand_shapes(instruction), computation
        )
        products = instruction_flops(self.module, executed).dot / self.rates.flops
        moved = memory_traffic(self.module, executed) / self.rates.memory_bandwidth
        found = list(collectives_of(self.module, executed, self.mesh_shape, self.slices))
        opcode, place = instruction.opcode, _place(instruction)
        if opcode.endswith("-start") or opcode in ("send", "recv"):
            collectives = tuple(one for one, _ in found)
            busy = self._busy(collectives) if collectives else {_MEMORY: moved}
            clock.launch(instruction.name, busy, collectives)
            return
        markers = self._markers(instruction) if any(channel for _, channel in found) else ""
        for collective, channel in found:
            if channel is not None and ASYNC_FUSION_START in markers:
                clock.launch(channel, self.rates.busy_seconds(collective), (collective,))
        clock.work(max(products, moved), place)
        for collective, channel in found:
            if channel is not None and ASYNC_FUSION_DONE in markers:
                clock.wait(channel)
            elif channel is None:
                clock.launch(instruction.name, self.rates.busy_seconds(collective), (collective,))
                clock.wait(instruction.name)

    def _markers(self, fusion: Instruction) -> str:
        fused = self.module.fused_computation(fusion)
        return " ".join(one.attributes for one in fused if one.opcode == "custom-call")


def _in_turn(timelines: list[Timeline]) -> Timeline:
    seconds = sum(one.seconds for one in timelines)
    return Timeline(seconds, tuple(transfer for one in timelines for transfer in one.transfers))


def _place(instruction: Instruction) -> str:
    return instruction.op_name or instruction.name
