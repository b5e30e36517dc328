"""Whether the replies of a run could be used, and what was wrong with most of those that could not.

A turn whose corrections are used up takes the default act of its environment. A run of nothing but defaults says
nothing of its models, and one of mostly defaults says little. An agent definition that takes its default often plays in
part as its environment does, and not as its model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from mac_runner.results import COPIED, DEFAULTS_NOTED, default_shares, integer, is_noted, section
from mac_runner.types import JsonObject

_WARN_SHARE = 0.5
"""Above this share of defaults there is a warning."""


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
