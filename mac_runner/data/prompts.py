"""The opt-in table `prompts`: what engines were sent, rendered again by playing the replies of a transcript."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from mac_runner.data.tables import PROMPT_COLUMNS, PROMPTS_MEANING, Ended, FlatTable, Wanted
from mac_runner.environments.base import Environment
from mac_runner.environments.replay import open_turn, receive
from mac_runner.errors import ConversationError, RunDirectoryError, boundary
from mac_runner.flat import Cells, cell
from mac_runner.store import replies_of, task_of
from mac_runner.types import JsonObject, JsonValue, Prompt

PROMPTS = "prompts"


def prompt_table(environment: Callable[[], Environment]) -> FlatTable:
    """The table of prompts; `environment` sets up what plays the conversations, and is asked for the first one."""

    def rows(ended: Ended, _wanted: Wanted) -> Iterator[Mapping[str, Cells]]:
        return prompt_rows(ended.transcript, environment())

    return FlatTable(PROMPTS, PROMPTS_MEANING, ("conversation", "turn"), PROMPT_COLUMNS, rows, is_optional=True)


def prompt_rows(transcript: JsonObject, environment: Environment) -> Iterator[Mapping[str, Cells]]:
    """The rows of a conversation. Raises what `sent_prompts` raises."""
    task_id = task_of(transcript).task_id
    for key, prompt in sent_prompts(transcript, environment):
        messages: list[JsonValue] = [{"role": one.role, "content": one.content} for one in prompt.messages]
        yield {
            "conversation": task_id,
            "turn": key,
            "messages": cell("json", messages, "messages"),
            "chars": prompt.size_chars,
        }


def sent_prompts(transcript: JsonObject, environment: Environment) -> Iterator[tuple[str, Prompt]]:
    """The key of each turn with its prompt. Raises RunDirectoryError where this version renders another prompt."""
    task = task_of(transcript)
    try:
        conversation = environment.open(task)
        for recorded in replies_of(transcript):
            turn = open_turn(conversation, recorded.turn_key)
            with boundary(ConversationError, f"turn {turn.key}: prompt"):
                prompt = conversation.prompt(turn)
            if prompt.sha256 != recorded.prompt_sha256:
                raise ConversationError(f"the prompt of turn {turn.key} has another digest than the one that was sent")
            yield turn.key, prompt
            receive(conversation, turn, recorded)
    except ConversationError as fault:
        raise RunDirectoryError(
            f"{task.task_id}: this version cannot render the prompts ({fault}); the run is of another version, or the "
            "transcript was changed: use the version that played it, or check it with verify"
        ) from fault
