"""What taking turns costs: more models than places, first come first served against a residency, in simulated time.

Run `python -m benchmarks.fleet_swaps`. The decisions are `mac_runner.fleet.control`; engines, weights and replies are
simulated. A reply of 150 to 350 tokens takes 0.3 s and (7 + 0.05 B) ms a token, where B requests run beside it: about
an H100 and a model of 8 billion parameters. Conversations take their turns one after the other; each turn is another
of the models. The last line of
each case is with all models resident.
"""

from __future__ import annotations

import argparse
import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Literal

from mac_runner.fleet.control import Action, Command, Control, Do, Grant
from mac_runner.fleet.gpus import Place
from mac_runner.fleet.lane import LaneSpec
from mac_runner.spec import FleetConfig, SwapConfig

MODELS, PLACES, SLOTS = 6, 2, 32
SWAP_S = 1.5
WARM_UP_S, MEASURED_S = 200.0, 600.0


@dataclass(slots=True)
class Figures:
    """What one case gave."""

    waits_s: list[float] = field(default_factory=list)
    """From asking to the reply."""
    busy_s: float = 0.0
    swaps: int = 0

    def turns_per_s(self) -> float:
        """Replies a second."""
        return len(self.waits_s) / MEASURED_S

    def p95_s(self) -> float:
        """What a turn takes, for all but one in twenty."""
        return sorted(self.waits_s)[int(0.95 * len(self.waits_s))]

    def slots_used(self) -> float:
        """The share of the slots of all places that were busy."""
        return self.busy_s / (MEASURED_S * PLACES * SLOTS)


class Simulation:
    """A fleet whose engines are numbers."""

    def __init__(self, conversations: int, policy: Literal["fifo", "batch"], residency_s: float, resident: int) -> None:
        self.random = Random(1)
        self.now_s = 0.0
        self.queue: list[tuple[float, int, Callable[[], Sequence[Action]]]] = []
        self.count = 0
        self.asked: dict[int, tuple[int, float]] = {}
        self.figures = Figures()
        # With all models resident the slots of a place are shared out, so that their number stays.
        slots = SLOTS if resident == 1 else SLOTS // MODELS
        lanes = [self._lane(model, place, slots) for model in range(MODELS) for place in range(PLACES)]
        swap = SwapConfig(policy=policy, residency_s=residency_s)
        self.control = Control(lanes, FleetConfig(max_agents_per_gpu=resident, swap=swap))
        self.running = dict.fromkeys((lane.name for lane in lanes), 0)
        self._perform(self.control.begin(0.0))
        for number in range(conversations):
            self._at(60.0 + number * 0.01, lambda number=number: self._ask(number))  # type: ignore[misc]

    def run(self) -> Figures:
        """Play until the end of the measured time."""
        while self.now_s < WARM_UP_S + MEASURED_S:
            timer_s = self.control.next_at_s(self.now_s)
            if timer_s is not None and (not self.queue or timer_s < self.queue[0][0]):
                self.now_s = max(self.now_s, timer_s)
                self._perform(self.control.tick(self.now_s))
            else:
                self.now_s, _, what = heapq.heappop(self.queue)
                self._perform(what())
        return self.figures

    def _lane(self, model: int, place: int, slots: int) -> LaneSpec:
        name = f"model{model}"
        return LaneSpec(
            name=f"{name}@{place}",
            model=name,
            checkpoint=name,
            place=Place(number=place),
            memory_share=0.92,
            port=9000,
            slots=slots,
        )

    def _at(self, delay_s: float, what: Callable[[], Sequence[Action]]) -> None:
        self.count += 1
        heapq.heappush(self.queue, (self.now_s + delay_s, self.count, what))

    def _ask(self, conversation: int) -> Sequence[Action]:
        ticket, actions = self.control.ask(f"model{self.random.randrange(MODELS)}", self.now_s)
        self.asked[ticket] = conversation, self.now_s
        return actions

    def _reply(self, ticket: int, lane: str, took_s: float) -> Sequence[Action]:
        conversation, asked_at_s = self.asked.pop(ticket)
        self.running[lane] -= 1
        if self.now_s > WARM_UP_S:
            self.figures.waits_s.append(self.now_s - asked_at_s)
            self.figures.busy_s += took_s
        return (*self.control.left(ticket, self.now_s), *self._ask(conversation))

    def _perform(self, actions: Sequence[Action]) -> None:
        control = self.control
        for action in actions:
            match action:
                case Command(Do.START, lane):
                    self._at(1.0, lambda lane=lane: control.ready(lane, self.now_s))  # type: ignore[misc]
                case Command(Do.WAKE, lane):
                    self.figures.swaps += self.now_s > WARM_UP_S
                    self._at(SWAP_S / 2, lambda lane=lane: control.woken(lane, self.now_s))  # type: ignore[misc]
                case Command(Do.WARM, lane):
                    self._at(0.0, lambda lane=lane: control.warmed(lane, self.now_s))  # type: ignore[misc]
                case Command(Do.SLEEP, lane):
                    self._at(SWAP_S / 2, lambda lane=lane: control.slept(lane, self.now_s))  # type: ignore[misc]
                case Command(Do.CHECK_MEMORY, lane):
                    self._at(0.0, lambda lane=lane: control.memory(lane, True, self.now_s))  # type: ignore[misc]
                case Grant(ticket, lane):
                    self._serve(ticket, lane)

    def _serve(self, ticket: int, lane: str) -> None:
        self.running[lane] += 1
        place = lane.rpartition("@")[2]
        beside = sum(running for other, running in self.running.items() if other.endswith(f"@{place}"))
        took_s = 0.3 + self.random.randint(150, 350) * (7 + 0.05 * beside) / 1000
        self._at(took_s, lambda: self._reply(ticket, lane, took_s))


CASES: tuple[tuple[str, Literal["fifo", "batch"], float, int], ...] = (
    ("fifo", "fifo", 20.0, 1),
    ("batch, 20 s", "batch", 20.0, 1),
    ("batch, 60 s", "batch", 60.0, 1),
    ("all resident", "batch", 20.0, MODELS),
)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conversations", type=int, nargs="+", default=[96, 400, 1000])
    wanted = parser.parse_args().conversations
    print(f"{MODELS} models, {PLACES} places of {SLOTS} slots, a swap takes {SWAP_S} s; {MEASURED_S:g} s simulated")
    print(f"{'open':>5}  {'policy':<13}{'turns/s':>8}{'p95 s':>7}{'swaps':>7}{'slots used':>12}")
    for conversations in wanted:
        for name, policy, residency_s, resident in CASES:
            figures = Simulation(conversations, policy, residency_s, resident).run()
            print(
                f"{conversations:>5}  {name:<13}{figures.turns_per_s():>8.1f}{figures.p95_s():>7.0f}"
                f"{figures.swaps:>7}{figures.slots_used():>12.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
