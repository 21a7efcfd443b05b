"""When a device works and when it waits, by the order of a compiled program.

Instructions run one after another in the order of the text. Each takes as long as its products or its
bytes do, whichever is longer. Copies between memories run beside them, one after another. A collective runs
beside them from its `-start` to its `-done`, or as parts of several fusions; on each kind of link
collectives run one after another. A `-done` waits for what is not there yet. Any other collective runs
alone.

Left out are the vector unit's time, what an instruction costs to begin, and that copies and instructions
share the bandwidth of the main memory: a step of this program takes at least as long.
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
    """How fast a device is.

    Attributes:
        flops: the FLOPs a second of matrix products.
        memory_bandwidth: the bytes a second between the device and its main memory.
        busy_seconds: a collective -> the seconds for which one execution occupies each kind of link.
    """

    flops: float
    memory_bandwidth: float
    busy_seconds: Callable[[Collective], Mapping[str, float]]


class Transfer(NamedTuple):
    """The time of a collective.

    Attributes:
        collective: the collective.
        seconds: the seconds of all its executions on its links.
        exposed_seconds: those of them in which the device waits for it.
        behind: the seconds of the instructions that run meanwhile, by their place in the JAX program.
    """

    collective: Collective
    seconds: float
    exposed_seconds: float
    behind: Mapping[str, float]

    def times(self, executions: int) -> "Transfer":
        """Return the time of so many times as many executions."""
        collective = self.collective._replace(executions=self.collective.executions * executions)
        behind = {place: seconds * executions for place, seconds in self.behind.items()}
        return Transfer(collective, self.seconds * executions, self.exposed_seconds * executions, behind)


class Timeline(NamedTuple):
    """The time of a program.

    Attributes:
        seconds: the seconds from its begin to its end.
        transfers: its collectives, each instruction once.
    """

    seconds: float
    transfers: tuple[Transfer, ...]

    def times(self, executions: int) -> "Timeline":
        """Return the time of so many executions, one after another."""
        transfers = tuple(transfer.times(executions) for transfer in self.transfers)
        return Timeline(self.seconds * executions, transfers)


def read_timeline(module: HloModule, rates: Rates, mesh_shape: MeshShape, slices: int = 1) -> Timeline:
    """Return the time of one call of a program.

    Args:
        module: the program.
        rates: how fast a device is.
        mesh_shape: the number of devices along each mesh axis.
        slices: the number of slices of a TPU; they are the outermost part of the first axis.

    Raises:
        UnknownTripCountError: the trip count of a loop is unknown.
    """
    return _Program(module, rates, mesh_shape, slices).run(CallFrame(module.entry))


class _Flight(NamedTuple):
    """Something that runs beside the instructions.

    Attributes:
        begin: the time at which it was requested.
        end: the time at which it is there.
        collectives: the collectives, each with its seconds on the links; none of a copy.
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
        """Start something that occupies connections for so many seconds each."""
        begin = max([self.now, *(self._free[link] for link in busy)])
        end = begin + max(busy.values(), default=0.0)
        self._free.update(dict.fromkeys(busy, end))
        shares = tuple((one, (end - begin) / len(collectives)) for one in collectives)
        self._flights[name] = _Flight(self.now, end, shares)

    def rename(self, name: str, later: str) -> None:
        """Call something under way by another name."""
        if name in self._flights:
            self._flights[later] = self._flights.pop(name)

    def wait(self, name: str) -> None:
        """Wait for something under way."""
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
        """Wait for everything that is under way."""
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
        """Return the time of one execution of a computation."""
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
                # What slices send one another is there when it was received.
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
        """Return the time of the computations that an instruction runs; None if it runs none."""
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
        """Run one instruction, and start or end what runs beside it."""
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
