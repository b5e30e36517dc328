"""A transcript as plain text for people: all of it, or what one agent saw.

The text comes from the `events` of the environment's record: when each happened, who learned of it, and what it was in
words. With the truth, lines that the environment derives from its record come between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from mac_runner.errors import ConfigError
from mac_runner.printable import printable
from mac_runner.registry import results_specs
from mac_runner.reports.turns import check_seat, json_object, objects
from mac_runner.results import Truth
from mac_runner.types import JsonObject
from mac_runner.views.conversation import record_events
from mac_runner.views.perspective import seen

_REACHES: Final = {"": "", "you": " [only you]", "others": " [you and others]"}
"""What a seat reads of who else learned of an event: it could not see who did."""


def transcript_text(transcript: JsonObject, *, seat: str | None = None, has_truth: bool = False) -> str:
    """The conversation as text; with `seat`, the name of an agent, only what that agent saw.

    With `has_truth`, also what only the engine knew. Raises ConfigError when no agent has that name or the record holds
    no truth, RunDirectoryError for a transcript of another form.
    """
    check_seat(transcript, seat)
    truth = _truth(json_object(transcript["record"])) if has_truth else None
    return "\n".join(_lines(transcript, seat, truth)) + "\n"


def _truth(record: JsonObject) -> Truth:
    truths = (spec.truth(record) for spec in results_specs().values())
    found = next((truth for truth in truths if truth is not None), None)
    if found is None:
        raise ConfigError("--truth: the record of this conversation does not hold what was true; leave the flag out")
    return found


def _lines(transcript: JsonObject, seat: str | None, truth: Truth | None) -> Iterator[str]:
    task_id = json_object(transcript["task"])["task_id"]
    record = json_object(transcript["record"])
    whose = "" if seat is None else f", as {seat} saw it"
    yield printable(f"{task_id} ({transcript['status']}){whose}")
    if seat is None and transcript["failure"] is not None:
        yield printable(f"failure: {transcript['failure']}")
    if truth is not None:
        yield from _headed(truth.opening())
    yield from _events(record, seat, truth)
    outcome = transcript["outcome"]
    if seat is None and isinstance(outcome, dict) and (spec := results_specs().get(str(outcome.get("kind")))):
        yield from _headed(spec.ending(outcome))
    if truth is not None:
        yield from _headed(truth.closing())


def _events(record: JsonObject, seat: str | None, truth: Truth | None) -> Iterator[str]:
    when = None
    for recorded, whole in zip(objects(record.get("events", [])), record_events(record), strict=True):
        text = whole.text
        if truth is not None:
            yield from _headed(truth.before(recorded))
            text = truth.named(whole.place, text)
        if (event := whole if seat is None else seen(whole, seat)) is None:
            continue
        if event.when != when:
            when = event.when
            yield f"\n{printable(when)}"
        if truth is not None and event.audience is not None:
            yield from _written(f"To {truth.named(event.place, ', '.join(event.audience))}: {text}")
        else:
            only = "" if event.audience is None else f" [only {', '.join(event.audience)}]"
            yield from _written(text, only or _REACHES[event.reach])
        if truth is not None:
            yield from (printable(f"    ~ {line}") for line in truth.after(event.place))


def _written(text: str, audience: str = "") -> Iterator[str]:
    """What happened, and who learned of it; a text of several lines, such as a board, goes on below."""
    first, *rest = text.split("\n")
    yield printable(f"  {first}{audience}")
    yield from (printable(f"      {line}") for line in rest)


def _headed(lines: Iterable[str]) -> Iterator[str]:
    """A heading behind a blank line, and its lines."""
    for place, line in enumerate(lines):
        yield printable(f"  {line}") if place else f"\n{printable(line)}"
