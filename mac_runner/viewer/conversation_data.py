"""What the pages of one conversation need, for files: its view, those of its seats, and its turns as each of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

from mac_runner.errors import MacRunnerError
from mac_runner.reports.turns import objects
from mac_runner.runs.replays import Replays
from mac_runner.store import Disk, Run
from mac_runner.store.leases import places_of_work
from mac_runner.store.lock import read_owner
from mac_runner.store.machine import Machine
from mac_runner.store.traces import Traces
from mac_runner.types import JsonObject
from mac_runner.view_model import ConversationView
from mac_runner.viewer.outgoing import NO_PROMPTS, Outgoing, Private, addresses_in, hosts_in
from mac_runner.views.conversation import thought_parts, whole_view
from mac_runner.views.inspector import PromptOf, turn_views
from mac_runner.views.perspective import perspective


class ConversationData(NamedTuple):
    """What the pages of a conversation need. Each has the `whole`, and in `seats` what each seat saw."""

    conversation: Mapping[str, object]
    turns: Mapping[str, object]
    clean: Callable[[str], str]
    """What each text of it passes through at the end."""


class ConversationPages:
    """Makes what the pages of the conversations of a run need."""

    def __init__(self, run: Run, outgoing: Outgoing) -> None:
        self._run = run
        self._outgoing = outgoing
        self.missing = Counter[str]()
        """Why prompts or token traces are missing that were not left out on purpose, and in how many conversations."""
        self.refused: list[str] = []
        """The conversations of which nothing is shown, and why."""

    def of(self, transcript: JsonObject) -> ConversationData:
        """The whole conversation, and as each seat saw it."""
        whole = whole_view(transcript)
        prompt_of, missing = self._prompts(transcript)
        traces = self._traces(transcript)
        spoken = _spoken(transcript)
        seats = [perspective(whole, seat) for seat in whole.seats]
        turns, *seen = (
            [*turn_views(transcript, view, prompt_of, prompt_missing=missing, traces=traces)]
            for view in (whole, *seats)
        )
        return ConversationData(
            {
                "whole": self._outgoing.conversation(whole),
                "seats": [*map(self._outgoing.conversation, seats)],
            },
            {
                "whole": [*self._outgoing.turns(turns, spoken)],
                "seats": [[*self._outgoing.turns(each, spoken)] for each in seen],
            },
            self._outgoing.cleaner(spoken),
        )

    def left_out(self, task_id: str, number: int, why: str) -> ConversationData:
        """A conversation of which nothing is shown but why."""
        self.refused.append(f"{task_id}: {why}")
        view = ConversationView(
            task_id=task_id,
            index=number,
            environment=self._run.environment_name,
            status="failed" if self._run.state.endings[task_id].status == "failed" else "finished",
            seats=(),
            members=(),
            phases=(),
            events=(),
            turns=(),
            note=f"left out of this publication: {why}",
        )
        clean = self._outgoing.cleaner(())
        return ConversationData(
            {"whole": self._outgoing.conversation(view), "seats": []}, {"whole": [], "seats": []}, clean
        )

    def of_seat(self, transcript: JsonObject, seat: str) -> ConversationData:
        """The conversation as one seat saw it, and nothing else. Raises ConfigError when no agent has that name."""
        seen = perspective(whole_view(transcript), seat)
        view = self._outgoing.conversation(seen)
        prompt_of, missing = self._prompts(transcript)
        traces = self._traces(transcript)
        turns = [*turn_views(transcript, seen, prompt_of, prompt_missing=missing, traces=traces)]
        spoken = _spoken(transcript)
        gone = [*self._outgoing.turns(turns, spoken)]
        clean = self._outgoing.cleaner(spoken)
        return ConversationData({"whole": view, "seats": [view]}, {"whole": gone, "seats": [gone]}, clean)

    def _prompts(self, transcript: JsonObject) -> tuple[PromptOf | None, str]:
        """The prompts of a conversation, or why there are none."""
        if not self._outgoing.has_prompts:
            return None, NO_PROMPTS
        try:
            return cache(self._replays.prompts(transcript)), ""
        except MacRunnerError as fault:
            self.missing[str(fault)] += 1
            return None, str(fault)

    def _traces(self, transcript: JsonObject) -> Traces:
        """The token traces of a conversation; none where they cannot be read, which is noted."""
        try:
            return self._run.traces(transcript)
        except MacRunnerError as fault:
            self.missing[str(fault)] += 1
            return {}

    @cached_property
    def _replays(self) -> Replays:
        return Replays(self._run)


def _spoken(transcript: JsonObject) -> list[str]:
    """All thoughts of a conversation."""
    return [part for turn in objects(transcript["turns"]) for part in thought_parts(turn)]


def private_of(disk: Disk, directory: Path, runs: Iterable[Run]) -> Private:
    """The addresses, paths and machines of a run or a grid."""
    known = {str(directory.resolve()), str(Path.home()), *((str(directory),) if directory.is_absolute() else ())}
    machines = {Machine().host}
    for run in runs:
        known.update(addresses_in(run.resolved))
        machines.update(hosts_in(run.resolved))
        owners = (read_owner(disk, place) for place in places_of_work(run.layout.directory, disk=disk))
        machines.update(owner.host for owner in owners if owner is not None)
    return Private(tuple(sorted(known)), tuple(sorted(machines - {"localhost"})))
