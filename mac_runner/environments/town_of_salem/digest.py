"""A past day in short: the facts, without the talk.

Of the public record stay deaths, trials, ballots, verdicts and whatever else happened, word for word, and of the talk
who claimed which role, who accused whom, who voted for whom and who whispered to whom. Of a seat's own record stay
results and all else it was told; of chats and whispers how many there were. The same day is always told in the same
words, so a shortened record still only grows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TypeAlias

from mac_runner.environments.town_of_salem.events import Event, EventKind
from mac_runner.environments.town_of_salem.hearsay import conduct_of

Told: TypeAlias = "Sequence[tuple[Event, str]]"
"""Events, each with its line of the record."""

_TALK = frozenset(
    {
        EventKind.SPEECH,
        EventKind.WHISPER_SEEN,
        EventKind.VOTE,
        EventKind.UNVOTE,
        EventKind.VOTING_START,
        EventKind.DAY_START,
        EventKind.NIGHT_START,
    }
)
_CHATS = frozenset({EventKind.CHAT, EventKind.WHISPER})


def public_digest(told: Told, players: tuple[str, ...]) -> list[str]:
    """One finished day and its night of the public record."""
    if not told:
        return []
    kept = [line for event, line in told if event.kind not in _TALK]
    stamp = f"[Day {told[0][0].day}, in short]"
    conduct = conduct_of((event for event, _ in told), players)
    said = {
        "Claims": [f"{name} to be the {role}" for name in players for _, role in conduct[name].claims],
        "Accusations": [f"{name} of {other}" for name in players for _, other in conduct[name].accuses],
        "Votes": [f"{name} for {target}" for name in players for _, target in conduct[name].votes],
        "Whispers": [f"{name} {to}" for name in players for _, to in conduct[name].whispers if to.startswith("to ")],
    }
    facts = (f"{stamp} {what}: {_counted(items)}." for what, items in said.items() if items)
    return [f"{stamp} What was said is left out here; get_chat shows it.", *facts, *kept]


def private_digest(told: Told, players: tuple[str, ...]) -> list[str]:
    """One finished day and its night as a seat alone knew it."""
    kept = [line for event, line in told if event.kind not in _CHATS]
    chats = [
        f"{event.data['channel']} chat" if event.kind is EventKind.CHAT else "whispers"
        for event, _ in told
        if event.kind in _CHATS
    ]
    if not chats:
        return kept
    return [*kept, f"[Day {told[0][0].day}, in short] Lines not shown here: {_counted(chats)}. get_chat shows them."]


def _counted(items: Sequence[str]) -> str:
    """The different items in order, with how often where it was more than once."""
    return "; ".join(item if times == 1 else f"{item} ({times} times)" for item, times in Counter(items).items())
