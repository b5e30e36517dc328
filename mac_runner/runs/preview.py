"""The first prompts of a conversation, before anything runs: no engine is started and no directory is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from mac_runner.backends.base import held
from mac_runner.config import decoding_of
from mac_runner.errors import ConfigError, ConversationError, boundary
from mac_runner.problems import suggestion
from mac_runner.runs.setup import Setup
from mac_runner.types import Prompt, Turn


class Preview(NamedTuple):
    """A turn that is open at the start, and what its engine would be sent."""

    turn: Turn
    prompt: Prompt


def first_prompts(setup: Setup, number: int, agent: str | None = None) -> Iterator[Preview]:
    """What each agent that speaks at the start of conversation `number` is sent, or only `agent`.

    The schema or the choices are those that its model is held to. Raises ConfigError for a number or an agent that is
    not there.
    """
    tasks = setup.tasks
    if number not in tasks.indexes:
        asked = f"{len(tasks)} conversations are asked for"
        last = f", the last one is {tasks.indexes[-1]}" if len(tasks) else ""
        raise ConfigError(f"--prompt: there is no conversation {number} (from 0); {asked}{last}")
    place = tasks.indexes.index(number)
    conversation = setup.environment().open(next(tasks[place : place + 1]()))
    turns = conversation.turns()
    waiting = {turn.agent for turn in turns}
    first = [turn for turn in turns if waiting.isdisjoint(turn.after)]
    if agent is not None and agent not in (speakers := [turn.agent for turn in first]):
        why = "speaks later, when others have spoken" if agent in waiting else "does not speak at the start"
        raise ConfigError(f"--agent: {agent!r} {why}{suggestion(agent, speakers)}")
    for turn in first:
        if agent in (None, turn.agent):
            with boundary(ConversationError, "prompt"):
                prompt = conversation.prompt(turn)
            definition = setup.experiment.model_definitions[turn.model]
            yield Preview(turn, held(prompt, decoding_of(definition)))
