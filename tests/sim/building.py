"""What backends are built from, where a test has settings and no experiment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from mac_runner.backends import BackendRequest
from mac_runner.backends.testing import ModelLanes
from mac_runner.clock import Clock
from mac_runner.section import Settings
from mac_runner.spec import AgentDefinition

S = TypeVar("S", bound=Settings)


def request_for(
    settings: S,
    clock: Clock,
    *,
    backend: str = "",
    record_tokens: bool = False,
    agents: Sequence[AgentDefinition] = (),
    can_pull: bool = False,
    lanes: ModelLanes | None = None,
    say: Callable[[str], None] = lambda _line: None,
) -> BackendRequest[S]:
    """Of model `m`, whose replies are held to the schema that a prompt brings."""
    return BackendRequest(
        name="m",
        backend=backend,
        settings=settings,
        record_tokens=record_tokens,
        decoding="schema",
        agents=agents,
        policy_of=lambda name: lambda _view, _chance: name,
        clock=clock,
        say=say,
        can_pull=can_pull,
        lanes=lanes,
    )
