"""Why conversations failed, whether the replies of a run could be used, and what was wrong with those that could not.

A turn whose corrections are used up takes the default act of its environment. A run of nothing but defaults says
nothing of its models, and one of mostly defaults says little. An agent definition that takes its default often plays in
part as its environment does, and not as its model.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from mac_runner.failures import in_general, kind_of
from mac_runner.printable import printable
from mac_runner.results import COPIED, DEFAULTS_NOTED, default_shares, integer, is_noted, objects, section
from mac_runner.store.rows import IndexRow
from mac_runner.types import JsonObject, JsonValue

_WARN_SHARE = 0.5
"""Above this share of defaults there is a warning."""
REASONS_MAX: Final = 20
"""How many reasons are listed one by one."""
TASK_IDS_MAX: Final = 5
"""How many conversations each reason names."""


def by_model(counts: JsonObject, models: Mapping[str, str]) -> JsonObject:
    """Counts by model and name, from those by agent definition; `models` has the model of each of these."""
    found: dict[str, Counter[str]] = {}
    for definition in counts:
        named = section(counts, definition)
        of_model = found.setdefault(models.get(definition, definition), Counter())
        of_model.update({each: integer(named[each]) or 0 for each in named})
    return {model: dict(sorted(named.items())) for model, named in sorted(found.items())}


def noted_defaults(counts: JsonObject) -> str:
    """`c 71.0% of 1,200 turns` for each agent definition that took its default often; empty for none."""
    counted = section(counts, "turns_by_definition")
    return ", ".join(
        f"{name} {share:.1%} of {integer(section(counted, name).get('turns')) or 0:,} turns"
        for name, share in default_shares(counts).items()
        if is_noted(share)
    )


def is_nothing_usable(counts: JsonObject) -> bool:
    """Whether every turn took its default. `counts` are those of a summary: `turns`, `corrections`, `defaults`."""
    turns, corrections, defaults = (integer(counts.get(key)) or 0 for key in ("turns", "corrections", "defaults"))
    return defaults > 0 and turns == corrections + defaults


def usability_warning(counts: JsonObject) -> str | None:
    """A warning where more than half of the turns took their default, with the commonest cause for each model.

    There is another where models copied the form of a reply. `counts` has `unusable_by_model` besides.
    """
    turns, corrections, defaults = (integer(counts.get(key)) or 0 for key in ("turns", "corrections", "defaults"))
    asked = turns - corrections
    causes = section(counts, "unusable_by_model")
    if not defaults or defaults <= _WARN_SHARE * asked:
        copied = {model: integer(section(causes, model).get(COPIED)) or 0 for model in causes}
        listed = ", ".join(f"{model} {count:,}" for model, count in copied.items() if count)
        return f"replies copied the form in place of an answer, and were asked for again: {listed}" if listed else None
    listed = "; ".join(f"{model}: {_commonest(section(causes, model))}" for model in causes)
    why = f" (mostly, {listed})" if listed else ""
    if is_nothing_usable(counts):
        return f"nothing was usable: all of {asked:,} turns took their default{why}"
    return f"{defaults:,} of {asked:,} turns took their default{why}"


def warnings(counts: JsonObject) -> Iterator[str]:
    """What has to be said of replies that could not be used, of all together and of each agent definition."""
    if (found := usability_warning(counts)) is not None:
        yield found
    if (noted := noted_defaults(counts)) and not is_nothing_usable(counts):
        yield f"took their default on more than {DEFAULTS_NOTED:.0%} of their turns: {noted}"


def _commonest(causes: JsonObject) -> str:
    counted = {cause: integer(causes[cause]) or 0 for cause in causes}
    cause = min(counted, key=lambda each: (-counted[each], each))
    return f"{cause.replace('_', ' ')} in {counted[cause]:,} of {sum(counted.values()):,} unusable replies"


@dataclass(slots=True)
class _Reason:
    count: int = 0
    first: list[tuple[int, str, str]] = field(default_factory=list)
    """The first conversations: index, name, and the reason in general."""


class FailureCounter:
    """Counts failures by reason. Its memory follows the number of different reasons."""

    def __init__(self) -> None:
        self._reasons: dict[str, _Reason] = {}

    def add(self, row: IndexRow) -> None:
        """Count one row if it failed."""
        if row.reason is None:
            return
        general = in_general(row.reason, row.task_id)
        reason = self._reasons.setdefault(kind_of(general), _Reason())
        reason.count += 1
        insort(reason.first, (row.index, row.task_id, general))
        del reason.first[TASK_IDS_MAX:]

    def report(self) -> list[JsonValue]:
        """The reasons with their counts and first tasks; beyond a bound, how many more there were."""
        ranked = sorted(self._reasons.values(), key=lambda reason: (-reason.count, reason.first[0][2]))
        report: list[JsonValue] = [_entry(reason.first[0][2], reason) for reason in ranked[:REASONS_MAX]]
        rest = ranked[REASONS_MAX:]
        if rest:
            other = _Reason(
                count=sum(reason.count for reason in rest),
                first=sorted(first for reason in rest for first in reason.first)[:TASK_IDS_MAX],
            )
            report.append(_entry(f"{len(rest)} other reasons", other))
        return report


def _entry(text: str, reason: _Reason) -> JsonObject:
    return {"reason": text, "count": reason.count, "task_ids": [task_id for _, task_id, _ in reason.first]}


def nothing_finished(summary: JsonObject) -> str | None:
    """What is to be said where conversations ended and none finished, with the commonest reason."""
    failed, causes = integer(section(summary, "conversations").get("failed")), objects(summary.get("failures"))
    if section(summary, "conversations").get("finished") or not failed or not causes:
        return None
    return (
        f"no conversation finished, {failed:,} failed: {causes[0]['count']:,} × {printable(str(causes[0]['reason']))}"
    )
