"""The status of a run or a grid, as JSON for programs and on one screen for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Final

from mac_runner.bottleneck import bottleneck, time_left_s, usage_of
from mac_runner.printable import counted, printable
from mac_runner.reports.ending import limit_reached
from mac_runner.reports.failures import FailureCounter, by_model, warnings
from mac_runner.reports.grid import ROWS_SHOWN_MAX
from mac_runner.reports.summary import is_silent, turns_answered
from mac_runner.reports.tables import NOT_COUNTED, names_text
from mac_runner.results import number, objects, section
from mac_runner.store import SessionStanding, ShardsStanding, Standing, Worker
from mac_runner.store.lock import Holder
from mac_runner.store.rows import parse_row
from mac_runner.store.run import damaged_words, lost_words
from mac_runner.store.standing import LaneRecord
from mac_runner.types import JsonObject, JsonValue

MODELS_MAX: Final = 6
"""How many models are shown."""
FAILURES_MAX: Final = 5
"""How many reasons of failure are shown."""
LANES_MAX: Final = 8
"""How many lanes are shown."""
WORKERS_MAX: Final = 16
"""How many workers are shown."""
_LIVES: Final = ("deaths", "restarts")
_IN_ORDER: Final = ("up", "asleep")
_UNKNOWN: Final = "unknown"
_LABEL_CHARS: Final = 15


def status_json(standing: Standing, now: datetime) -> JsonObject:
    """All that is known of a run or a grid; `now` is the reader's wall time, for ages."""
    failures = FailureCounter()
    for row in standing.failures:
        failures.add(parse_row(row))
    latest = standing.latest
    shards = {} if standing.shards is None else _shards_json(standing.shards, now)
    pace = number(shards.get("turns_per_s"))
    is_stopped = _state(standing) == "stopped"
    stopped_by = limit_reached(standing.bounds, standing.usage) if is_stopped else None
    status: JsonObject = {
        "experiment_name": standing.experiment_name,
        "directory": str(standing.directory),
        "shard": None if standing.shard is None else str(standing.shard),
        "state": _state(standing),
        **({"stopped_by": stopped_by} if stopped_by is not None else {}),
        "owner": _owner_json(standing.holder, now),
        "conversations": {
            "planned": standing.planned,
            "finished": standing.finished,
            "failed": standing.failed,
            "half_done": standing.half_done,
            "not_begun": standing.planned - standing.ended - standing.half_done,
        },
        **({"shards": shards} if shards else {}),
        "session": None if latest is None or pace else _session(latest),
        "limit": _limit(standing, latest),
        "eta_s": _left_s(standing, pace),
        "sessions": standing.sessions,
        "wall_s": standing.usage.get("wall_s"),
        "played_s": standing.usage.get("played_s"),
        "models": standing.usage.get("models", {}),
        **({"policies": standing.policies} if standing.policies else {}),
        "failures": failures.report(),
        "warning": _warning(standing),
    }
    return status if standing.combinations is None else _grid_json(status, standing)


def _warning(standing: Standing) -> str | None:
    """What is to be said of a journal that lost endings or is damaged, and of replies that could not be used."""
    unusable = by_model(section(standing.counts, "unusable"), standing.speakers)
    lost = [lost_words(standing.directory, standing.lost)] if standing.lost else []
    damaged = [damaged_words(standing.damaged_lines)] if standing.damaged_lines else []
    return "; ".join([*lost, *damaged, *warnings({**standing.counts, "unusable_by_model": unusable})]) or None


def _state(standing: Standing) -> str:
    if standing.holder.may_work:
        return "running" if standing.holder.is_alive else "perhaps running"
    if standing.ended != standing.planned or standing.not_begun:
        return "stopped"
    return "complete" if standing.finished or not standing.ended else "failed"


def _owner_json(holder: Holder, now: datetime) -> JsonObject | None:
    owner = holder.owner
    if owner is None:
        return None
    return {
        "pid": owner.pid,
        "host": owner.host,
        "since": owner.started_at,
        "command": owner.command,
        "is_alive": holder.is_alive,
        "last_sign_of_life": holder.last_sign_of_life,
        "last_sign_of_life_age_s": _age_s(holder.last_sign_of_life, now),
    }


