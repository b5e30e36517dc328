"""A random workload on the real scheduler, shell and exchange, with everything that can go wrong, until it is done.

Some sessions in a storm, then a calm one: each storm blows over, and what is left then ends within ten minutes of
simulated time. Whatever happened, each conversation is published once, as it would have been without any of it; only
those that an engine did not answer may have failed, and they say so.

`play_cancelled` is a run that is cancelled at the n-th turn of its loop: then each task of it is at one of its awaits.

Whatever it was doing, the cancellation comes out again, the engines are closed and have nothing in flight, no task is
left, and what was recorded is whole: another session goes on from it to the same transcripts. The same run takes
another course with another seed of its loop and its engines: seed 3017 is turn 17 of course 3.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import NamedTuple

from mac_runner.errors import EngineCrashedError, EngineDeadError, StoreError
from mac_runner.scheduler.testing import ENGINE_DEATHS_PER_TURN_MAX, SHUTDOWN_GRACE_S
from mac_runner.spec import RetryConfig
from mac_runner.types import Request, Turn
from tests.scheduler.conftest import Stage, undisturbed
from tests.sim.shuffled import ShuffledLoop, simulate
from tests.sim.toy import Break, ToyEnvironment, Work, tasks
from tests.sim.weather import Fault, StormyEngine, StormyRecorder, Watch, Weather

SETTLED_WITHIN_S = 600.0

STORMS_MAX = 3

# A calm session may still meet poison that takes the run with it, until that has been found out.
SESSIONS_MAX = STORMS_MAX + 8


_OF_ENGINES = re.compile(
    r"turn \S+ (got no answer: (RequestTimeoutError|TransientBackendError|RequestRefusedError): .*|is poison: .*)"
)


_FAULTS: tuple[tuple[Fault, float], ...] = (
    ("reset", 0.2),
    ("timeout", 0.1),
    ("busy", 0.2),
    ("error", 0.2),
    ("garbage", 0.1),
    ("refusal", 0.02),
    ("hang", 0.03),
    ("delay", 0.2),
    ("did it but raised", 0.2),
    ("bug", 0.01),
)


class Workload(NamedTuple):
    """What is to be played. Few of them, so that how each ends without a storm is worked out once."""

    conversations: int
    agents: int
    models: int
    breaks: Break | None


WORKLOADS = (
    Workload(1, 1, 1, None),
    Workload(2, 4, 2, None),
    Workload(3, 3, 3, None),
    Workload(4, 2, 1, None),
    Workload(5, 3, 2, None),
    Workload(7, 2, 2, None),
    Workload(10, 1, 1, None),
    Workload(4, 3, 2, "receive"),
    Workload(4, 4, 2, "raise"),
    Workload(4, 2, 2, "stuck"),
    Workload(4, 2, 2, "prompt"),
    Workload(4, 2, 1, "turns"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Storm:
    """One seed's draw."""

    seed: int
    workload: Workload
    capacities: tuple[int, ...]
    token_budgets: tuple[int | None, ...]
    lookahead: int
    concurrency: int | None
    retry: RetryConfig
    weathers: tuple[Weather, ...]
    stops_at_s: tuple[float | None, ...]
    poison: str | None

    @staticmethod
    def draw(seed: int) -> Storm:
        """Any storm."""
        random = Random(seed)
        workload = random.choice(WORKLOADS)
        storms = random.randint(1, STORMS_MAX)
        return Storm(
            seed=seed,
            workload=workload,
            capacities=tuple(random.choice([1, 2, 3, 8]) for _ in range(workload.models)),
            token_budgets=tuple(random.choice([None, None, 600, 2000]) for _ in range(workload.models)),
            lookahead=random.choice([0, 0, 1, 3]),
            concurrency=random.choice([None, None, 1, 2, 5]),
            retry=RetryConfig(
                max_attempts=random.choice([2, 5, 50]),
                backoff_s_max=10.0,
                request_deadline_s=random.choice([60.0, 200.0]),
            ),
            weathers=tuple(_weather(random, Random(f"{seed}/{number}")) for number in range(storms)),
            stops_at_s=tuple(random.choice([None, None, 40.0 * random.random()]) for _ in range(storms)),
            poison=f"toy-{random.randrange(workload.conversations):03d}" if random.random() < 0.2 else None,
        )

    def kills(self, request: Request) -> bool:
        """Whether the engine dies over this request: one turn of one conversation."""
        return request.conversation == self.poison and is_second_round(request.turn)


