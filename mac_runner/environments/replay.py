"""Rebuild a conversation from its recorded replies: the one way resume, verify and every viewer share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mac_runner.environments.base import Conversation
from mac_runner.errors import ConversationError, boundary
from mac_runner.types import RecordedReply, TurnRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What a replay yields: the records in the order they were applied, and whether every prompt was the same."""

    records: tuple[TurnRecord, ...]
    changed_prompts: tuple[str, ...]


def replay(
    conversation: Conversation, replies: Iterable[RecordedReply], *, check_prompts: bool = False
) -> Replayed:
    """Feed `replies` to a freshly opened `conversation`, in any order its turns allow.

    With `check_prompts` every prompt is rendered again and the keys of those whose digest differs are returned.
    Raises ConversationError when a reply answers a turn that is not open: then the code or the task is not what
    the replies were recorded with.
    """
    records: list[TurnRecord] = []
    changed: list[str] = []
    for recorded in replies:
        turn = next((turn for turn in conversation.turns() if turn.key == recorded.turn_key), None)
        if turn is None:
            raise ConversationError(f"the recorded reply to turn {recorded.turn_key} answers no open turn")
        if check_prompts and conversation.prompt(turn).sha256 != recorded.prompt_sha256:
            changed.append(turn.key)
        with boundary(ConversationError, f"turn {turn.key}"):
            receipt = conversation.receive(turn, recorded.reply)
        records.append(
            TurnRecord(turn=turn, prompt_sha256=recorded.prompt_sha256, reply=recorded.reply, receipt=receipt)
        )
    return Replayed(records=tuple(records), changed_prompts=tuple(changed))
