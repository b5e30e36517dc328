"""The token traces of a conversation as its journal has them.

A prompt refers to an earlier reply of its conversation: `like` is that reply's number, `shared` says how many ids are
the same, and `prompt_ids` are those that follow. Ids are base64 of little-endian int32, log-probabilities of float32.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable

from mac_runner.store.records import entry, objects
from mac_runner.tokens import ID_BYTES, TokenTrace, shared_ids
from mac_runner.types import JsonObject, RecordedReply


class TraceLog:
    """The traces of one conversation so far, each kept as what it adds to an earlier one."""

    def __init__(self, replies: Iterable[RecordedReply] = ()) -> None:
        """`replies` are those that the journal has already."""
        self._traces: dict[int, TokenTrace] = {}
        self._turns: dict[str, int] = {}
        self._latest: dict[str, int] = {}
        self._prompts: dict[str, bytes] = {}
        for n, recorded in enumerate(replies):
            if recorded.reply.trace is not None:
                self._note(n, recorded.turn_key, recorded.reply.trace)

    def _note(self, n: int, turn_key: str, trace: TokenTrace) -> str:
        self._traces[n] = trace
        self._turns[turn_key] = n
        # The name of an agent may hold a slash.
        agent = turn_key.partition("/")[2].rsplit("/", 2)[0]
        self._latest[agent] = n
        return agent

    def add(self, n: int, recorded: RecordedReply) -> JsonObject | None:
        """The trace of the `n`-th reply as its frame has it; None for a reply without one."""
        trace = recorded.reply.trace
        if trace is None:
            return None
        prompt = trace.prompt
        like, shared = None, 0
        for agent, number in self._latest.items():
            if agent not in self._prompts:
                self._prompts[agent] = self._traces[number].prompt
            if (common := shared_ids(self._prompts[agent], prompt)) > shared:
                like, shared = number, common
        kept = TokenTrace.packed(
            prompt[ID_BYTES * shared :],
            trace.completion,
            trace.likelihoods,
            earlier=None if like is None else self._traces[like],
            shared=shared,
        )
        self._prompts[self._note(n, recorded.turn_key, kept)] = prompt
        reference: JsonObject = {} if like is None else {"like": like, "shared": shared}
        return {
            **reference,
            "prompt_ids": b64encode(kept.rest).decode("ascii"),
            "completion_ids": b64encode(kept.completion).decode("ascii"),
            "logprobs": b64encode(kept.likelihoods).decode("ascii"),
        }

    def of(self, transcript: JsonObject) -> dict[str, TokenTrace]:
        """The traces of the turns that a transcript has."""
        keys = (entry(turn, "turn", str) for turn in objects(transcript, "turns"))
        return {key: self._traces[self._turns[key]] for key in keys if key in self._turns}