def _session(session: SessionStanding) -> JsonObject:
    played_s, turns = number(session.usage.get("played_s")), _turns(session)
    return {
        "number": session.number,
        "started_at": session.started_at,
        "wall_s": number(session.usage.get("wall_s")),
        "played_s": played_s,
        "conversations": session.ended,
        "turns": turns,
        "conversations_per_s": _ratio(session.ended, played_s),
        "turns_per_s": _ratio(turns, played_s),
    }


def _limit(standing: Standing, latest: SessionStanding | None) -> str | None:
    """What limited the latest session, on its average; None for a run that is complete."""
    used = None if latest is None else usage_of(latest.usage)
    if used is None or standing.ended == standing.planned:
        return None
    return bottleneck(used, is_all_open=standing.planned == standing.ended + standing.half_done)


def _left_s(standing: Standing, pace: float | None) -> float | None:
    """How long the rest takes at the pace of all workers at work, or else at that of the latest session."""
    latest = standing.latest
    if pace is not None:
        ended, turns_ended = standing.ended, round(number(standing.counts.get("turns")) or 0)
        turns = turns_answered(standing.usage.get("models")) or 0
    elif latest is None or standing.holder.is_alive is False:
        return None
    else:
        ended, turns_ended, turns = latest.ended, latest.turns_ended, _turns(latest)
        pace = _ratio(turns, number(latest.usage.get("played_s")))
    left = standing.planned - standing.ended
    found = time_left_s(left, ended=ended, turns_ended=turns_ended, turns=turns, turns_per_s=pace)
    return None if found is None else round(found, 1)


def status_text(status: JsonObject) -> str:
    """What `status_json` says, on one screen."""
    if is_grid := "combinations" in status:
        eta_s = 0.0 if status["state"] in ("complete", "failed") else None
        status = {"session": None, "eta_s": eta_s, **status}
    lines = [f"{label:<{_LABEL_CHARS}} {printable(text)}".rstrip() for label, text in _lines(status)]
    return "\n".join([*lines, *(_combinations(status) if is_grid else ())]) + "\n"


def _lines(status: JsonObject) -> Iterator[tuple[str, str]]:
    shard = "" if status["shard"] is None else f", shard {status['shard']}"
    yield "experiment", f"{status['experiment_name']}{shard}: {status['state']}"
    if stopped_by := status.get("stopped_by"):
        yield "stopped by", f"{stopped_by}; raise the limit and run the same command to go on"
    is_over = status["state"] in ("complete", "failed")
    workers = objects(section(status, "shards").get("workers"))
    places = {(owner["host"], owner["pid"]) for worker in workers if (owner := section(worker, "owner"))}
    owner = section(status, "owner")
    # After the end it does not matter who was killed on the way. Workers are listed with their shards.
    if owner and not (is_over and owner["is_alive"] is False) and (owner["host"], owner["pid"]) not in places:
        yield "at work", _who(owner)
        yield "", str(owner["command"])
    yield "conversations", _counts(section(status, "conversations"))
    if shards := section(status, "shards"):
        yield from _shards(shards, workers)
    # The one that ended a run of workers played nothing.
    if (session := section(status, "session")) and not (is_over and session["played_s"] is None):
        yield "last session", _pace(session)
    if limit := status.get("limit"):
        yield "limit", f"{limit}, on the average of the last session"
    yield "to go", duration_text(status["eta_s"])
    yield (
        "sessions",
        f"{status['sessions']}, {duration_text(status['wall_s'])} in all, "
        f"{duration_text(status['played_s'])} of it played",
    )
    models = section(status, "models")
    for name in list(models)[:MODELS_MAX]:
        yield "model", f"{name}: {_usage(section(models, name))}"
    if (hidden := len(models) - MODELS_MAX) > 0:
        yield "", f"and {hidden} more models"
    yield from _policies(section(status, "policies"))
    yield from _lanes(status.get("lanes"))
    if status["warning"]:
        yield "warning", str(status["warning"])
    yield from _failures(status["failures"])


def _policies(policies: JsonObject) -> Iterator[tuple[str, str]]:
    """The versions of the weights that a trainer changes."""
    for name in list(policies)[:MODELS_MAX]:
        policy = section(policies, name)
        lag = section(policy, "lag")
        old = (
            ""
            if lag["max"] is None
            else f"; conversations ended {lag['mean']} versions later on average, at most {lag['max']}"
        )
        yield "policy", f"{name}: version {policy['version']}, {policy['updates']} updates{old}"


