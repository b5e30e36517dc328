"""A small environment in which everything happens: rounds, gates, continuations, corrections, failures.

All chance comes from the task's seed and from the text of the replies, as the contract demands. `breaks` plants one
kind of failure, in about every third conversation.
"""

from __future__ import annotations

import hashlib
from typing import Literal, TypeAlias

from mac_runner.environments import Policy
from mac_runner.errors import ConversationError
from mac_runner.types import (
    Agent,
    JsonObject,
    Lineup,
    Message,
    Prompt,
    Receipt,
    ReceiptKind,
    RecordedReply,
    Reply,
    Sampling,
    Task,
    Turn,
    stable_hash,
)

Break: TypeAlias = Literal["open", "turns", "prompt", "receive", "raise", "stuck", "record", "strange agent"]

Work: TypeAlias = list[tuple[Task, tuple[RecordedReply, ...]]]


def tasks(count: int, *, agents: int = 4, models: int = 2) -> Work:
    """A plan of `count` fresh tasks."""
    return [
        (
            Task(
                index=index,
                task_id=f"toy-{index:03d}",
                seed=stable_hash("toy", index),
                agents=tuple(
                    Agent(
                        agent_id=f"a{seat}",
                        definition="toy",
                        model=f"model-{seat % models}",
                        seat=seat,
                        slot=seat,
                        sampling=Sampling(),
                    )
                    for seat in range(agents)
                ),
            ),
            (),
        )
        for index in range(count)
    ]


class ToyConversation:
    """Each agent acts once per round; what its reply's digest begins with decides what else happens."""

    def __init__(self, task: Task, breaks: Break | None) -> None:
        self.task = task
        self.breaks = breaks if stable_hash(task.seed, "breaks") % 3 == 0 else None
        self.rounds = 2 + task.seed % 3
        self.said: dict[tuple[int, int], list[str]] = {}
        self.asked: dict[int, tuple[int, int]] = {agent.seat: (0, 0) for agent in task.agents}
        self.round = 0

    @property
    def rounds_completed(self) -> int:
        return self.round

    @property
    def outcome(self) -> JsonObject | None:
        return {"kind": "toy", "said": len(self.said)} if self.round == self.rounds and self.breaks != "stuck" else None

    def turns(self) -> tuple[Turn, ...]:
        if self.round == self.rounds:
            return ()
        if self.breaks == "turns" and self.round == 1:
            raise RuntimeError("turns are broken")
        return tuple(self._turn(agent) for agent in self.task.agents if agent.seat in self.asked)

    def prompt(self, turn: Turn) -> Prompt:
        if self.breaks == "prompt" and turn.round == 1 and turn.place == 1:
            raise RuntimeError("the prompt is broken")
        heard = [
            f"{place} {texts}"
            for place, texts in sorted(self.said.items())
            if place[0] < turn.round or f"a{place[1]}" in turn.after or place[1] == turn.place
        ]
        return Prompt(messages=(Message(role="user", content="\n".join([*heard, turn.key])),))

    def receive(self, turn: Turn, reply: Reply) -> Receipt:
        if self.breaks == "receive" and turn.round == 1 and turn.place == 2:
            raise ConversationError(f"nothing can follow turn {turn.key}")
        if self.breaks == "raise" and turn.round == 1 and turn.place in (1, 2):
            raise ZeroDivisionError("a bug of the environment")
        draw = int(hashlib.sha256(reply.text.encode()).hexdigest(), 16) % 10
        self.said.setdefault((turn.round, turn.place), []).append(reply.text)
        if draw == 0 and turn.step < 2:
            self.asked[turn.place] = (turn.step + 1, turn.attempt)
            return Receipt(kind=ReceiptKind.OBSERVATION, detail="look")
        if draw == 1 and turn.attempt < 2:
            self.asked[turn.place] = (turn.step, turn.attempt + 1)
            return Receipt(kind=ReceiptKind.CORRECTION, detail="again")
        del self.asked[turn.place]
        if not self.asked:
            self.round += 1
            self.asked = {agent.seat: (0, 0) for agent in self.task.agents}
        return Receipt(kind=ReceiptKind.ACT, detail=reply.text)

    def record(self) -> JsonObject:
        if self.breaks == "record":
            raise RuntimeError("the record is broken")
        return {"said": {f"{place}": [*texts] for place, texts in sorted(self.said.items())}}

    def fingerprint(self) -> str:
        state = (sorted(self.said.items()), sorted(self.asked.items()), self.round)
        return hashlib.sha256(repr(state).encode()).hexdigest()

    def _turn(self, agent: Agent) -> Turn:
        step, attempt = self.asked[agent.seat]
        # The last two seats wait for others, when the task's seed says so.
        gate = {2: {"a0"}, 3: {"a0", "a2"}}.get(agent.seat, set()) if self.task.seed % 2 else set()
        is_strange = self.breaks == "strange agent" and self.round == 1
        return Turn(
            round=self.round,
            agent="nobody" if is_strange else agent.agent_id,
            model=agent.model,
            place=agent.seat,
            step=step,
            attempt=attempt,
            after=frozenset(gate),
        )


class ToyEnvironment:
    """The environment of toys."""

    def __init__(self, breaks: Break | None = None) -> None:
        self.breaks = breaks

    @property
    def transcript_bytes_min(self) -> int:
        return 0

    @property
    def lineup(self) -> Lineup | None:
        return None

    def open(self, task: Task) -> ToyConversation:
        conversation = ToyConversation(task, self.breaks)
        if conversation.breaks == "open":
            raise RuntimeError("it cannot be opened")
        return conversation

    def policy(self, name: str) -> Policy:
        raise NotImplementedError
