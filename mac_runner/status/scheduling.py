"""A reading off a running scheduler: the one place where the status room knows it."""

from __future__ import annotations

from mac_runner.limits import STATUS_ROWS_MAX
from mac_runner.scheduler import Progress, WaitingTurn
from mac_runner.status.frame import ModelSlots, Reading, TurnRow


def read_progress(progress: Progress, *, experiment_name: str, profile: str) -> Reading:
    """The run as it stands now. Costs the rows that are shown, however much there is to do."""
    pools = progress.snapshot(STATUS_ROWS_MAX)
    return Reading(
        experiment_name=experiment_name,
        profile=profile,
        elapsed_s=progress.elapsed_s,
        planned=progress.planned,
        finished=progress.finished,
        failed=progress.failed,
        written=progress.written,
        resumed_with=progress.resumed_with,
        open=progress.open,
        models=tuple(
            ModelSlots(
                name=counts.model,
                in_flight=counts.in_flight,
                slots=counts.slots,
                utilisation=progress.utilisation(counts.model),
            )
            for counts in pools.models
        ),
        ready=pools.ready,
        blocked=pools.blocked,
        backing_off=pools.backing_off,
        ready_rows=tuple(row(progress.task_id(waiting.conversation), waiting) for waiting in pools.ready_rows),
        pending_rows=tuple(row(progress.task_id(waiting.conversation), waiting) for waiting in pools.pending_rows),
        turns=progress.turns,
        turns_ended=progress.turns_ended,
        tokens=progress.tokens,
        silent_models=progress.silent_models,
    )


def row(task_id: str, waiting: WaitingTurn) -> TurnRow:
    """One waiting turn in the words of the view."""
    turn = waiting.turn
    return TurnRow(task_id=task_id, round=turn.round, agent=turn.agent, model=turn.model, note=_note(waiting))


def _note(waiting: WaitingTurn) -> str:
    if waiting.is_backing_off:
        return f"retry {waiting.sendings}"
    if waiting.waits_for:
        return f"after {', '.join(waiting.waits_for)}"
    if waiting.turn.attempt:
        return f"correction {waiting.turn.attempt}"
    return "goes on" if waiting.turn.step else ""