def is_second_round(turn: Turn) -> bool:
    """One turn in each conversation that gets so far."""
    return turn.round == 1 and turn.place == 0 and not turn.is_followup


def _weather(random: Random, sizing: Random) -> Weather:
    wildness = random.choice([0.0, 0.3, 1.0])
    return Weather(
        rates={fault: wildness * rate * random.random() for fault, rate in _FAULTS if random.random() < 0.5},
        deaths_at_s=tuple(40.0 * random.random() for _ in range(random.choice([0, 0, 1, 3]))),
        down_s=random.choice([0.0, 10.0, 40.0, None]),
        disk_stall_rate=random.choice([0.0, 0.0, 0.1]),
        disk_fails_at_s=random.choice([None, None, None, 40.0 * random.random()]),
        # Drawn beside the rest, so that a seed has the weather that it had before engines changed their sizes.
        sizes=tuple((40.0 * sizing.random(), sizing.choice([0, 0, 1, 9])) for _ in range(sizing.choice([0, 0, 4]))),
        ends_at_s=40.0,
    )


class Played(NamedTuple):
    """What happened in a storm: a digest of all of it, how its sessions ended, what its requests met and came to."""

    digest: str
    endings: tuple[str, ...]
    met: tuple[Fault, ...]
    failures: tuple[str, ...]


def play(seed: int) -> Played:
    """Play a storm to its end."""
    storm = Storm.draw(seed)
    recorder = StormyRecorder(seed)
    work = tasks(storm.workload.conversations, agents=storm.workload.agents, models=storm.workload.models)
    digest, endings, engines = hashlib.sha256(), list[str](), list[StormyEngine]()
    for session in range(SESSIONS_MAX):
        ending, of_session = _play_session(storm, session, recorder, recorder.unfinished(work))
        digest.update(f"{ending} {recorder.events}".encode())
        endings.append(ending)
        engines += of_session
        if ending == "done":
            break
    else:
        raise AssertionError(f"not done after {SESSIONS_MAX} sessions")
    _check_results(storm, recorder, work)
    _check_poison(recorder, engines)
    digest.update(repr(recorder.results()).encode())
    failures = (transcript["failure"] for transcript in recorder.transcripts.values())
    return Played(
        digest=digest.hexdigest(),
        endings=tuple(endings),
        met=tuple(sorted({fault for engine in engines for fault in engine.met})),
        failures=tuple(failure for failure in failures if isinstance(failure, str)),
    )


def play_twice(seed: int) -> Played:
    """Play a storm a second time: it is the same storm."""
    first, second = play(seed), play(seed)
    assert first == second, f"it came out different the second time: {first}, {second}"
    return first


