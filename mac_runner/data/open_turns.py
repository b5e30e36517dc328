"""The replies of conversations that have not ended: what the journal has of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from mac_runner.data.tables import TURN_COLUMNS, thought_of
from mac_runner.flat import Cells, FlatColumn
from mac_runner.results import section
from mac_runner.store import Run
from mac_runner.types import RecordedReply

OPEN_COLUMN: Final = FlatColumn("truth", "whether the conversation has not ended")


def open_rows(contents: Run) -> Iterator[Mapping[str, Cells]]:
    """A row for each reply of an open conversation, in the order of the replies.

    What an environment made of a reply is not in the journal, nor is the model that was asked: those cells are empty.
    """
    group_of = _groups(contents)
    for task_id, recorded in contents.open_replies().items():
        group = group_of(task_id)
        for number, reply in enumerate(recorded):
            yield {**dict.fromkeys(TURN_COLUMNS), **_row(reply), **group, "conversation": task_id, "number": number}


def _groups(contents: Run) -> Callable[[str], dict[str, Cells]]:
    """The deal of a planned conversation and its place among those of the deal; nothing where each is played once."""
    if contents.fork is not None:
        tasks = {task.task_id: task for task in contents.fork.tasks}
        return lambda task_id: (
            {"group": task.group, "sample": task.sample} if (task := tasks.get(task_id)) is not None else {}
        )
    samples = section(contents.resolved, "conversation_config").get("samples_per_task", 1)
    if not isinstance(samples, int) or samples == 1:
        return lambda _task_id: {}
    planned = contents.planned()

    def group_of(task_id: str) -> dict[str, Cells]:
        if (index := planned.get(task_id)) is None:
            return {}
        group, sample = divmod(index, samples)
        return {"group": group, "sample": sample}

    return group_of


def _row(recorded: RecordedReply) -> dict[str, Cells]:
    reply = recorded.reply
    # The name of an agent may hold a slash.
    number, _, rest = recorded.turn_key.partition("/")
    agent, step, attempt = rest.rsplit("/", 2)
    return {
        "turn": recorded.turn_key,
        "round": int(number),
        "agent": agent,
        "step": int(step),
        "attempt": int(attempt),
        "text": reply.text,
        "thought": thought_of(reply.thinking, reply.text),
        "finish_reason": str(reply.finish_reason),
        "prompt_tokens": reply.tokens.prompt,
        "cached_tokens": reply.tokens.cached,
        "completion_tokens": reply.tokens.completion,
        "policy_start": None if reply.policy is None else reply.policy.start,
        "policy_end": None if reply.policy is None else reply.policy.end,
        "queue_s": reply.timing.queue_s,
        "generate_s": reply.timing.generate_s,
        "faults": list(reply.timing.faults),
        "server": reply.timing.server,
        "lane": reply.timing.lane,
        "gpu": reply.timing.gpu,
    }
