"""One small run against a hostile server, and what must hold of it, whatever the server does.

It ends orderly, in good time and in little memory; its key is nowhere to be found; what it recorded is in order; and
once the server is well, the run goes on to the same transcripts as if nothing had ever been wrong.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Final

from mac_runner.cli.process import Exit
from mac_runner.types import JsonObject
from tests.attacks.canary import leaks
from tests.attacks.hostile_server import MODEL, Hostility, Schedule, ollama_server, openai_server
from tests.attacks.invocation import Ended, mac_run, shortened
from tests.attacks.modes import MODES, WIRE, Fate, Mode
from tests.cli.lab import RunDir, discussion
from tests.kit import written
from tests.patience import LIMIT_S
from tests.sim.openai_run import in_a_thread
from tests.sim.openai_server import OpenaiServer

KEY: Final = "xk-Zq7Wv9Jp3Gf5Ty2Ub8Nd"
KEY_VARIABLE: Final = "HOSTILE_KEY"
CONVERSATIONS: Final = 6
ROUNDS: Final = 2
RUN: Final = "runs/talk"
_HEALS_MAX: Final = 4

_MOST_ARE_WELL: Final[dict[Fate, frozenset[Exit]]] = {
    Fate.TAKEN: frozenset({Exit.OK}),
    Fate.RETRIED: frozenset({Exit.OK}),
    Fate.UNUSABLE: frozenset({Exit.OK}),
    Fate.WORDS: frozenset({Exit.OK, Exit.FAILURES}),
    Fate.FAILED: frozenset({Exit.FAILURES}),
}
CODES: Final[dict[Schedule, dict[Fate, frozenset[Exit]]]] = {
    Schedule.NOW_AND_THEN: _MOST_ARE_WELL,
    Schedule.IN_TURN: _MOST_ARE_WELL,
    Schedule.FOR_GOOD: {
        Fate.TAKEN: frozenset({Exit.OK}),
        Fate.RETRIED: frozenset({Exit.INTERRUPTED}),
        Fate.UNUSABLE: frozenset({Exit.FAILURES}),
        Fate.WORDS: frozenset({Exit.OK, Exit.FAILURES}),
        Fate.FAILED: frozenset({Exit.FAILURES, Exit.INTERRUPTED}),
    },
    Schedule.BESIDE: {
        Fate.TAKEN: frozenset({Exit.OK}),
        Fate.RETRIED: frozenset({Exit.OK}),
        Fate.UNUSABLE: frozenset({Exit.OK}),
        Fate.WORDS: frozenset({Exit.OK, Exit.FAILURES}),
        Fate.FAILED: frozenset({Exit.OK, Exit.FAILURES}),
    },
    Schedule.FROM_THE_START: {
        Fate.RETRIED: frozenset({Exit.INTERRUPTED}),
        Fate.UNUSABLE: frozenset({Exit.INTERRUPTED, Exit.FAILURES}),
        Fate.FAILED: frozenset({Exit.BAD_INPUT, Exit.INTERRUPTED, Exit.FAILURES}),
    },
}
"""How a run may end; where nothing is said, in any way but a failure of the store or a bug."""
_ANY: Final = frozenset({Exit.OK, Exit.FAILURES, Exit.BAD_INPUT, Exit.INTERRUPTED})
# A server that never answers is waited for no longer than a test can wait.
_PACE: Final = {
    "ENDPOINT_REST_S": 0.02,
    "ENDPOINT_REST_S_MAX": 0.1,
    "ENDPOINT_PAUSE_S_MAX": 0.05,
    "RETRY_AFTER_S_MAX": 0.05,
    "REST_S": 0.02,
}
_IMPATIENCE: Final = {"ENGINE_BUSY_S_MAX": 0.5, "OLLAMA_ANSWER_S_MAX": 2.0}
_SLOW: Final = {"OLLAMA_ANSWER_S_MAX": 0.4, "OLLAMA_LOOK_INTERVAL_S": 0.2}
# Only where the run may stop: it bounds the one look at the start as well, of a server that is well.
_SLOW_FOR_GOOD: Final = {"CANARY_S_MAX": 0.4}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A mode, when it strikes, and in which protocol: `chat`, `completions` or `ollama`.

    Several modes are of one kind, and take turns.
    """

    names: tuple[str, ...]
    schedule: Schedule
    shape: str = "chat"

    def __str__(self) -> str:
        return f"{self.shape}, {self.schedule.value}: {', '.join(self.names)}"

    @property
    def modes(self) -> tuple[Mode, ...]:
        """What the server does."""
        return tuple(MODES[name] for name in self.names)

    @property
    def mode(self) -> Mode:
        """One of them, for what they have in common."""
        return self.modes[0]

    @property
    def is_impatient(self) -> bool:
        """Whether the run waits for the server only shortly."""
        return self.schedule in (Schedule.FOR_GOOD, Schedule.FROM_THE_START)

    @property
    def fate(self) -> Fate:
        """What becomes of a request that the server is hostile to."""
        return (self.shape == "ollama" and self.mode.ollama) or self.mode.fate

    @property
    def codes(self) -> frozenset[Exit]:
        """How the run may end."""
        return _ANY if self.shape == "ollama" else CODES[self.schedule].get(self.fate, _ANY)


