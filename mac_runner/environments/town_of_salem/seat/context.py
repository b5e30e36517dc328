"""Prompts that fit into the model's window: the oldest days of a long game are shortened.

Whole days are shortened, from the first on, never the one under way; what is kept of a message is kept whole. Which
days of the public record are short follows from that record alone, and their number never goes down, so all seats of
a game share it as a prefix. How many of a seat's own days are short depends on the room left.

A shortened day keeps the facts and loses the talk. Of the public record it keeps word for word deaths, trials,
ballots, verdicts and all else that happened; of the talk, who claimed which role, who accused, voted for and
whispered to which player. Of a seat's own record it keeps results and other notices, and counts chats and whispers.

Tokens are estimated from bytes, to the cautious side, because the engine's tokenizer is unknown here. When an engine
still finds a prompt too long, `shorter_than` gives the limit for the next attempt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from mac_runner.environments.markup import disarm
from mac_runner.environments.town_of_salem.model.events import Event, EventKind
from mac_runner.environments.town_of_salem.rules.acts import ACTS
from mac_runner.environments.town_of_salem.seat.asking import Asking, ReplySchema, enumerated
from mac_runner.environments.town_of_salem.seat.knowledge import SeatView, without_heading
from mac_runner.environments.town_of_salem.seat.prompts import Prompts
from mac_runner.environments.town_of_salem.seat.public_record import conduct_of
from mac_runner.errors import ConversationError
from mac_runner.types import Message, Prompt

BYTES_PER_TOKEN = 3
"""In every language's usual text a token holds more bytes."""
PUBLIC_SHARE_MAX = 0.6
"""The part of a prompt that the public record may take before its oldest days are shortened."""
SHRINK = 0.9
"""What is kept of a prompt that an engine found too long."""

Lines: TypeAlias = "Sequence[tuple[Event, str]]"
"""Events, each with its line of the record."""
Digest: TypeAlias = "Callable[[Lines, SeatView], list[str]]"
"""Shortens one finished day; of the view it takes what is the same for all seats and never changes."""

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


def public_digest(lines: Lines, view: SeatView) -> list[str]:
    """One finished day and its night of the public record."""
    if not lines:
        return []
    players = view.players
    kept = [without_heading(line) for event, line in lines if event.kind not in _TALK]
    conduct = conduct_of((event for event, _ in lines), players)
    talk = {
        "Claims": [f"{name} to be the {role}" for name in players for _, role in conduct[name].claims],
        "Accusations": [f"{name} of {other}" for name in players for _, other in conduct[name].accuses],
        "Votes": [f"{name} for {target}" for name in players for _, target in conduct[name].votes],
        "Whispers": [f"{name} {to}" for name in players for _, to in conduct[name].whispers if to.startswith("to ")],
    }
    facts = (f"{what}: {_counted(items)}." for what, items in talk.items() if items)
    return [_in_short(lines), f"What was said is left out here{_shown_by(view)}.", *facts, *kept]


def private_digest(lines: Lines, view: SeatView) -> list[str]:
    """One finished day and its night as a seat alone knew it."""
    if not lines:
        return []
    kept = [without_heading(line) for event, line in lines if event.kind not in _CHATS]
    chats = [
        f"{event.data['channel']} chat" if event.kind is EventKind.CHAT else "whispers"
        for event, _ in lines
        if event.kind in _CHATS
    ]
    left_out = [f"Left out here: {_counted(chats)}{_shown_by(view)}."] if chats else []
    return [_in_short(lines), *kept, *left_out]


def _in_short(lines: Lines) -> str:
    return f"[Day {lines[0][0].day}, in short]"


def _shown_by(view: SeatView) -> str:
    """How a player reads what is left out, where it can."""
    return "; get_chat shows it" if "get_chat" in view.options.tools else ""


def _counted(items: Sequence[str]) -> str:
    """The different items in order, with how often where it was more than once."""
    return "; ".join(item if times == 1 else f"{item} ({times} times)" for item, times in Counter(items).items())


