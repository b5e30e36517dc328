"""Work that was done twice, because two processes were let into one run directory: counted, so that it is seen.

Results are published once, so the second process to end a conversation has worked on it for nothing. What it cost is
known to that process alone: the replies that this session recorded for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mac_runner.types import JsonObject, RecordedReply, TokenCount

EVENT_WORK_REPEATED = "EVENT_WORK_REPEATED"


@dataclass(slots=True)
class _Cost:
    replies: int = 0
    tokens: TokenCount = field(default_factory=TokenCount)


class Repetition:
    """What this session recorded of conversations under way, and what of it came to nothing."""

    def __init__(self) -> None:
        self._under_way: dict[str, _Cost] = {}
        self._conversations = 0
        self._total = _Cost()

    def recorded(self, task_id: str, recorded: RecordedReply) -> None:
        """A reply was recorded."""
        cost = self._under_way.setdefault(task_id, _Cost())
        cost.replies += 1
        cost.tokens += recorded.reply.tokens

    def published(self, task_id: str, *, is_first: bool) -> JsonObject | None:
        """A conversation ended; the fields of the event when another process had ended it before."""
        cost = self._under_way.pop(task_id, _Cost())
        if is_first:
            return None
        self._conversations += 1
        self._total.replies += cost.replies
        self._total.tokens += cost.tokens
        return {"task": task_id, "replies": cost.replies, "tokens": _amounts(cost.tokens)}

    def as_json(self) -> JsonObject:
        """The accounts of what was done twice; empty when nothing was."""
        if not self._conversations:
            return {}
        total: JsonObject = {
            "conversations": self._conversations,
            "replies": self._total.replies,
            "tokens": _amounts(self._total.tokens),
        }
        return {"repeated": total}


def _amounts(tokens: TokenCount) -> JsonObject:
    """As accounts have them, which add up over sessions: all of an account depends on time."""
    return {"prompt": tokens.prompt, "cached": tokens.cached, "completion": tokens.completion}
