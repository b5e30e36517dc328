"""Changed answers, and answers taken over, by identity: as it was shown to the others, and as it is.

What is shown decides what the others could react to. Who an agent is stays the same where it is hidden, so the cells
of a design with hidden identities can be compared with the others.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise

from mac_runner.environments.discussion.results.outcome import AgentPart, DiscussionResult, Share, added
from mac_runner.environments.discussion.results.rates import Rate, reports
from mac_runner.environments.discussion.state import same
from mac_runner.types import JsonObject


@dataclass(slots=True)
class _Own:
    """A rate of those who are the same, and what was shown of them."""

    rate: Rate = field(default_factory=Rate)
    shown: set[str] = field(default_factory=set)

    def report(self) -> JsonObject:
        return {**self.rate.report(), "shown": [*sorted(self.shown)]}


class IdentityResults:
    """Counts discussions one by one; its memory follows the number of identities."""

    def __init__(self) -> None:
        self._changes: defaultdict[str, Rate] = defaultdict(Rate)
        self._followed: defaultdict[str, Rate] = defaultdict(Rate)
        self._own_changes: defaultdict[str, _Own] = defaultdict(_Own)
        self._own_followed: defaultdict[str, _Own] = defaultdict(_Own)

    def add(self, result: DiscussionResult) -> None:
        """Count one discussion."""
        for shown, changed in result.changes_by_identity.items():
            self._changes[shown].add(changed, result.question_id)
        for shown, followed in result.influence.items():
            self._followed[shown].add(followed, result.question_id)
        who = {agent: part for agent, part in result.agents.items() if part.role == "participant"}
        question = result.question_id
        _add(self._own_changes, who, {agent: changes_of(result.answers.get(agent, ())) for agent in who}, question)
        _add(self._own_followed, who, {agent: added(result.moved.get(agent, {}).values()) for agent in who}, question)

    def report(self) -> JsonObject:
        """The rates by identity shown and by own identity."""
        return {
            "changes_by_identity": reports(self._changes),
            "followed_by_identity": reports(self._followed),
            "changes_by_own_identity": {own: each.report() for own, each in sorted(self._own_changes.items())},
            "followed_by_own_identity": {own: each.report() for own, each in sorted(self._own_followed.items())},
        }


def own_identity(agent: str, own: str) -> str:
    """Who an agent is in words that others may share: what it reads of itself without its id, or else the id.

    "You are ann, an elderly economist." gives "an elderly economist".
    """
    who = own.removeprefix(f"You are {agent}").lstrip(" ,.").strip()
    return (who if ". " in who else who.removesuffix(".")) or agent


def _add(
    rates: defaultdict[str, _Own], who: dict[str, AgentPart], shares: dict[str, Share], question: str | None
) -> None:
    """The cases of one discussion, those of agents with the same identity as one."""
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for agent, part in who.items():
        groups[own_identity(agent, part.own)].append(agent)
    for own, agents in groups.items():
        share = added([shares[agent] for agent in agents])
        if share.cases:
            rates[own].rate.add(share, question)
            rates[own].shown.update(who[agent].shown for agent in agents)


def changes_of(answers: tuple[str | None, ...]) -> Share:
    """Changed answers among those that could have changed; a pass on either side is not a case."""
    pairs = [(same(one), same(other)) for one, other in pairwise(answers) if None not in (one, other)]
    return Share(sum(one != other for one, other in pairs), len(pairs))