def tokens_of(text: str) -> int:
    """An estimate from above of the tokens of `text`."""
    return -(-len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN)


class Context:
    """Renders the prompts of one game within `tokens_max` tokens, reply not counted; None: without a limit."""

    def __init__(self, prompts: Prompts, tokens_max: int | None = None) -> None:
        self._tokens_max = tokens_max
        self._prompts = prompts
        self._systems: dict[Asking, Message] = {}
        # A finished day never changes, so it is shortened once per record.
        self._shortened: dict[tuple[str, int], list[str]] = {}

    def prompt(
        self,
        view: SeatView,
        thread: Sequence[Message],
        *,
        asking: Asking,
        may_ask: bool,
        tokens_max: int | None = None,
    ) -> Prompt:
        """The prompt of this view and this turn so far. Raises ConversationError when it cannot be made to fit.

        `tokens_max` is the limit of this seat, where its engine takes less than the experiment says.
        """
        said = tuple(_sent_back(message) for message in thread)
        limit = self._tokens_max if tokens_max is None else tokens_max
        refused = None if tokens_max is None else tokens_max / SHRINK
        text = self._prompts.turn(view, asking) if limit is None else self._fitting(view, asking, said, limit, refused)
        # Nothing holds an engine to markup.
        is_json = asking.form == "json"
        system = self._system(view, asking)
        return Prompt(
            messages=(*([system] if system.content else []), Message(role="user", content=text), *said),
            view=view,
            choices=enumerated(view, asking) if is_json else None,
            schema=ReplySchema(view, asking, may_ask=may_ask) if is_json else None,
        )

    def _system(self, view: SeatView, asking: Asking) -> Message:
        if asking not in self._systems:
            text = self._prompts.system(view.lobby, view.options, asking)
            self._systems[asking] = Message(role="system", content=text)
        return self._systems[asking]

    def _fitting(
        self, view: SeatView, asking: Asking, said: Sequence[Message], tokens_max: int, refused: float | None
    ) -> str:
        """What fits; else the shortest there is, if it is shorter than what the engine refused."""
        public = self._days("", view.public, view.public_lines, view, public_digest)
        private = self._days(view.name, view.private, view.private_lines, view, private_digest)
        system = tokens_of(self._system(view, asking).content)
        asked = tokens_of(self._prompts.turn(view, asking, (), ()))
        around = system + sum(tokens_of(message.content) for message in said) + asked
        short = public.short_days_for(int((tokens_max - system) * PUBLIC_SHARE_MAX))
        for days in range(short, view.day):
            own = private.short_days_for(tokens_max - around - public.tokens(days))
            if around + public.tokens(days) + private.tokens(own) <= tokens_max:
                return self._prompts.turn(view, asking, public.lines(days), private.lines(own))
        all_past = view.day - 1
        least = around + public.tokens(all_past) + private.tokens(all_past)
        if refused is not None and least < refused:
            return self._prompts.turn(view, asking, public.lines(all_past), private.lines(all_past))
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
                self._shortened[whose, number] = digest(day, view)
            short.append(self._shortened[whose, number])
        whole = [[line for _, line in day] for day in days]
        return _Days(whole, short, [_tokens(day) for day in whole], [_tokens(day) for day in short])


def shorter_than(prompt: Prompt) -> int:
    """The limit, in estimated tokens, for a seat whose engine found `prompt` too long."""
    return int(SHRINK * sum(tokens_of(message.content) for message in prompt.messages))


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
        """The fewest days to shorten so that the record fits; all finished days when it cannot."""
        over = len(self.short)
        return next((days for days in range(over) if self.tokens(days) <= tokens_max), over)


def _tokens(lines: Sequence[str]) -> int:
    return sum(tokens_of(f"{line}\n") for line in lines)


def _sent_back(message: Message) -> Message:
    if message.role != "assistant":
        return message
    return Message(role="assistant", content=disarm(message.content, ACTS))
