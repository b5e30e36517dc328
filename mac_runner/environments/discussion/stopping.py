"""When a discussion ends (pure). It is asked between rounds only, so the order of replies plays no part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from enum import StrEnum

from mac_runner.environments.discussion.answers.words import words
from mac_runner.environments.discussion.settings import StoppingConfig
from mac_runner.environments.discussion.table import Table


class Ending(StrEnum):
    """What ended a discussion."""

    JUDGE = "judge"
    CONSENSUS = "consensus"
    STABLE = "stable_answers"
    MAX_ROUNDS = "max_rounds"


def ending(table: Table, max_rounds: int, stopping: StoppingConfig) -> Ending | None:
    """What ended the discussion with its last complete round; None: it goes on."""
    done = table.round
    if done == 0:
        return None
    if done >= stopping.min_rounds:
        if stopping.by_judge and verdict_of(table) is not None:
            return Ending.JUDGE
        if stopping.on_consensus and consensus(table, done - 1) is not None:
            return Ending.CONSENSUS
        if stopping.stable_rounds is not None and _is_stable(table, stopping.stable_rounds):
            return Ending.STABLE
    return Ending.MAX_ROUNDS if done >= max_rounds else None


def same(answer: str | None) -> str | None:
    """An answer as it is compared: ids of choices are what they are, open words go by their words."""
    return None if answer is None else " ".join(words(answer)) or answer


def consensus(table: Table, round_number: int) -> str | None:
    """The answer that all participants gave in a round; None when they did not, or one of them passed."""
    answers = list(table.answers(round_number).values())
    return answers[0] if len({same(answer) for answer in answers}) == 1 else None


def majority(answers: Mapping[str, str | None]) -> str | None:
    """The answer given by more than gave any other; None when there is none such. Who passed is not counted."""
    given = [answer for _, answer in sorted(answers.items()) if answer is not None]
    ranked = Counter(same(answer) for answer in given).most_common(2)
    if not ranked or (len(ranked) == 2 and ranked[0][1] == ranked[1][1]):
        return None
    return next(answer for answer in given if same(answer) == ranked[0][0])


def verdict_of(table: Table) -> str | None:
    """The judge's latest verdict."""
    given = [said.answer for said in table.in_order() if said.role == "judge" and said.said and said.said.ends]
    return given[-1] if given else None


def _is_stable(table: Table, rounds: int) -> bool:
    """Whether no participant changed its answer in the last `rounds` rounds, each against the one before it."""
    done = table.round
    if done <= rounds:
        return False
    seen = [
        {agent: same(answer) for agent, answer in table.answers(number).items()}
        for number in range(done - 1 - rounds, done)
    ]
    if None in seen[0].values():
        return False
    return all(later == seen[0] for later in seen[1:])
