"""A fleet in simulated time: the real decisions over processes, memory and requests that go wrong in every way.

`play(seed)` raises AssertionError where a promise is broken. What is true is kept here, apart from what the decisions
believe: which processes live, who holds memory, who serves whom.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Literal, TypeAlias, get_args

from mac_runner.fleet.testing import (
    Action,
    Changed,
    Command,
    Control,
    Do,
    Grant,
    LaneSpec,
    LaneState,
    Note,
    Refuse,
    RoundRobinAllocator,
)
from mac_runner.spec import FleetConfig, ProbeConfig, RestartConfig, SwapConfig
from tests.sim.fake_fleet import spec
from tests.sim.timeline import Timeline

Fault: TypeAlias = Literal[
    "killed",
    "dies",
    "hangs",
    "slow",
    "refuses",
    "start fails",
    "start hangs",
    "dies while starting",
    "dies while warming",
    "dies while swapping",
    "swap hangs",
    "swap refused",
    "memory late",
    "memory kept asleep",
    "memory lost",
    "drained by a person",
]
FAULTS = frozenset(get_args(Fault))

WEATHER_S = 400.0
"""For so long things go wrong; then they do not."""
START_S = 100.0
END_S = 30_000.0
HEALED_S = 600.0
"""So long after the weather every lane serves, sleeps or is retired."""
SETTLED = (LaneState.UP, LaneState.ASLEEP, LaneState.RETIRED)


@dataclass(eq=False)
class Process:
    """An engine's process."""

    began_s: float
    is_ready: bool = False
    is_warm: bool = False
    is_awake: bool = True
    is_hung: bool = False
    is_doomed: bool = False
    """Whether it was ordered to end."""
    is_excused: bool = False
    """Whether a person wanted it to end, so that its end is no death."""
    requests: set[int] = field(default_factory=set)


@dataclass(eq=False)
class Request:
    """One turn of an agent. Kept by its ticket, or by a negative number where nothing is swapped."""

    agent: str
    model: str
    ticket: int | None = None
    lane: str | None = None
    process: Process | None = None


