"""The turns of a transcript as text: their list, what one was sent, what came back, and what was thought.

On a terminal every text is made printable, line by line. Elsewhere a prompt and a reply are what they were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Final, Protocol

from mac_runner.errors import ConfigError, RunDirectoryError
from mac_runner.printable import printable
from mac_runner.registry import results_of
from mac_runner.types import JsonObject, JsonValue, Prompt

ALL: Final = "all"
"""In place of a turn: every turn."""
_DETAIL_CHARS_MAX: Final = 100
_NAMED_MAX: Final = 6


class Parted(Protocol):
    """A reply without its thoughts, and the thoughts."""

    @property
    def thought(self) -> str:
        """What others never see."""
        ...

    @property
    def said(self) -> str:
        """The rest."""
        ...


def find_turn(transcript: JsonObject, wanted: str, flag: str, *, seat: str | None = None) -> JsonObject:
    """The turn called `wanted`: a whole key (`12/Abel/0/0`), or the beginning of a single one (`12/Abel`).

    With `seat` among the turns of that agent, where its round is enough (`12`). Raises ConfigError naming the turns
    that it may mean.
    """
    turns = {str(turn["turn"]): turn for turn in turns_of(transcript, seat)}
    if wanted in turns:
        return turns[wanted]
    whose = "" if seat is None else f" of {seat}"
    beginning = f"{wanted.rstrip('/')}/"
    meant = [key for key in turns if key.startswith(beginning)]
    if len(meant) == 1:
        return turns[meant[0]]
    if meant:
        raise ConfigError(f"{flag}: {wanted!r} is the beginning of several turns{whose}: {_some(meant)}; name one")
    if not turns:
        raise ConfigError(f"{flag}: the conversation has no turn{whose}")
    near = [key for key in turns if key.startswith(beginning.split("/", 1)[0] + "/")]
    near = get_close_matches(wanted, turns, n=_NAMED_MAX, cutoff=0.5) or near or [min(turns, key=len), [*turns][-1]]
    raise ConfigError(f"{flag}: there is no turn {wanted!r}{whose}; near it: {_some(near)} (--turns lists them all)")


def turns_of(transcript: JsonObject, seat: str | None = None) -> list[JsonObject]:
    """The turns of a transcript, or those of one agent. Raises ConfigError when no agent has that name."""
    check_seat(transcript, seat)
    return [turn for turn in objects(transcript["turns"]) if seat is None or turn["agent"] == seat]


def check_seat(transcript: JsonObject, seat: str | None) -> None:
    """Raises ConfigError when there is no agent of that name."""
    if seat is not None:
        check_name([str(agent["agent_id"]) for agent in objects(json_object(transcript["task"])["agents"])], seat)


def check_name(names: Sequence[str], seat: str) -> None:
    """Raises ConfigError when there is no agent of that name among those that took part."""
    if seat not in names:
        raise ConfigError(f"--seat: no agent {seat!r} took part; there were: {', '.join(names)}")


def _some(keys: list[str]) -> str:
    return ", ".join(map(printable, keys[:_NAMED_MAX])) + (", …" if len(keys) > _NAMED_MAX else "")


def turns_text(transcript: JsonObject, answers: Iterable[JsonObject]) -> str:
    """One line for each turn, in the order of the transcript: when it was answered, how long it took, the result.

    `answers` are the conversation's records in the event log.
    """
    found = {answer["turn"]: answer for answer in answers}
    lines = [_turn_line(turn, found.get(turn["turn"], {})) for turn in objects(transcript["turns"])]
    return "\n".join(printable(line) for line in lines) + "\n"


def _turn_line(turn: JsonObject, answer: JsonObject) -> str:
    latency_ms = answer.get("latency_ms")
    took = f"{latency_ms:,.0f} ms" if isinstance(latency_ms, int | float) else "-"
    return f"{answer.get('time', '-'):<24}  {took:>10}  {turn['turn']:<24}  {_receipt(turn)}"


def _receipt(turn: JsonObject) -> str:
    receipt = json_object(turn["receipt"])
    detail = str(receipt["detail"])
    if len(detail) > _DETAIL_CHARS_MAX:
        # The answer of a tool can be a page; the transcript has it whole.
        detail = f"{detail[:_DETAIL_CHARS_MAX]}…"
    return f"{receipt['kind']}: {detail}"


def prompt_text(prompt: Prompt) -> str:
    """Each message of a prompt under its role, as it was sent."""
    return messages_text((message.role, message.content) for message in prompt.messages)


def messages_text(messages: Iterable[tuple[str, str]]) -> str:
    """Messages as `prompt_text` writes them: the role and the content of each."""
    return "".join(f"=== {role}\n{content}\n" for role, content in messages)


def reply_text(turn: JsonObject) -> str:
    """What came back for a turn, as it came."""
    return str(json_object(turn["reply"])["text"])


def replies_text(turns: Iterable[JsonObject]) -> Iterator[str]:
    """What came back for each turn, under its key; thoughts that an engine gave apart come first."""
    for turn in turns:
        reply = json_object(turn["reply"])
        ending = reply["finish_reason"]
        if isinstance(apart := reply.get("thinking"), str):
            yield f"=== {turn['turn']}, thinking given apart\n{apart}\n"
        yield f"=== {turn['turn']} ({ending})\n{reply['text']}\n"


def thoughts_text(
    transcript: JsonObject, parted: Callable[[JsonObject], Parted], *, seat: str | None = None
) -> Iterator[str]:
    """The turns in order, each with what was thought, what was said, and what the conversation made of it."""
    turns = turns_of(transcript, seat)
    task_id = json_object(transcript["task"])["task_id"]
    yield printable(f"{task_id} ({transcript['status']}), thoughts{'' if seat is None else f' of {seat}'}") + "\n"
    moments, when = _moments(transcript), ""
    for turn in turns:
        now = moments.get(_round(turn), f"Round {turn['round']}")
        if now != when:
            when = now
            yield f"\n{printable(when)}\n"
        parts = parted(turn)
        yield f"  {printable(str(turn['turn']))}\n"
        for head, text in (("thinks", parts.thought), ("says", parts.said), ("result", _receipt(turn))):
            yield from _indented(head, text)


def _round(turn: JsonObject) -> int:
    number = turn["round"]
    return number if isinstance(number, int) else -1


def _moments(transcript: JsonObject) -> Mapping[int, str]:
    results = results_of(str(transcript.get("environment")))
    return {} if results is None else results.moments(json_object(transcript["record"]))


def _indented(head: str, text: str) -> Iterator[str]:
    """A text of any number of lines behind its head."""
    for place, line in enumerate(text.split("\n") if text else ()):
        yield f"    {head if place == 0 else '':<8}{printable(line)}".rstrip() + "\n"


def printable_lines(text: str) -> str:
    """A text of several lines for a terminal: line ends stay, all else that is not visible is escaped."""
    return "\n".join(map(printable, text.split("\n")))


_ODD: Final = "is not what a run writes; mac-run verify says which files are damaged"


class _OddFormError(RunDirectoryError):
    """A part of a transcript has another form; `readable` says of which transcript."""


@contextmanager
def readable(task_id: str) -> Iterator[None]:
    """Raises RunDirectoryError where a transcript has another form inside. It quotes nothing: a seat may read it."""
    try:
        yield
    except (
        _OddFormError,
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        ArithmeticError,
        RecursionError,
    ) as fault:
        raise RunDirectoryError(f"the transcript of {task_id} {_ODD}") from fault
    except RunDirectoryError as fault:
        raise RunDirectoryError(f"the transcript of {task_id}: {fault}") from fault


def json_object(value: JsonValue) -> JsonObject:
    """A part of a transcript. Raises RunDirectoryError for another form."""
    if not isinstance(value, dict):
        raise _OddFormError(f"the transcript {_ODD}")
    return value


def objects(value: JsonValue) -> list[JsonObject]:
    """A list in a transcript. Raises RunDirectoryError for another form."""
    if not isinstance(value, list):
        raise _OddFormError(f"the transcript {_ODD}")
    return [json_object(item) for item in value]
