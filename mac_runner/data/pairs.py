"""Pairs of replies to the same prompt, chosen by what came of them: the forks of a run as preferences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from statistics import fmean
from typing import Any, Final, NamedTuple

from mac_runner.data.prompts import sent_prompts
from mac_runner.data.rollouts import USABLE
from mac_runner.data.samples import MESSAGES, TrainingRun, message, messages_of
from mac_runner.data.tables import Ended
from mac_runner.flat import Cells, FlatColumn
from mac_runner.store import read_run
from mac_runner.store.rows import DoneRow
from mac_runner.types import FinishReason, JsonObject, JsonValue

PAIR_COLUMNS: Final[Mapping[str, FlatColumn]] = {
    "prompt": MESSAGES._replace(meaning="what the engine was sent"),
    "chosen": MESSAGES._replace(meaning="the usable reply of the highest value, as one message"),
    "rejected": MESSAGES._replace(meaning="the reply of the lowest value, as one message"),
    "conversation": FlatColumn("text", "the conversation that the forks leave"),
    "turn": FlatColumn("text", "the turn"),
    "chosen_value": FlatColumn("number", "the mean reward after `chosen`"),
    "rejected_value": FlatColumn("number", "the mean reward after `rejected`"),
    "chosen_draws": FlatColumn("integer", "how many conversations that mean is of"),
    "rejected_draws": FlatColumn("integer", "how many conversations that mean is of"),
}


class _Arm(NamedTuple):
    """A reply to the turn that forks leave, and what the outcomes after it were worth."""

    text: str
    is_usable: bool
    rewards: list[float]

    @property
    def value(self) -> float:
        """The mean over the draws."""
        return fmean(self.rewards)


class Pairs:
    """The pairs of a fork: of each turn that forks leave, the best usable reply and the worst one."""

    def __init__(self, run: TrainingRun) -> None:
        self._run = run

    @cached_property
    def _rows(self) -> dict[tuple[str, str], list[DoneRow]]:
        """By the turn that they leave, what is needed of the index row of each conversation."""
        rows: dict[tuple[str, str], list[DoneRow]] = {}
        # Read again: what writes a part was given the rows of that part alone.
        for row in read_run(self._run.contents.layout.directory).rows_in_task_order():
            kept: JsonObject = {key: row.get(key) for key in ("task_id", "sha256", "size_bytes", "status")}
            rows.setdefault(_point(row), []).append(DoneRow.of(kept))
        return rows

    def rows(self, ended: Ended) -> Iterator[Mapping[str, Cells]]:
        """The pair of a turn, with the first conversation that leaves there."""
        rows = self._rows[_point(ended.row)]
        if rows[0].task_id != ended.done.task_id:
            return
        arms: dict[str, _Arm] = {}
        for row in rows:
            sibling = Ended(row, ended.experiment, self._run.contents.acknowledged, ended.environment)
            if (found := self._reply(sibling)) is not None:
                text, is_usable, reward = found
                arms.setdefault(text, _Arm(text, is_usable, [])).rewards.append(reward)
        ranked = sorted(arms.values(), key=lambda arm: arm.value)
        # What a correction made of an unusable reply does not make it the better one.
        best = next((arm for arm in reversed(ranked) if arm.is_usable), None)
        if best is not None and best.value > ranked[0].value:
            yield self._pair(ended, best, ranked[0])

    def _reply(self, ended: Ended) -> tuple[str, bool, float] | None:
        """The reply of a fork to its turn, and what came of it; None where it may not be compared."""
        transcript: Any = ended.transcript
        fork = transcript["task"]["fork"]
        for rollout, turn in zip(self._run.rollouts(ended, None), transcript["turns"], strict=True):
            is_chosen = not self._run.only or {rollout.model, rollout.definition}.intersection(self._run.only)
            if rollout.turn == fork["turn"] and is_chosen and rollout.reward is not None:
                is_drawn = turn["turn"] not in fork["forced"] and rollout.finish_reason is not FinishReason.OVERFLOW
                return (turn["reply"]["text"], rollout.receipt in USABLE, rollout.reward) if is_drawn else None
        return None

    def _pair(self, ended: Ended, best: _Arm, worst: _Arm) -> Mapping[str, Cells]:
        transcript: Any = ended.transcript
        fork = transcript["task"]["fork"]
        prompts = sent_prompts(transcript, self._run.environment())
        prompt = next(prompt for key, prompt in prompts if key == fork["turn"])
        return {
            "prompt": messages_of(prompt),
            "chosen": [message("assistant", best.text)],
            "rejected": [message("assistant", worst.text)],
            "conversation": fork["of"],
            "turn": fork["turn"],
            "chosen_value": best.value,
            "rejected_value": worst.value,
            "chosen_draws": len(best.rewards),
            "rejected_draws": len(worst.rewards),
        }


def _point(row: Mapping[str, JsonValue]) -> tuple[str, str]:
    return str(row.get("fork_of")), str(row.get("turn"))