class World(Timeline):
    """Places, processes, agents; `control` decides."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = Random(seed)
        self.met: Counter[str] = Counter()
        self.resident = self.random.choice([1, 1, 2])
        self.budget = self.random.randint(2, 8)
        self.specs = {lane.name: lane for lane in self._lanes()}
        config = FleetConfig(
            max_agents_per_gpu=self.resident,
            swap=SwapConfig.model_validate(
                {"policy": self.random.choice(["batch", "fifo"]), "residency_s": self.random.choice([2.0, 20.0])}
            ),
            restart=RestartConfig(budget=self.budget, per_s=600),
            probe=ProbeConfig(start_s=START_S),
        )
        self.control = Control(self.specs.values(), config)
        self.models = sorted({lane.model for lane in self.specs.values()})
        self.allocator = RoundRobinAllocator(self.specs.values())
        for model in self.models:
            self.allocator.follow(model, self.specs)
            self.allocator.follow(model, ())
        self.processes: dict[str, Process] = {}
        self.holding: dict[str, float] = {}
        """Lanes whose memory is not free, and until when it stays so without a process."""
        self.leaving: set[str] = set()
        """Lanes that take no requests by an order that was seen."""
        self.may_stop: set[str] = set()
        """Lanes that there is a reason to end."""
        self.drained: set[str] = set()
        self.died_at: dict[str, list[float]] = {lane: [] for lane in self.specs}
        self.starts: dict[str, list[float]] = {lane: [] for lane in self.specs}
        """Starts after a death."""
        self.has_died: set[str] = set()
        self.moving: dict[int, str] = {}
        self.requests: dict[int, Request] = {}
        self.turns_left: dict[str, int] = {}
        self.settled: set[str] = set()
        self.answered = 0
        self.spins = 0
        """How often in a row the timer was due at once."""
        self.is_closed = False

    def _lanes(self) -> list[LaneSpec]:
        places, models = self.random.randint(1, 4), self.random.randint(1, 4)
        lanes: list[LaneSpec] = []
        for number in range(models):
            model = "abcd"[number]
            for place in self.random.sample(range(places), self.random.randint(1, places)):
                lanes.append(spec(model, place, self.random.randint(1, 4), 9000 + len(lanes)))
        return lanes

    # Time

    def play(self) -> None:
        self.perform(self.control.begin(0.0))
        for number in range(self.random.randint(1, 10)):
            agent, model = f"agent{number}", self.random.choice(self.models)
            self.turns_left[agent] = self.random.randint(2, 8)
            self.at(self.random.uniform(0, 200), lambda agent=agent, model=model: self._arrive(agent, model))  # type: ignore[misc]
        for _ in range(self.random.randint(0, 25)):
            self.at(self.random.uniform(1, WEATHER_S), self._strike)
        self.at(WEATHER_S + 1, self._calm)
        while self.turns_left or self.now_s <= WEATHER_S:
            assert self.now_s < END_S, f"not settled: {self.turns_left} {self._picture()}"
            assert self._step(), f"nothing will ever happen: {self._picture()}"
        healed_s = self.now_s + HEALED_S
        while self.now_s < healed_s and self._step():
            pass
        sick = [lane for lane in self.specs if self.control.lane(lane).state not in SETTLED]
        assert not sick, f"{sick} neither serve nor sleep {HEALED_S:g} s after the weather: {self._picture()}"
        self.close()

    def _step(self) -> bool:
        """Let the next thing happen; whether there was one."""
        timer_s = self.control.next_at_s(self.now_s)
        event_s = self.queue[0][0] if self.queue else None
        if timer_s is not None and (event_s is None or timer_s <= event_s):
            self.spins = self.spins + 1 if timer_s <= self.now_s else 0
            assert self.spins < 50, "the timer is always due"
            self.now_s = max(self.now_s, timer_s)
            self.perform(self.control.tick(self.now_s))
        elif event_s is not None:
            self.happen()
        else:
            return False
        self.check()
        return True

    def close(self) -> None:
        self.is_closed = True
        self.may_stop.update(self.specs)
        self.perform(self.control.close(self.now_s))
        while self.queue:
            self.happen()
        assert not self.processes, f"left running: {set(self.processes)}"

    # Commands

    def perform(self, actions: tuple[Action, ...]) -> None:
        for action in actions:
            match action:
                case Command(Do.START, lane):
                    self._start(lane)
                case Command(Do.WARM, lane):
                    self._warm(lane)
                case Command(Do.STOP, lane):
                    self._stop(lane)
                case Command(Do.SLEEP, lane):
                    self._sleep(lane)
                case Command(Do.WAKE, lane):
                    self._wake(lane)
                case Command(Do.CHECK_MEMORY, lane):
                    self.at(0.05, lambda lane=lane: self._memory(lane))  # type: ignore[misc]
                case Grant(ticket, lane):
                    self._send(self.requests[ticket], lane)
                case Refuse(ticket, why):
                    self._refuse(ticket, why)
                case Changed(model):
                    self._follow(model)
                case Note(event, lane):
                    self.met[event] += 1
                    if event == "EVENT_LANE_DRAIN":
                        self.leaving.add(lane)

    def _enter(self, lane: str) -> None:
        """Starts and wakes: one of a place, with room for its memory."""
        place = self.specs[lane].place.number
        assert place not in self.moving, f"{lane} and {self.moving.get(place)} start on one GPU at a time"
        others = [other for other in self._holders(place) if other != lane]
        assert lane not in self.holding or lane in self.processes, f"{lane} starts before its memory is back"
        assert len(others) < self.resident, f"{lane} starts while {others} hold the memory"
        self.moving[place] = lane
        self.holding[lane] = float("inf")

    def _start(self, lane: str) -> None:
        assert not self.is_closed, "started after the end"
        assert lane not in self.processes, f"{lane} started twice"
        if lane in self.has_died:
            deaths = self.died_at[lane]
            assert self.now_s - deaths[-1] >= 0.999, f"{lane} was started again at once"
            self.starts[lane].append(self.now_s)
            recent = [at_s for at_s in self.starts[lane] if at_s > self.now_s - 600]
            assert len(recent) <= self.budget, f"{lane} was started {len(recent)} times, its budget is {self.budget}"
        self.has_died.discard(lane)
        self._enter(lane)
        process = self.processes[lane] = Process(self.now_s)
        self.leaving.discard(lane)
        self.may_stop.discard(lane)
        fate = self._fate("start fails", "start hangs", "dies while starting", "slow")
        took_s = self.random.uniform(2, 30)
        if fate == "start fails":
            errors = ["CUDA out of memory at 0x{n}", "no such model", "port {n} is in use", "bad flag"]
            why = self.random.choice(errors).format(n=self.random.randint(1, 99))
            self.at(took_s, lambda: self._end(lane, process, why))
        elif fate == "dies while starting":
            self.at(took_s, lambda: self._end(lane, process, "killed", was_killed=True))
        elif fate != "start hangs":
            self.at(START_S * 0.95 if fate == "slow" else took_s, lambda: self._ready(lane, process))

    def _ready(self, lane: str, process: Process) -> None:
        if self.processes.get(lane) is process:
            process.is_ready = True
            self.perform(self.control.ready(lane, self.now_s))

    def _warm(self, lane: str) -> None:
        process = self.processes[lane]
        assert process.is_ready, f"{lane} is warmed up before it answers"
        assert process.is_awake, f"{lane} is warmed up asleep"
        if self._fate("dies while warming"):
            self.at(1.0, lambda: self._end(lane, process, "CUDA error"))
        else:
            self.at(self.random.uniform(0.1, 2), lambda: self._warmed(lane, process))

    def _warmed(self, lane: str, process: Process) -> None:
        if self.processes.get(lane) is process:
            process.is_warm = True
            if not process.is_doomed:
                self.moving.pop(self.specs[lane].place.number)
                self.leaving.discard(lane)
            self.perform(self.control.warmed(lane, self.now_s))

    def _stop(self, lane: str) -> None:
        process = self.processes[lane]
        assert not process.is_doomed, f"{lane} is stopped twice"
        is_late = not process.is_ready and self.now_s - process.began_s >= START_S - 0.001
        assert is_late or lane in self.may_stop, f"{lane} is stopped without reason: {self.control.lane(lane).fault}"
        process.is_doomed = True
        self.at(self.random.uniform(0, 8), lambda: self._end(lane, process, "signal 15", was_killed=True))

    def _sleep(self, lane: str) -> None:
        process = self.processes[lane]
        assert not process.requests, f"{lane} is put to sleep while it serves {len(process.requests)} requests"
        self._swap(lane, process, "/sleep", lambda: self._slept(lane, process))

    def _swap(self, lane: str, process: Process, door: str, done: Callable[[], None]) -> None:
        """A lane goes to sleep or wakes, or something goes wrong."""
        fate = self._fate("dies while swapping", "swap hangs", "swap refused")
        if fate == "dies while swapping":
            self.at(0.5, lambda: self._end(lane, process, f"CUDA error in {door}"))
        elif fate is None:
            self.at(self.random.uniform(0.1, 3), done)
        else:
            self.may_stop.add(lane)
            if fate == "swap refused":
                self.at(0.5, lambda: self.perform(self.control.failed(lane, f"{door} answered 500", self.now_s)))

    def _slept(self, lane: str, process: Process) -> None:
        if self.processes.get(lane) is not process:
            return
        process.is_awake = process.is_warm = False
        is_kept = self._fate("memory kept asleep")
        if is_kept:
            self.may_stop.add(lane)
        else:
            self._free_memory(lane, self.random.choice([0.0, 2.0]))
        self.perform(self.control.slept(lane, self.now_s))

    def _wake(self, lane: str) -> None:
        process = self.processes[lane]
        assert not process.is_awake, f"{lane} is awake"
        self._enter(lane)
        self._swap(lane, process, "/wake_up", lambda: self._woken(lane, process))

    def _woken(self, lane: str, process: Process) -> None:
        if self.processes.get(lane) is process:
            process.is_awake = True
            self.perform(self.control.woken(lane, self.now_s))

    def _memory(self, lane: str) -> None:
        self.perform(self.control.memory(lane, lane not in self._all_holders(), self.now_s))

    def _end(self, lane: str, process: Process, why: str, *, was_killed: bool = False) -> None:
        if self.processes.get(lane) is not process:
            return
        del self.processes[lane]
        place = self.specs[lane].place.number
        if self.moving.get(place) == lane:
            del self.moving[place]
        if self.control.lane(lane).state is not LaneState.RETIRED and not process.is_excused:
            self.has_died.add(lane)
            self.died_at[lane].append(self.now_s)
        if lane in self.holding and self.holding[lane] == float("inf"):
            fate = self._fate("memory late", "memory lost")
            self._free_memory(lane, 20.0 if fate == "memory late" else 1e6 if fate == "memory lost" else 0.0)
        failed = [self.requests[number] for number in sorted(process.requests)]
        process.requests.clear()
        self.perform(self.control.ended(lane, why, self.now_s, was_killed=was_killed))
        for request in failed:
            self._again(request)

    def _free_memory(self, lane: str, in_s: float) -> None:
        self.holding[lane] = self.now_s + in_s

    def _all_holders(self) -> set[str]:
        self.holding = {lane: at_s for lane, at_s in self.holding.items() if at_s > self.now_s}
        return set(self.holding)

    def _holders(self, place: int) -> list[str]:
        """Those that the decisions have to know: memory that a retired lane never gave back is given up."""
        return [
            lane
            for lane in sorted(self._all_holders())
            if self.specs[lane].place.number == place
            and (lane in self.processes or self.control.lane(lane).state is not LaneState.RETIRED)
        ]

    # Requests

    def _arrive(self, agent: str, model: str) -> None:
        if self.control.lost(model) is not None:
            del self.turns_left[agent]
            return
        request = Request(agent, model)
        if not self.control.is_swapped(model):
            self.count += 1
            self.requests[-self.count] = request
            self._place(request)
            return
        request.ticket, commands = self.control.ask(model, self.now_s)
        self.requests[request.ticket] = request
        self.perform(commands)

    def _place(self, request: Request) -> None:
        """An agent of a model that is not swapped goes to its lane, or waits for one."""
        if request.agent in self.settled:
            lane = self.allocator.lane_of(request.agent)
        else:
            if not self.control.up(request.model):
                return
            lane = self.allocator.allocate(request.agent, request.model)
            self.settled.add(request.agent)
        if lane is not None:
            self._send(request, lane)

    def _send(self, request: Request, lane: str) -> None:
        process = self.processes[lane]
        # A lane that gives its seat away takes what was granted in the same moment.
        is_leaving_in_order = self.control.lane(lane).state is LaneState.DRAINING and lane not in self.drained
        assert is_leaving_in_order or self.control.lane(lane).is_up, f"{lane} gets a request and is not up"
        assert process.is_warm, f"{lane} gets a request and cannot serve it"
        number = self._number(request)
        request.lane, request.process = lane, process
        process.requests.add(number)
        assert not self.control.is_swapped(request.model) or len(process.requests) <= self.specs[lane].slots
        if not process.is_hung:
            took_s = self.random.uniform(0.5, 20)
            self.at(took_s, lambda: self._answer(request, process))

    def _number(self, request: Request) -> int:
        return next(number for number, other in self.requests.items() if other is request)

    def _answer(self, request: Request, process: Process) -> None:
        if process.is_hung or request.process is not process or self.processes.get(request.lane or "") is not process:
            return
        process.requests.discard(self._number(request))
        self.answered += 1
        self.turns_left[request.agent] -= 1
        self._leave(request)
        if not self.turns_left[request.agent]:
            del self.turns_left[request.agent]
        else:
            pause_s = self.random.choice([0.0, 0.0, 1.0])
            self.at(pause_s, lambda: self._arrive(request.agent, request.model))
        if request.lane in self.drained and not process.requests and not self.control.is_swapped(request.model):
            self.perform(self.control.drained(request.lane, self.now_s))

    def _leave(self, request: Request) -> None:
        number = self._number(request)
        del self.requests[number]
        request.process = None
        if request.ticket is not None:
            self.perform(self.control.left(request.ticket, self.now_s))

    def _again(self, request: Request) -> None:
        """Its lane died: it is sent again, elsewhere or later."""
        self._leave(request)
        self._arrive(request.agent, request.model)

    def _refuse(self, ticket: int, why: str) -> None:
        request = self.requests[ticket]
        assert self.control.lost(request.model), f"refused though the model is not lost: {why}"
        self.turns_left.pop(request.agent)
        self.at(0.0, lambda: self._leave(request))

    def _follow(self, model: str) -> None:
        """Agents follow lanes: stranded ones move in the same moment, waiting ones take the first that is up."""
        if self.control.is_swapped(model):
            return
        self.allocator.follow(model, {one.name for one in self.control.up(model)})
        for request in list(self.requests.values()):
            if request.model == model and request.process is None:
                self._place(request)
        if self.control.lost(model) is not None:
            for number, request in list(self.requests.items()):
                if request.model == model and request.process is None:
                    del self.requests[number]
                    self.turns_left.pop(request.agent)

    # Weather

    def _fate(self, *faults: Fault) -> Fault | None:
        if self.is_closed or self.now_s > WEATHER_S or self.random.random() > 0.15:
            return None
        fault = self.random.choice(faults)
        if fault == "memory lost" and self.random.random() < 0.7:
            return None
        self.met[fault] += 1
        return fault

    def _strike(self) -> None:
        if not self.processes:
            return
        lane = self.random.choice(sorted(self.processes))
        process = self.processes[lane]
        fault: Fault = self.random.choice(["killed", "dies", "hangs", "slow", "refuses", "drained by a person"])
        self.met[fault] += 1
        if fault == "killed":
            self._end(lane, process, "signal 9", was_killed=True)
        elif fault == "dies":
            self._end(lane, process, f"EngineCore died, pid {self.random.randint(1, 9999)}")
        elif fault == "hangs" and process.requests:
            process.is_hung = True
            self.may_stop.add(lane)
            self.at(40.0, lambda: self._stuck(lane, process))
        elif fault == "refuses":
            for number in sorted(process.requests):
                request = self.requests.get(number)
                if request is not None and request.process is process:
                    process.requests.discard(number)
                    self._again(request)
        elif fault == "drained by a person":
            self._drain(lane, process)

    def _stuck(self, lane: str, process: Process) -> None:
        if self.processes.get(lane) is process and process.requests:
            self.perform(self.control.stuck(lane, "no token for 30 s", self.now_s))

    def _drain(self, lane: str, process: Process) -> None:
        if self.control.lane(lane).state is LaneState.RETIRED or lane in self.drained:
            return
        self.drained.add(lane)
        process.is_excused = True
        self.may_stop.add(lane)
        self.perform(self.control.drain(lane, self.now_s))
        if not process.requests and not self.control.is_swapped(self.specs[lane].model):
            self.perform(self.control.drained(lane, self.now_s))
        self.at(self.random.uniform(0, 60), lambda: self._ask_up(lane))

    def _ask_up(self, lane: str) -> None:
        if lane in self.drained:
            self.drained.discard(lane)
            if lane in self.processes and not self.processes[lane].is_doomed:
                self.processes[lane].is_excused = False
            self.perform(self.control.ask_up(lane, self.now_s))
            if self.control.lane(lane).is_up:
                self.leaving.discard(lane)

    def _calm(self) -> None:
        """The weather is over: what hangs without requests is found by its next request, or is ended here."""
        for lane, process in sorted(self.processes.items()):
            if process.is_hung and not process.is_doomed:
                self._end(lane, process, "killed in the end", was_killed=True)

    # Truth

    def check(self) -> None:
        true = dict.fromkeys(self.models, 0)
        up: set[str] = set()
        awake = dict.fromkeys((lane.place.number for lane in self.specs.values()), 0)
        for lane, process in self.processes.items():
            held = self.specs[lane]
            awake[held.place.number] += process.is_awake
            if process.is_warm and not process.is_doomed and lane not in self.leaving:
                true[held.model] += held.slots
                up.add(lane)
        for model, slots in true.items():
            offered = sum(spec.slots for spec in self.control.up(model))
            assert offered == slots, f"{model} offers {offered} slots; {slots} of {sorted(up)} serve"
        assert max(awake.values()) <= self.resident, f"awake on each place: {awake}; allowed: {self.resident}"
        for agent in self.settled & self.turns_left.keys():
            home = self.allocator.lane_of(agent)
            assert home is None or home in up, f"{agent} is settled on {home}, which is not up"

    def _picture(self) -> str:
        lanes = {lane: self.control.lane(lane).state.value for lane in self.specs}
        return f"lanes {lanes}, processes {sorted(self.processes)}, holding {self.holding}, requests {self.requests}"


def play(seed: int) -> World:
    """One storm; returns what was seen."""
    world = World(seed)
    try:
        world.play()
    except AssertionError as error:
        raise AssertionError(f"fleet storm {seed} at {world.now_s:.1f} s: {error}") from error
    return world