def in_turn() -> Iterator[Case]:
    """Cases in which every mode has its turn, together with others of its fate."""
    kinds = defaultdict[tuple[Fate, bool], list[str]](list)
    for name, mode in MODES.items():
        kinds[mode.fate, mode.is_slow].append(name)
    for (fate, _), names in kinds.items():
        # Where a hit may fail its conversation, there are fewer of them.
        most = 8 if fate in (Fate.TAKEN, Fate.RETRIED, Fate.UNUSABLE) else 3
        for start in range(0, len(names), most):
            yield Case(names=tuple(names[start : start + most]), schedule=Schedule.IN_TURN)


ALONE: Final = [schedule for schedule in Schedule if schedule is not Schedule.IN_TURN]
CASES: Final = (
    *(Case(names=(name,), schedule=schedule) for schedule in ALONE for name in MODES),
    *(Case(names=(name,), schedule=Schedule.NOW_AND_THEN, shape="completions") for name in MODES),
    *(
        Case(names=(name,), schedule=schedule, shape="ollama")
        for schedule in ALONE
        for name in WIRE
        if schedule is not Schedule.BESIDE
    ),
    *in_turn(),
)


def play(seed: int) -> str:
    """Play the case of this number; the cases begin again with other dice when all have been played."""
    case = CASES[seed % len(CASES)]
    hits = play_case(case, Random(seed))
    return f"{case}: {hits} hits"


def play_case(case: Case, dice: Random) -> int:
    """Play a case; how many requests the server was hostile to. Raises AssertionError when something does not hold."""
    expected = undisturbed(case.shape)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory()))
        trap = stack.enter_context(in_a_thread(OpenaiServer(keeps=False)))
        hostility = Hostility(modes=case.modes, schedule=case.schedule, key=KEY, dice=dice, trap=trap.url)
        open_server = ollama_server if case.shape == "ollama" else openai_server
        url = stack.enter_context(open_server(hostility))
        urls = [url]
        if case.schedule is Schedule.BESIDE:
            calm = Hostility(modes=case.modes, schedule=case.schedule, key=KEY, dice=dice, is_over=True)
            urls.append(stack.enter_context(openai_server(calm)))
        write(directory, urls, case)
        words = case_words(case, directory, hostility)
        assert hostility.hits >= len(case.names), f"it was hostile to {hostility.hits} of them"
        assert (trap.requests, trap.pages) == (0, []), "a redirect was followed"
        check_whole(directory, expected, is_other=case.fate in (Fate.WORDS, Fate.ANY))
        check_key(directory, words)
    return hostility.hits


def case_words(case: Case, directory: Path, hostility: Hostility) -> str:
    """Run, and run again with the server well, until all is done; whatever was printed."""
    bounds = _PACE | (_IMPATIENCE if case.is_impatient else {}) | (_SLOW if case.mode.is_slow else {})
    bounds |= _SLOW_FOR_GOOD if case.mode.is_slow and case.is_impatient else {}
    with shortened(bounds):
        first = run(directory, "talk.yaml")
    assert first.code in case.codes, f"code {first.code} where {sorted(case.codes)} may be: {first}"
    check_said(first)
    if (directory / RUN / "task_manifest.json").exists():
        checked = run(directory, "verify", RUN)
        assert checked.code == Exit.OK, checked
    hostility.is_over = True
    return first.out + first.err + heal(directory, first)