def _play_session(storm: Storm, session: int, recorder: StormyRecorder, work: Work) -> tuple[str, list[StormyEngine]]:
    is_calm = session >= len(storm.weathers)
    weather = Weather(down_s=storm.weathers[-1].down_s) if is_calm else storm.weathers[session]
    recorder.begin(weather)
    watch = Watch()
    engines = [
        StormyEngine(
            weather,
            capacity=capacity,
            token_budget=budget,
            lookahead=storm.lookahead,
            dice=storm.seed + 7 * session + number,
        )
        for number, (capacity, budget) in enumerate(zip(storm.capacities, storm.token_budgets, strict=True))
    ]
    for engine in engines:
        engine.kills = storm.kills
    stage = Stage(
        work=work,
        environment=ToyEnvironment(storm.workload.breaks),
        backends={f"model-{number}": engine for number, engine in enumerate(engines)},
        recorder=recorder,
        retry=storm.retry,
        concurrency=storm.concurrency,
        loop_seed=storm.seed + session,
        stop_at_s=None if is_calm else storm.stops_at_s[session],
        fails_at_s=weather.disk_fails_at_s,
        progress=watch,
    )
    ending = _ending_of(stage)
    _check_session(stage, engines, watch, ending)
    if ending == "done":
        _check_sums(stage, recorder, watch)
    is_excused = is_calm and storm.poison is not None
    assert not is_calm or ending == "done" or is_excused, f"a calm session ended: {ending}"
    return ending, engines


def _ending_of(stage: Stage) -> str:
    """How a session ended; an ending that a run may not have is raised."""
    try:
        return "stopped" if stage.play().interrupted else "done"
    except EngineCrashedError:
        return "crash"
    except EngineDeadError:
        return "dead"
    except StoreError:
        return "disk"


def _check_session(stage: Stage, engines: list[StormyEngine], watch: Watch, ending: str) -> None:
    assert all(engine.is_closed for engine in engines), "an engine was left open"
    assert not any(engine.in_flight for engine in engines), "a request was left behind at an engine"
    assert stage.ended_at_s <= engines[0].weather.ends_at_s + SETTLED_WITHIN_S, f"it took until {stage.ended_at_s}"
    if stage.stop_at_s is not None and ending == "stopped":
        assert stage.ended_at_s <= stage.stop_at_s + SHUTDOWN_GRACE_S + 5.0, f"it stopped at {stage.ended_at_s}"
    watch.check_fairness()


def _check_sums(stage: Stage, recorder: StormyRecorder, watch: Watch) -> None:
    """What went in came out: conversations, slots, requests, and what the accounts say of them."""
    assert watch.sums.departed == watch.sums.landed, f"{watch.sums}"
    assert watch.sums.opened == watch.sums.settled == len(stage.work), f"{watch.sums}"
    sent, answered = recorder.counted("EVENT_INFER_START"), recorder.counted("EVENT_INFER_DONE")
    faulted = recorder.counted("EVENT_RETRY") + recorder.counted("EVENT_GIVE_UP")
    assert sent == answered + faulted, f"{sent} requests sent, {answered} answered, {faulted} not"
    models = recorder.checkpoints[-1]["models"]
    assert isinstance(models, dict)
    accounts = [account for account in models.values() if isinstance(account, dict)]
    assert sum(int(str(account["requests"])) for account in accounts) == answered, f"{accounts}"
    assert sum(int(str(account["faults"])) for account in accounts) == faulted, f"{accounts}"
    for account in accounts:
        busy_s, available_s = float(str(account["busy_slot_s"])), float(str(account["available_slot_s"]))
        assert 0.0 <= busy_s <= available_s + 1e-6, f"{account}"


def _check_results(storm: Storm, recorder: StormyRecorder, work: Work) -> None:
    workload = storm.workload
    expected = undisturbed(
        workload.conversations, agents=workload.agents, models=workload.models, breaks=workload.breaks
    )
    found = recorder.results()
    assert sorted(found) == sorted(task.task_id for task, _ in work), "a conversation is lost"
    for task_id, transcript in found.items():
        assert isinstance(transcript, dict)
        if transcript != expected[task_id]:
            assert _OF_ENGINES.fullmatch(str(transcript["failure"])), f"{task_id} came out different: {transcript}"
    wanted = [fields for fields in recorder.named("EVENT_INFER_DONE") if not fields["is_dropped"]]
    assert len(wanted) == sum(map(len, recorder.replies.values())), "an answer was not journaled"
    for task_id, replies in recorder.replies.items():
        keys = [reply.turn_key for reply in replies]
        assert len(keys) == len(set(keys)), f"a turn of {task_id} was asked again after its reply was recorded"


