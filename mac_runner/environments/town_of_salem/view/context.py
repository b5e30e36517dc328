"""FIXME A past day in short: the facts, without the talk.

Of the public record stay deaths, trials, ballots, verdicts and whatever else happened, word for word, and of the talk
who claimed which role, who accused whom, who voted for whom and who whispered to whom. Of a seat's own record stay
results and all else it was told; of chats and whispers how many there were. The same day is always told in the same
words, so a shortened record still only grows.

A prompt that fits into the model's window: when a game outgrows it, its oldest days are told in short.

Days are shortened from the first on, whole days only, and never the one under way; what is kept of a message is kept
whole. How many days of the public record are short follows from the public record alone and never goes down, so that
all seats of a game go on sharing it as a prefix; how many of the seat's own lines are follows from what room they have.
Tokens are estimated, to the cautious side, from bytes: the engine's tokenizer is not known here. An engine that finds a
prompt too long all the same is asked again with a shorter one (`shorter_than`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from mac_runner.environments.markup import disarm
from mac_runner.environments.town_of_salem.game.acts import ACTS
from mac_runner.environments.town_of_salem.game.events import Event, EventKind
from mac_runner.environments.town_of_salem.view.knowledge import SeatView
from mac_runner.environments.town_of_salem.view.prompts import turn_text
from mac_runner.environments.town_of_salem.view.public_record import conduct_of
from mac_runner.environments.town_of_salem.view.reply_schema import ReplySchema, enumerated
from mac_runner.errors import ConversationError
from mac_runner.limits import CONTEXT_BYTES_PER_TOKEN, CONTEXT_PUBLIC_SHARE_MAX, CONTEXT_SHRINK
from mac_runner.types import Message, Prompt

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


Digest: TypeAlias = "Callable[[Sequence[tuple[Event, str]], tuple[str, ...]], list[str]]"


def tokens_of(text: str) -> int:
    """An estimate from above of the tokens of `text`."""
    return -(-len(text.encode("utf-8", "replace")) // CONTEXT_BYTES_PER_TOKEN)


class Context:
    """Renders the prompts of one game within `tokens_max` tokens, reply not counted; None: without a limit."""

    def __init__(self, *, system: str, tokens_max: int | None = None) -> None:
        self._system = Message(role="system", content=system)
        self._tokens_max = tokens_max
        # A day that is over never changes, so it is shortened once for each record it stands in.
        self._shortened: dict[tuple[str, int], list[str]] = {}

    def prompt(
        self, view: SeatView, thread: Sequence[Message], *, may_ask: bool, tokens_max: int | None = None
    ) -> Prompt:
        """The prompt of this view and this turn so far. Raises ConversationError when it cannot be made to fit.

        `tokens_max` is the limit of this seat, where its engine turned out to take less than the experiment says.
        """
        said = tuple(_sent_back(message) for message in thread)
        limit = self._tokens_max if tokens_max is None else tokens_max
        text = turn_text(view) if limit is None else self._fitting(view, said, limit)
        return Prompt(
            messages=(self._system, Message(role="user", content=text), *said),
            view=view,
            choices=enumerated(view),
            schema=ReplySchema(view, may_ask=may_ask),
        )

    def _fitting(self, view: SeatView, said: Sequence[Message], tokens_max: int) -> str:
        public = self._days("", view.public, view.public_lines, view, public_digest)
        private = self._days(view.name, view.private, view.private_lines, view, private_digest)
        system = tokens_of(self._system.content)
        around = system + sum(tokens_of(message.content) for message in said) + tokens_of(turn_text(view, (), ()))
        short = public.short_days_for(int((tokens_max - system) * CONTEXT_PUBLIC_SHARE_MAX))
        for days in range(short, view.day):
            own = private.short_days_for(tokens_max - around - public.tokens(days))
            if around + public.tokens(days) + private.tokens(own) <= tokens_max:
                return turn_text(view, public.lines(days), private.lines(own))
        least = around + public.tokens(view.day - 1) + private.tokens(view.day - 1)
        raise ConversationError(
            f"the prompt of {view.name} on day {view.day} needs about {least} tokens even with all past days in short, "
            f"and the limit is {tokens_max} (game.context_tokens_max, or what the engine takes); raise it, or play "
            "shorter games"
        )

    def _days(self, whose: str, events: Sequence[Event], lines: Sequence[str], view: SeatView, digest: Digest) -> _Days:
        days: list[list[tuple[Event, str]]] = [[] for _ in range(view.day)]
        for event, line in zip(events, lines, strict=True):
            days[event.day - 1].append((event, line))
        short: list[list[str]] = []
        for number, day in enumerate(days[:-1]):
            if (whose, number) not in self._shortened:
                self._shortened[whose, number] = digest(day, view.players)
            short.append(self._shortened[whose, number])
        whole = [[line for _, line in day] for day in days]
        return _Days(whole, short, [_tokens(day) for day in whole], [_tokens(day) for day in short])


def shorter_than(prompt: Prompt) -> int:
    """The limit for a seat whose engine found `prompt` too long, in tokens as they are estimated here."""
    return int(CONTEXT_SHRINK * sum(tokens_of(message.content) for message in prompt.messages))


@dataclass(frozen=True, slots=True)
class _Days:
    """The lines of one record by day, whole and in short."""

    whole: Sequence[Sequence[str]]
    short: Sequence[Sequence[str]]
    whole_tokens: Sequence[int]
    short_tokens: Sequence[int]

    def tokens(self, short_days: int) -> int:
        """What the record costs with its first days in short."""
        return sum(self.short_tokens[:short_days]) + sum(self.whole_tokens[short_days:])

    def lines(self, short_days: int) -> list[str]:
        """The record with its first days in short."""
        return [line for day in (*self.short[:short_days], *self.whole[short_days:]) for line in day]

    def short_days_for(self, tokens_max: int) -> int:
        """The fewest days to tell in short so that the record fits, or all that are over when it cannot."""
        over = len(self.short)
        return next((days for days in range(over) if self.tokens(days) <= tokens_max), over)


def _tokens(lines: Sequence[str]) -> int:
    return sum(tokens_of(f"{line}\n") for line in lines)


def _sent_back(message: Message) -> Message:
    if message.role != "assistant":
        return message
    return Message(role="assistant", content=disarm(message.content, ACTS))