def heal(directory: Path, last: Ended) -> str:
    """Go on with the server well: the same command, or a retry of what failed; whatever was printed.

    Where nothing that the server said was usable, the run fails, and yet no conversation did: it stays as it is.
    """
    words = ""
    for _ in range(_HEALS_MAX):
        if last.code == Exit.OK or "nothing to retry" in last.err:
            return words
        last = run(directory, *(("retry", RUN) if last.code == Exit.FAILURES else ("talk.yaml",)))
        words += last.out + last.err
    raise AssertionError(f"it does not come to its end with a server that is well: {last}")


def run(directory: Path, *args: str) -> Ended:
    """A command line with the key in its environment."""
    return mac_run(*args, directory=directory, environ={KEY_VARIABLE: KEY, "OLLAMA_API_KEY": KEY})


def check_said(ended: Ended) -> None:
    """Whatever did not end well is explained, and each line fits on a screen."""
    assert ended.code == Exit.OK or ended.err.strip(), "not a word of why"
    assert all(len(line) < 4_000 for line in ended.err.splitlines()), f"a line without end: {ended}"


def check_whole(directory: Path, expected: dict[str, bytes], *, is_other: bool) -> None:
    """All is there once, in order, and as without the server's doings, unless it said other words."""
    checked = run(directory, "verify", RUN)
    assert checked.code == Exit.OK, checked
    found = RunDir(path=directory / RUN)
    assert len(found.index) == CONVERSATIONS
    assert found.statuses == {"finished": CONVERSATIONS}
    transcripts = found.transcripts
    assert transcripts.keys() == expected.keys()
    changed = [name for name in expected if transcripts[name] != expected[name]]
    assert is_other or not changed, f"other transcripts than without the server's doings: {', '.join(changed)}"


def check_key(directory: Path, words: str) -> None:
    """The key stands in nothing that was printed or written."""
    found = leaks(directory, {"what was printed": words.encode()}, KEY)
    assert not found, f"the key leaks: {'; '.join(found)}"


def write(directory: Path, urls: list[str], case: Case) -> None:
    """The experiment of a case: a few short discussions."""
    section: JsonObject
    if case.shape == "ollama":
        section = {"backend": "ollama", "ollama_config": {"model": MODEL, "host": urls[0], "max_in_flight": 4}}
    else:
        config: JsonObject = {
            "model": MODEL,
            "base_urls": [*urls],
            "endpoint": case.shape,
            "api_key_env": KEY_VARIABLE,
            "max_in_flight": 4,
            "timeout_s": 0.4 if case.mode.is_slow else LIMIT_S,
        }
        section = {"backend": "openai", "openai_config": config}
    # Ollama has no time limit of its own: a request that never ends is given up at its deadline, and fails.
    deadline_s = 1.5 if case.shape == "ollama" and case.mode.is_slow else LIMIT_S
    retry: JsonObject = {
        "backoff_s": 0.01,
        "backoff_s_max": 0.05,
        # On a busy machine good answers too take longer than a slow server is waited for.
        "max_attempts": 100 if case.mode.is_slow else 8,
        "request_deadline_s": deadline_s,
        "engine_patience_s": 0.5 if case.is_impatient else LIMIT_S,
    }
    talk = discussion(section, conversations=CONVERSATIONS, max_rounds=ROUNDS, seed=5, retry_config=retry)
    written(directory / "talk.yaml", talk)


@cache
def undisturbed(shape: str) -> dict[str, bytes]:
    """The transcripts of a run whose server is well."""
    case = Case(names=("closes before a byte",), schedule=Schedule.NOW_AND_THEN, shape=shape)
    hostility = Hostility(modes=case.modes, schedule=case.schedule, key=KEY, dice=Random(0), is_over=True)
    open_server = ollama_server if shape == "ollama" else openai_server
    with TemporaryDirectory() as name, open_server(hostility) as url:
        write(Path(name), [url], case)
        ended = run(Path(name), "talk.yaml")
        assert ended.code == Exit.OK, ended
        return RunDir(path=Path(name, RUN)).transcripts