def _who(owner: JsonObject) -> str:
    lives = {True: "", False: ", which is not there any more", None: ", which cannot be seen from here"}
    age = owner["last_sign_of_life_age_s"]
    sign = _UNKNOWN if age is None else f"{duration_text(age)} ago"
    alive = owner["is_alive"]
    gone = lives[alive if isinstance(alive, bool) else None]
    return f"pid {owner['pid']} on {owner['host']} since {owner['since']}{gone}; last sign of life {sign}"


def _counts(counts: JsonObject) -> str:
    return (
        f"{_integer(counts['finished'])} finished, {_integer(counts['failed'])} failed, "
        f"{_integer(counts['half_done'])} half done, {_integer(counts['not_begun'])} not begun, "
        f"of {_integer(counts['planned'])}"
    )


def _pace(session: JsonObject) -> str:
    if session["played_s"] is None:
        return f"{_integer(session['conversations'])} conversations; its time and turns were not noted yet"
    return (
        f"{_integer(session['conversations'])} conversations and {_integer(session['turns'])} turns in "
        f"{duration_text(session['played_s'])} played: {_rate(session['conversations_per_s'])} conversations/s, "
        f"{_rate(session['turns_per_s'])} turns/s"
    )


def _usage(model: JsonObject) -> str:
    tokens = section(model, "tokens")
    answered = f"{_integer(model.get('requests'))} requests, {_integer(model.get('faults'))} faults; tokens: "
    if is_silent(model):
        return answered + NOT_COUNTED
    return answered + (
        f"{_integer(tokens.get('prompt'))} prompt, {_integer(tokens.get('cached'))} cached, "
        f"{_integer(tokens.get('completion'))} completion"
    )


def _failures(failures: JsonValue) -> Iterator[tuple[str, str]]:
    found = objects(failures)
    for failure in found[:FAILURES_MAX]:
        yield "failed", f"{failure['count']} × {failure['reason']} ({names_text(failure['task_ids'])})"
    if (hidden := len(found) - FAILURES_MAX) > 0:
        yield "", f"and {hidden} more reasons"


def _shards_json(standing: ShardsStanding, now: datetime) -> JsonObject:
    workers: list[JsonValue] = [_worker_json(worker, now) for worker in standing.workers]
    at_work = [worker.usage for worker in standing.workers if worker.holder.may_work and worker.holds]
    paces = (_ratio(turns_answered(each.get("models")) or 0, number(each.get("played_s"))) or 0.0 for each in at_work)
    return {
        "of": standing.of,
        "complete": standing.complete,
        "held": standing.held,
        "half_done": standing.half_done,
        "not_begun": standing.not_begun,
        "turns_per_s": round(sum(paces), 4) or None,
        "workers": workers,
    }


def _worker_json(worker: Worker, now: datetime) -> JsonObject:
    states = {True: "at work", None: "perhaps at work", False: "gone without an end"}
    return {
        "name": worker.name,
        "state": "ended" if worker.holder.owner is None else states[worker.holder.is_alive],
        "owner": _owner_json(worker.holder, now),
        "holds": [str(path) for path in worker.holds],
        "played_s": worker.usage.get("played_s"),
        "turns": turns_answered(worker.usage.get("models")),
    }


def _shards(shards: JsonObject, workers: Sequence[JsonObject]) -> Iterator[tuple[str, str]]:
    """How far the shards are, who holds which, and the workers that wait for one."""
    yield (
        "shards",
        (
            f"{shards['complete']} complete, {shards['held']} claimed, {shards['half_done']} half done and free, "
            f"{shards['not_begun']} not begun, of {shards['of']}"
        ),
    )
    if states := Counter(str(worker["state"]) for worker in workers):
        yield "workers", ", ".join(f"{n} {state}" for state, n in sorted(states.items()))
    shown = [worker for worker in workers if worker["holds"] or section(worker, "owner").get("is_alive")]
    for worker in shown[:WORKERS_MAX]:
        yield "", f"{names_text(worker['holds']) or 'waits for a shard'}: {_who(section(worker, 'owner'))}"
    if (hidden := len(shown) - WORKERS_MAX) > 0:
        yield "", f"and {hidden} more workers"
    if shards["turns_per_s"]:
        yield "pace", f"{_rate(shards['turns_per_s'])} turns/s of all workers at work"


