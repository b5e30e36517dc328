"""Rebuild a conversation from its recorded replies: the one way resume, verify and every viewer share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from msgspec import structs

from mac_runner.environments.base import Conversation
from mac_runner.errors import ConversationError, boundary
from mac_runner.types import Receipt, ReceiptKind, RecordedReply, Turn, TurnRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """The records in the order they were applied, and the keys of turns whose prompt came out different."""

    records: tuple[TurnRecord, ...]
    changed_prompts: tuple[str, ...]


def receive(conversation: Conversation, turn: Turn, recorded: RecordedReply) -> TurnRecord:
    """Apply one reply; a reply the conversation cannot go on from is recorded as a FAILURE, whatever it raised.

    Whether the conversation failed is then in the receipt of the record, so a live run and a replay cannot differ.
    """
    try:
        with boundary(ConversationError, f"turn {turn.key}"):
            receipt = conversation.receive(turn, recorded.reply)
    except ConversationError as failure:
        receipt = Receipt(kind=ReceiptKind.FAILURE, detail=str(failure))
    answered = turn if recorded.model in (None, turn.model) else structs.replace(turn, model=recorded.model)
    return TurnRecord(turn=answered, prompt_sha256=recorded.prompt_sha256, reply=recorded.reply, receipt=receipt)


def replay(conversation: Conversation, replies: Iterable[RecordedReply], *, check_prompts: bool = False) -> Replayed:
    """Feed `replies` to a freshly opened `conversation`, in any order its turns allow; stop at a FAILURE.

    With `check_prompts` every prompt is rendered again: its record carries the digest it has now, not the recorded
    one, and the keys of the turns where the two differ are returned.
    Raises ConversationError when a reply answers a turn that is not open: then the code or the task is not what
    the replies were recorded with.
    """
    records: list[TurnRecord] = []
    changed: list[str] = []
    for recorded in replies:
        turn = open_turn(conversation, recorded.turn_key)
        digest = _rendered(conversation, turn) if check_prompts else recorded.prompt_sha256
        if digest != recorded.prompt_sha256:
            changed.append(turn.key)
        records.append(receive(conversation, turn, structs.replace(recorded, prompt_sha256=digest)))
        if records[-1].receipt.kind is ReceiptKind.FAILURE:
            break
    return Replayed(records=tuple(records), changed_prompts=tuple(changed))


def play_until(conversation: Conversation, replies: Iterable[RecordedReply], turn_key: str) -> Turn:
    """Feed `replies` to a freshly opened `conversation` until the turn `turn_key` is next, and return that turn.

    The conversation is then as it was when the turn departed in a replay of this order: it renders the turn's prompt,
    and a fork may answer otherwise. The turn may also be one that no reply answers yet. Raises ConversationError when
    it is not open then, or as `replay` does.
    """
    for recorded in replies:
        if recorded.turn_key == turn_key:
            break
        receive(conversation, open_turn(conversation, recorded.turn_key), recorded)
    return _open_turn(conversation, turn_key, f"the turn {turn_key} is not open where it was recorded")


def open_turn(conversation: Conversation, turn_key: str) -> Turn:
    """The open turn that a recorded reply answers. Raises ConversationError when it is not open."""
    return _open_turn(conversation, turn_key, f"the recorded reply to turn {turn_key} answers no open turn")


def _open_turn(conversation: Conversation, key: str, otherwise: str) -> Turn:
    """The open turn with this key. Raises ConversationError with the text `otherwise` when it is not open."""
    with boundary(ConversationError, "turns"):
        turn = next((turn for turn in conversation.turns() if turn.key == key), None)
    if turn is None:
        raise ConversationError(otherwise)
    return turn


def _rendered(conversation: Conversation, turn: Turn) -> str:
    with boundary(ConversationError, f"turn {turn.key}: prompt"):
        return conversation.prompt(turn).sha256
