"""A transcript as plain text, for people: all of it, or what one agent saw.

Drawn from the `events` of the environment's record, each with when it happened, who learned of it and what it was in
words. With the truth, each event is followed by what became of the claims in it, and each night by how it went.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mac_runner.errors import ConfigError
from mac_runner.printable import printable
from mac_runner.reports.reading import an_object, objects
from mac_runner.reports.truth import claim_line, night_lines
from mac_runner.types import JsonObject, JsonValue

_DETAIL_CHARS_MAX = 100


def tell_transcript(transcript: JsonObject, *, seat: str | None = None, has_truth: bool = False) -> str:
    """The conversation as text; with `seat`, the name of an agent, only what that agent saw.

    With `has_truth` claims are marked true, false or undecidable, and nights told as they were. Raises ConfigError when
    nobody of that name took part or there is no truth to be had, RunDirectoryError for a transcript of another form.
    """
    names = [str(agent["agent_id"]) for agent in objects(an_object(transcript["task"])["agents"])]
    if seat is not None and seat not in names:
        raise ConfigError(f"--seat: nobody called {seat!r} took part; there were: {', '.join(names)}")
    record = an_object(transcript["record"])
    if has_truth and not {"claims", "nights"} <= record.keys():
        raise ConfigError("--truth: only the record of a game tells what was true; leave the flag out")
    truth = _Truth(record) if has_truth else None
    return "\n".join(_lines(transcript, seat, truth)) + "\n"


def tell_turns(transcript: JsonObject, answers: Iterable[JsonObject]) -> str:
    """One line for each turn, in the order of the transcript: when it was answered, how long it took, what came of it.

    `answers` is what the event log tells of the conversation.
    """
    told = {answer["turn"]: answer for answer in answers}
    lines = [_turn_line(turn, told.get(turn["turn"], {})) for turn in objects(transcript["turns"])]
    return "\n".join(printable(line) for line in lines) + "\n"


def _turn_line(turn: JsonObject, answer: JsonObject) -> str:
    latency_ms = answer.get("latency_ms")
    took = f"{latency_ms:,.0f} ms" if isinstance(latency_ms, int | float) else "-"
    receipt = an_object(turn["receipt"])
    detail = str(receipt["detail"])
    if len(detail) > _DETAIL_CHARS_MAX:
        # The answer of a tool can be a page; the transcript has it whole.
        detail = f"{detail[:_DETAIL_CHARS_MAX]}…"
    return f"{answer.get('time', '-'):<24}  {took:>10}  {turn['turn']:<24}  {receipt['kind']}: {detail}"


class _Truth:
    """What the record tells of each event's claims and of each night."""

    def __init__(self, record: JsonObject) -> None:
        self._claims: dict[JsonValue, list[JsonObject]] = {}
        for claim in objects(record["claims"]):
            self._claims.setdefault(claim["event"], []).append(claim)
        self._nights = {night["day"]: night for night in objects(record["nights"])}

    def of_event(self, place: int) -> Iterator[str]:
        """A line for each claim of the event at `place`."""
        for claim in self._claims.get(place, []):
            who = "" if claim["channel"] in ("public", "whisper") else f"{claim['player']} "
            yield printable(f"    ~ {who}{claim_line(claim)}")

    def of_night(self, day: JsonValue) -> Iterator[str]:
        """How the night of `day` went."""
        night = self._nights.pop(day, None)
        if night is not None:
            yield f"\nNight {day}, in truth"
            yield from (printable(f"  {line}") for line in night_lines(night))


def _lines(transcript: JsonObject, seat: str | None, truth: _Truth | None) -> Iterator[str]:
    task_id = an_object(transcript["task"])["task_id"]
    whose = "" if seat is None else f", as {seat} saw it"
    yield printable(f"{task_id} ({transcript['status']}){whose}")
    if transcript["failure"] is not None:
        yield printable(f"failure: {transcript['failure']}")
    yield from _events(objects(an_object(transcript["record"]).get("events", [])), seat, truth)
    if seat is None:
        yield from _result(transcript["outcome"])


def _events(events: list[JsonObject], seat: str | None, truth: _Truth | None) -> Iterator[str]:
    when = None
    for place, event in enumerate(events):
        if truth is not None and isinstance(event["day"], int) and not str(event["when"]).startswith("Night"):
            # By now it is the morning after.
            yield from truth.of_night(event["day"] - 1)
        audience = event["audience"]
        learned = [str(name) for name in audience] if isinstance(audience, list) else None
        if seat is not None and learned is not None and seat not in learned:
            continue
        if event["when"] != when:
            when = event["when"]
            yield f"\n{printable(str(when))}"
        yield printable(f"  {event['text']}{_audience(learned, seat)}")
        if truth is not None:
            yield from truth.of_event(place)


def _audience(learned: list[str] | None, seat: str | None) -> str:
    """Who learned of an event that was not for all. A seat is not told who else did: it could not see that."""
    if learned is None:
        return ""
    if seat is None:
        return f" [only {', '.join(learned)}]"
    return " [only you]" if learned == [seat] else " [you and others]"


def _result(outcome: JsonValue) -> Iterator[str]:
    if not isinstance(outcome, dict) or "players" not in outcome:
        return
    yield "\nWho was what"
    for player in objects(outcome["players"]):
        end = "lived" if player["alive"] else f"died ({player['death']})"
        role = (
            player["role"]
            if player["role"] == player["final_role"]
            else f"{player['role']}, then {player['final_role']}"
        )
        yield printable(f"  {player['agent']:<12} {role:<24} {'won ' if player['won'] else 'lost'}  {end}")
