"""A transcript as plain text for people: all of it, or what one agent saw.

The text comes from the `events` of the environment's record: when each happened, who learned of it, and what it was in
words. With the truth, lines that the environment derives from its record come between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from mac_runner.errors import ConfigError, RunDirectoryError
from mac_runner.printable import printable
from mac_runner.registry import results_specs
from mac_runner.results import Truth
from mac_runner.types import JsonObject, JsonValue

_DETAIL_CHARS_MAX: Final = 100


def transcript_text(transcript: JsonObject, *, seat: str | None = None, has_truth: bool = False) -> str:
    """The conversation as text; with `seat`, the name of an agent, only what that agent saw.

    With `has_truth`, also what only the engine knew. Raises ConfigError when no agent has that name or the record holds
    no truth, RunDirectoryError for a transcript of another form.
    """
    names = [str(agent["agent_id"]) for agent in _objects(_object(transcript["task"])["agents"])]
    if seat is not None and seat not in names:
        raise ConfigError(f"--seat: no agent {seat!r} took part; there were: {', '.join(names)}")
    truth = _truth(_object(transcript["record"])) if has_truth else None
    return "\n".join(_lines(transcript, seat, truth)) + "\n"


def _truth(record: JsonObject) -> Truth:
    truths = (spec.truth(record) for spec in results_specs().values())
    found = next((truth for truth in truths if truth is not None), None)
    if found is None:
        raise ConfigError("--truth: the record of this conversation does not hold what was true; leave the flag out")
    return found


def turns_text(transcript: JsonObject, answers: Iterable[JsonObject]) -> str:
    """One line for each turn, in the order of the transcript: when it was answered, how long it took, the result.

    `answers` are the conversation's records in the event log.
    """
    found = {answer["turn"]: answer for answer in answers}
    lines = [_turn_line(turn, found.get(turn["turn"], {})) for turn in _objects(transcript["turns"])]
    return "\n".join(printable(line) for line in lines) + "\n"


def _turn_line(turn: JsonObject, answer: JsonObject) -> str:
    latency_ms = answer.get("latency_ms")
    took = f"{latency_ms:,.0f} ms" if isinstance(latency_ms, int | float) else "-"
    receipt = _object(turn["receipt"])
    detail = str(receipt["detail"])
    if len(detail) > _DETAIL_CHARS_MAX:
        # The answer of a tool can be a page; the transcript has it whole.
        detail = f"{detail[:_DETAIL_CHARS_MAX]}…"
    return f"{answer.get('time', '-'):<24}  {took:>10}  {turn['turn']:<24}  {receipt['kind']}: {detail}"


def _lines(transcript: JsonObject, seat: str | None, truth: Truth | None) -> Iterator[str]:
    task_id = _object(transcript["task"])["task_id"]
    whose = "" if seat is None else f", as {seat} saw it"
    yield printable(f"{task_id} ({transcript['status']}){whose}")
    if transcript["failure"] is not None:
        yield printable(f"failure: {transcript['failure']}")
    yield from _events(_objects(_object(transcript["record"]).get("events", [])), seat, truth)
    outcome = transcript["outcome"]
    if seat is None and isinstance(outcome, dict) and (spec := results_specs().get(str(outcome.get("kind")))):
        yield from _headed(spec.ending(outcome))


def _events(events: list[JsonObject], seat: str | None, truth: Truth | None) -> Iterator[str]:
    when = None
    for place, event in enumerate(events):
        if truth is not None:
            yield from _headed(truth.before(event))
        audience = event["audience"]
        learned = [str(name) for name in audience] if isinstance(audience, list) else None
        if seat is not None and learned is not None and seat not in learned:
            continue
        if event["when"] != when:
            when = event["when"]
            yield f"\n{printable(str(when))}"
        yield printable(f"  {event['text']}{_audience(learned, seat)}")
        if truth is not None:
            yield from (printable(f"    ~ {line}") for line in truth.after(place))


def _headed(lines: Iterable[str]) -> Iterator[str]:
    """A heading behind a blank line, and its lines."""
    for place, line in enumerate(lines):
        yield printable(f"  {line}") if place else f"\n{printable(line)}"


def _audience(learned: list[str] | None, seat: str | None) -> str:
    """Who learned of an event that was not for all; a seat could not see who else did."""
    if learned is None:
        return ""
    if seat is None:
        return f" [only {', '.join(learned)}]"
    return " [only you]" if learned == [seat] else " [you and others]"


def _object(value: JsonValue) -> JsonObject:
    if not isinstance(value, dict):
        raise RunDirectoryError("the transcript is not one this version wrote")
    return value


def _objects(value: JsonValue) -> list[JsonObject]:
    if not isinstance(value, list):
        raise RunDirectoryError("the transcript is not one this version wrote")
    return [_object(item) for item in value]