def _check_poison(recorder: StormyRecorder, engines: list[StormyEngine]) -> None:
    """No turn is called poison for a death in company, and no poison is sent again.

    An engine may die of itself just when it has nothing but a suspect: that looks like poison. A death while
    the run stops counts against no turn.
    """
    deaths = [death for engine in engines for death in engine.deaths]
    alone = {request.split("/")[0] for death in deaths if len(death) == 1 for request in death}
    for task_id, transcript in recorder.transcripts.items():
        if "is poison" in str(transcript["failure"]):
            assert task_id in alone, f"{task_id} is called poison, and the engine never died over it alone"
    for task_id, turns in recorder.dead.items():
        assert max(turns.values()) <= ENGINE_DEATHS_PER_TURN_MAX, f"{task_id}: {turns} deaths"


_WEATHER = Weather(
    rates={"reset": 0.05, "did it but raised": 0.05, "delay": 0.1},
    deaths_at_s=(9.0,),
    down_s=3.0,
    disk_stall_rate=0.1,
    ends_at_s=40.0,
)

_WORK = tasks(5, agents=3, models=2)

TURNS_MAX = 1_000


def play_cancelled(seed: int) -> bool:
    """Cancel one course at one turn; whether the run was still going."""
    course, turn = divmod(seed, TURNS_MAX)
    recorder = StormyRecorder(course)
    engines = _two_engines(course)
    stage = _stage_of(recorder, engines, course)
    stage.progress = Watch()
    is_cancelled = simulate(lambda: _cancelled(stage, turn), seed=stage.loop_seed)
    assert all(engine.is_closed or not engine.is_started for engine in engines), "an engine was left open"
    assert not any(engine.in_flight for engine in engines), "a request was left behind"
    for task_id, replies in recorder.replies.items():
        assert len({reply.turn_key for reply in replies}) == len(replies), f"{task_id}: a reply was recorded twice"
    rest = _stage_of(recorder, [StormyEngine(Weather(), capacity=8, dice=number) for number in range(2)], course)
    rest.work = recorder.unfinished(_WORK)
    recorder.begin(Weather())
    assert not rest.play().interrupted
    assert recorder.results() == undisturbed(5, agents=3, models=2)
    return is_cancelled


@cache
def turns_to_cancel() -> int:
    """How many turns of the loop the first course takes when it is not cancelled."""
    stage = _stage_of(StormyRecorder(0), _two_engines(0), 0)
    taken = 0

    async def program() -> None:
        nonlocal taken
        loop = asyncio.get_running_loop()
        assert isinstance(loop, ShuffledLoop)
        before = loop.turns
        await asyncio.wait([asyncio.create_task(stage.program())])
        taken = loop.turns - before

    simulate(program, seed=stage.loop_seed)
    return taken


def _two_engines(course: int) -> list[StormyEngine]:
    return [StormyEngine(_WEATHER, capacity=2, dice=2 * course + number) for number in range(2)]


async def _cancelled(stage: Stage, turn: int) -> bool:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, ShuffledLoop)
    run = asyncio.create_task(stage.program())
    is_asked, before = False, loop.turns

    def strike(now: int) -> None:
        nonlocal is_asked
        if now - before == turn and not run.done():
            is_asked = run.cancel()

    loop.at_turn = strike
    await asyncio.wait([run])
    loop.at_turn = None
    assert run.cancelled() == is_asked, "a cancellation was swallowed"
    return is_asked


def _stage_of(recorder: StormyRecorder, engines: list[StormyEngine], course: int) -> Stage:
    recorder.begin(engines[0].weather)
    backends = {f"model-{number}": engine for number, engine in enumerate(engines)}
    return Stage(work=_WORK, recorder=recorder, backends=backends, loop_seed=course)
