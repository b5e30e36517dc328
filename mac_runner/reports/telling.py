"""A transcript as plain text, for people: all of it, or what one agent saw.

Drawn from the `events` of the environment's record, each with when it happened, who learned of it and what it was in
words.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mac_runner.errors import ConfigError, RunDirectoryError
from mac_runner.printable import printable
from mac_runner.types import JsonObject, JsonValue

EVERYBODY = "all"


def tell_transcript(transcript: JsonObject, *, seat: str | None = None) -> str:
    """The conversation as text; with `seat`, the name of an agent, only what that agent saw.

    Raises ConfigError when nobody of that name took part, RunDirectoryError when the transcript tells no events.
    """
    names = [str(agent["agent_id"]) for agent in _objects(_object(transcript["task"])["agents"])]
    if seat is not None and seat not in names:
        raise ConfigError(f"--seat: nobody called {seat!r} took part; there were: {', '.join(names)}")
    return "\n".join(_lines(transcript, seat)) + "\n"


def tell_turns(transcript: JsonObject, answers: Iterable[JsonObject]) -> str:
    """One line for each turn, in the order of the transcript: when it was answered, how long it took, what came of it.

    `answers` is what the event log tells of the conversation.
    """
    told = {answer["turn"]: answer for answer in answers}
    lines = [_turn_line(turn, told.get(turn["turn"], {})) for turn in _objects(transcript["turns"])]
    return "\n".join(printable(line) for line in lines) + "\n"


def _turn_line(turn: JsonObject, answer: JsonObject) -> str:
    latency_ms = answer.get("latency_ms")
    took = f"{latency_ms:,.0f} ms" if isinstance(latency_ms, int | float) else "-"
    receipt = _object(turn["receipt"])
    return f"{answer.get('time', '-'):<24}  {took:>10}  {turn['turn']:<24}  {receipt['kind']}: {receipt['detail']}"


def _lines(transcript: JsonObject, seat: str | None) -> Iterator[str]:
    task_id = _object(transcript["task"])["task_id"]
    whose = "" if seat is None else f", as {seat} saw it"
    yield printable(f"{task_id} ({transcript['status']}){whose}")
    if transcript["failure"] is not None:
        yield printable(f"failure: {transcript['failure']}")
    when = None
    for event in _objects(_object(transcript["record"]).get("events", [])):
        audience = event["audience"]
        learned = [str(name) for name in audience] if isinstance(audience, list) else None
        if seat is not None and learned is not None and seat not in learned:
            continue
        if event["when"] != when:
            when = event["when"]
            yield f"\n{printable(str(when))}"
        only = "" if learned is None else f" [{'only you' if learned == [seat] else 'only ' + ', '.join(learned)}]"
        yield printable(f"  {event['text']}{only}")
    if seat is None:
        yield from _result(transcript["outcome"])


def _result(outcome: JsonValue) -> Iterator[str]:
    if not isinstance(outcome, dict) or "players" not in outcome:
        return
    yield "\nWho was what"
    for player in _objects(outcome["players"]):
        end = "lived" if player["alive"] else f"died of {player['death']}"
        role = (
            player["role"]
            if player["role"] == player["final_role"]
            else f"{player['role']}, then {player['final_role']}"
        )
        yield printable(f"  {player['agent']:<12} {role:<24} {'won ' if player['won'] else 'lost'}  {end}")


def _object(value: JsonValue) -> JsonObject:
    if not isinstance(value, dict):
        raise RunDirectoryError("the transcript is not one this version wrote")
    return value


def _objects(value: JsonValue) -> list[JsonObject]:
    if not isinstance(value, list):
        raise RunDirectoryError("the transcript is not one this version wrote")
    return [_object(item) for item in value]