def lanes_json(lanes: Sequence[LaneRecord]) -> list[JsonValue]:
    """The lanes of a run, for programs."""
    return [dict(asdict(lane)) for lane in lanes]


def _lanes(lanes: JsonValue) -> Iterator[tuple[str, str]]:
    """How many lanes are up, and those that are not or that died."""
    if not (found := objects(lanes)):
        return
    deaths, restarts = (sum(count for lane in found if isinstance(count := lane[key], int)) for key in _LIVES)
    up = sum(lane["state"] == "up" for lane in found)
    yield "lanes", f"{up} of {len(found)} up at their last event; {_lives(deaths, restarts)}"
    notable = [lane for lane in found if lane["state"] not in _IN_ORDER or lane["deaths"]]
    for lane in notable[:LANES_MAX]:
        reason = f"; {lane['reason']}" if lane["reason"] else ""
        deaths, restarts = (count for key in _LIVES if isinstance(count := lane[key], int))
        lives = _lives(deaths, restarts)
        yield "", f"{lane['name']}: {lane['state']} on {lane['place']} since {lane['at']}, {lives}{reason}"
    if (hidden := len(notable) - LANES_MAX) > 0:
        yield "", f"and {hidden} more lanes"


def _lives(deaths: int, restarts: int) -> str:
    return f"{counted(deaths, 'deaths')}, {counted(restarts, 'restarts')}"


def _turns(session: SessionStanding) -> int:
    """The turns that engines answered; of a combination, whose engines are the grid's, those of what ended."""
    answered = turns_answered(session.usage.get("models"))
    return session.turns_ended if answered is None else answered


def _age_s(moment: str | None, now: datetime) -> float | None:
    """How long ago by the reader's clock, which may differ from the writer's; never less than nothing."""
    try:
        return None if moment is None else round(max(0.0, (now - datetime.fromisoformat(moment)).total_seconds()), 1)
    except (ValueError, TypeError):
        return None


def _ratio(part: float, whole: float | None) -> float | None:
    return round(part / whole, 4) if whole else None


def _integer(value: JsonValue) -> str:
    return f"{value:,}" if isinstance(value, int) else _UNKNOWN


def _rate(value: JsonValue) -> str:
    return f"{value:,.2f}" if isinstance(value, int | float) else _UNKNOWN


def duration_text(value: JsonValue) -> str:
    """Seconds as `1:02:03`."""
    if not isinstance(value, int | float):
        return _UNKNOWN
    minutes, seconds = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"


def _grid_json(status: JsonObject, standing: Standing) -> JsonObject:
    """The same of a grid, with its combinations."""
    # What the sessions of a grid ended is known to its combinations alone, so its pace is that of workers or unknown.
    del status["session"], status["limit"]
    if standing.not_begun or not section(status, "shards").get("turns_per_s"):
        del status["eta_s"]
    combinations: list[JsonValue] = [
        {
            "combination": slug,
            "values": dict(values),
            "conversations": None
            if found is None
            else {"planned": found.planned, "finished": found.finished, "failed": found.failed},
            "warning": None if found is None else _warning(found),
        }
        for slug, values, found in standing.combinations or ()
    ]
    return {
        **status,
        "complete_combinations": standing.complete,
        "not_begun_combinations": standing.not_begun,
        "combinations": combinations,
    }


def _combinations(status: JsonObject) -> Iterator[str]:
    listed, not_begun = objects(status["combinations"]), status["not_begun_combinations"]
    uncounted = f", {not_begun} not begun: their conversations are not counted above" if not_begun else ""
    yield f"combinations    {status['complete_combinations']} of {len(listed)} complete{uncounted}"
    yield from (printable(_combination(one)) for one in listed[:ROWS_SHOWN_MAX])
    if len(listed) > ROWS_SHOWN_MAX:
        yield f"and {len(listed) - ROWS_SHOWN_MAX} more combinations"


def _combination(combination: JsonObject) -> str:
    counts = combination["conversations"]
    if not isinstance(counts, dict):
        return f"  {combination['combination']}: not begun"
    failed = f", {counts['failed']} failed" if counts["failed"] else ""
    warning = f"; warning: {combination['warning']}" if combination["warning"] else ""
    return f"  {combination['combination']}: {counts['finished']} of {counts['planned']} finished{failed}{warning}"
