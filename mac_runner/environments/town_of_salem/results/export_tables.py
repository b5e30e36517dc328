"""The flat tables of games: claims, votes, trials, deaths, deeds, nights, acts and changes of role."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from mac_runner.flat import NUMBER, Cells
from mac_runner.results import AgentColumns, Export, ExportColumn, export_of
from mac_runner.types import JsonObject

_CONVERSATION: Final = ExportColumn("text", "the game", source="task.task_id")


def _numbered(name: str, what: str) -> Mapping[str, ExportColumn]:
    """The columns that name a row."""
    return {"conversation": _CONVERSATION, name: ExportColumn("integer", f"{what}, counted from 0", source=NUMBER)}


_CLAIM: Final = "record.claims[]"
CLAIMS: Final = export_of(
    _CLAIM,
    {
        **_numbered("claim", "its number in the game"),
        "event": ExportColumn("integer", "the event that holds the words", source=f"{_CLAIM}.event"),
        "day": ExportColumn("integer", "the day", source=f"{_CLAIM}.day"),
        "phase": ExportColumn("text", "the phase of the day", source=f"{_CLAIM}.phase"),
        "agent": ExportColumn("text", "who said it", source=f"{_CLAIM}.player"),
        "channel": ExportColumn(
            "text", "`public`, `whisper`, a chat of the night, `will` or `death note`", source=f"{_CLAIM}.channel"
        ),
        "kind": ExportColumn("text", "the kind of claim, such as `role` or `accusation`", source=f"{_CLAIM}.kind"),
        "about": ExportColumn("text", "the player it is about", source=f"{_CLAIM}.about"),
        "says": ExportColumn("text", "what is claimed, such as `role` or `suspicious`", source=f"{_CLAIM}.says"),
        "roles": ExportColumn("texts", "the roles that it names", source=f"{_CLAIM}.roles[]"),
        "names": ExportColumn("texts", "the visitors that it names", source=f"{_CLAIM}.names[]"),
        "start": ExportColumn("integer", "where the claim begins in the words", "characters", f"{_CLAIM}.start"),
        "end": ExportColumn("integer", "where it ends", "characters", f"{_CLAIM}.end"),
        "verdict": ExportColumn("text", "`honest`, `lie` or `unclear`", source=f"{_CLAIM}.verdict"),
        "is_so": ExportColumn("truth", "whether it was so; empty where roles do not decide", source=f"{_CLAIM}.is_so"),
        "truth": ExportColumn("text", "what was so instead, for an error", source=f"{_CLAIM}.truth"),
    },
    key=("conversation", "claim"),
    meaning="What players said is so, with a verdict on their honesty.",
)

_TRIAL: Final = "record.trials[]"
TRIALS: Final = export_of(
    _TRIAL,
    {
        **_numbered("trial", "its number in the game"),
        "day": ExportColumn("integer", "the day", source=f"{_TRIAL}.day"),
        "accused": ExportColumn("text", "who was tried", source=f"{_TRIAL}.accused"),
        "guilty": ExportColumn("texts", "who judged guilty", source=f"{_TRIAL}.guilty[]"),
        "innocent": ExportColumn("texts", "who judged innocent", source=f"{_TRIAL}.innocent[]"),
        "abstain": ExportColumn("texts", "who abstained", source=f"{_TRIAL}.abstain[]"),
        "verdict": ExportColumn("text", "`guilty`, `innocent`; empty where there was none", source=f"{_TRIAL}.verdict"),
    },
    key=("conversation", "trial"),
    meaning="The trials.",
)

VOTE_COLUMNS: Final[Mapping[str, ExportColumn]] = {
    **_numbered("vote", "its number in the game"),
    "trial": ExportColumn("integer", "the trial, as in `trials`; empty for a vote that led to none"),
    "day": ExportColumn("integer", "the day", source="record.events[].day"),
    "agent": ExportColumn("text", "who voted", source="record.trials[].votes[].voter"),
    "accused": ExportColumn("text", "the player voted on", source="record.trials[].accused"),
    "kind": ExportColumn("text", "`nominate`, `withdraw`, or what was judged: `guilty`, `innocent`, `abstain`"),
    "place": ExportColumn(
        "integer", "of a vote that led to a trial, its place, from 1", source="record.trials[].votes[].order"
    ),
    "event": ExportColumn("integer", "of a nomination, its event"),
}
_JUDGEMENTS: Final = ("guilty", "innocent", "abstain")


def vote_rows(transcript: JsonObject, _experiment: JsonObject) -> Iterator[dict[str, Cells]]:
    """Every nomination and judgement of a game, in order: nominations from the events, judgements from the trials."""
    for number, row in enumerate(_votes(transcript)):
        yield {"conversation": _text(_part(transcript, "task"), "task_id"), "vote": number, **row}


def _votes(transcript: JsonObject) -> Iterator[dict[str, Cells]]:
    record = _part(transcript, "record")
    trials = [one for one in _list(record, "trials") if isinstance(one, dict)]
    begun = 0
    standing: list[dict[str, Cells]] = []
    for place, event in enumerate(_list(record, "events")):
        if not isinstance(event, dict):
            continue
        data = _part(event, "data")
        match event.get("kind"):
            case "vote" | "unvote" as kind:
                voter, accused = _text(data, "player"), _text(data, "target")
                row: dict[str, Cells] = {"day": _number(event, "day"), "agent": voter, "accused": accused}
                standing.append({**row, "kind": "nominate" if kind == "vote" else "withdraw", "event": place})
            case "trial" if begun < len(trials):
                yield from _tried(standing, trials[begun], begun)
                begun, standing = begun + 1, []
            case _:
                pass
    yield from standing


def _tried(standing: list[dict[str, Cells]], trial: JsonObject, number: int) -> Iterator[dict[str, Cells]]:
    """The nominations since the trial before, then the judgements of a trial."""
    votes = (vote for vote in _list(trial, "votes") if isinstance(vote, dict))
    orders = {_text(vote, "voter"): _number(vote, "order") for vote in votes}
    accused = trial.get("accused")
    counted: dict[Cells, int] = {
        row["agent"]: place
        for place, row in enumerate(standing)
        if row["accused"] == accused and row["kind"] == "nominate"
    }
    for place, row in enumerate(standing):
        agent = row["agent"]
        # Of several votes of one player for the accused, the last one made the trial.
        made_it = agent in orders and counted.get(agent) == place
        yield {**row, "trial": number, "place": orders[str(agent)]} if made_it else row
    common: dict[str, Cells] = {
        "trial": number,
        "day": _number(trial, "day"),
        "accused": _text(trial, "accused"),
    }
    for judgement in _JUDGEMENTS:
        for judge in _list(trial, judgement):
            yield {**common, "agent": str(judge), "kind": judgement}


def _part(record: JsonObject, key: str) -> JsonObject:
    value = record.get(key)
    return value if isinstance(value, dict) else {}


def _list(record: JsonObject, key: str) -> list[object]:
    value = record.get(key)
    return [*value] if isinstance(value, list) else []


def _text(record: JsonObject, key: str) -> str | None:
    value = record.get(key)
    return value if isinstance(value, str) else None


def _number(record: JsonObject, key: str) -> int | None:
    value = record.get(key)
    return value if isinstance(value, int) else None


VOTES: Final = Export(VOTE_COLUMNS, vote_rows, "Nominations, and the judgements of trials.", ("conversation", "vote"))

_DEATH: Final = "record.deaths[]"
DEATHS: Final = export_of(
    _DEATH,
    {
        "conversation": _CONVERSATION,
        "agent": ExportColumn("text", "who died", source=f"{_DEATH}.player"),
        "day": ExportColumn("integer", "the day", source=f"{_DEATH}.day"),
        "at": ExportColumn("text", "`day` or `night`", source=f"{_DEATH}.at"),
        "role": ExportColumn("text", "the role held", source=f"{_DEATH}.role"),
        "role_shown": ExportColumn("text", "the role that all were shown", source=f"{_DEATH}.role_shown"),
        "causes": ExportColumn("texts", "`lynch`, `mafia`, or another cause", source=f"{_DEATH}.causes[]"),
        "killers": ExportColumn("texts", "who killed; empty for a lynch", source=f"{_DEATH}.killers[]"),
        "more": ExportColumn("json", "what else the record has of it", source=f"{_DEATH}.*"),
    },
    key=("conversation", "agent", "day", "at"),
    meaning="The deaths.",
)

_NIGHT: Final = "record.nights[]"
_DEED: Final = f"{_NIGHT}.deeds[]"
DEEDS: Final = export_of(
    _DEED,
    {
        **_numbered("deed", "its number in the game"),
        "day": ExportColumn("integer", "the day before the night", source=f"{_NIGHT}.day"),
        "agent": ExportColumn("text", "who chose it", source=f"{_DEED}.player"),
        "role": ExportColumn("text", "the role that it was chosen with", source=f"{_DEED}.role"),
        "act": ExportColumn("text", "what was chosen, such as `heal`", source=f"{_DEED}.act"),
        "targets": ExportColumn("texts", "whom it was for", source=f"{_DEED}.targets[]"),
        "more": ExportColumn("json", "what else the record has of it", source=f"{_DEED}.*"),
    },
    key=("conversation", "deed"),
    meaning="What was chosen at night.",
)

NIGHTS: Final = export_of(
    _NIGHT,
    {
        "conversation": _CONVERSATION,
        "day": ExportColumn("integer", "the day before the night", source=f"{_NIGHT}.day"),
        "jail": ExportColumn("json", "who was held in jail, and by which player", source=f"{_NIGHT}.jail"),
        "changes": ExportColumn("json", "deeds that became others: how, to whom, by whom", source=f"{_NIGHT}.changes"),
        "visits": ExportColumn("json", "who visited whom", source=f"{_NIGHT}.visits"),
        "protections": ExportColumn("json", "who was protected, how, by whom", source=f"{_NIGHT}.protections"),
        "marks": ExportColumn("json", "who was framed, doused and the like", source=f"{_NIGHT}.marks"),
        "attacks": ExportColumn("json", "who attacked whom, and what came of it", source=f"{_NIGHT}.attacks"),
        "findings": ExportColumn("json", "what was found out, by whom", source=f"{_NIGHT}.findings"),
        "deaths": ExportColumn("texts", "who died", source=f"{_NIGHT}.deaths[]"),
        "more": ExportColumn("json", "what else the record has of it", source=f"{_NIGHT}.*"),
    },
    key=("conversation", "day"),
    meaning="How nights were resolved.",
)

_ACT: Final = "record.acts[]"
ACTS: Final = export_of(
    _ACT,
    {
        **_numbered("place", "its place among the acts of the game"),
        "day": ExportColumn("integer", "the day", source=f"{_ACT}.day"),
        "phase": ExportColumn("text", "the phase of the day", source=f"{_ACT}.phase"),
        "round": ExportColumn("integer", "the round, as in `turns`", source=f"{_ACT}.round"),
        "agent": ExportColumn("text", "who acted", source=f"{_ACT}.player"),
        "act": ExportColumn("text", "what was done; empty for a reply that was refused", source=f"{_ACT}.act"),
        "targets": ExportColumn("texts", "whom it was for", source=f"{_ACT}.targets[]"),
        "choice": ExportColumn("text", "a channel, or what was judged", source=f"{_ACT}.choice"),
        "text": ExportColumn("text", "the words", source=f"{_ACT}.text"),
        "legality": ExportColumn("text", "`legal`, `default`, `lapsed` or `refused`", source=f"{_ACT}.legality"),
        "is_default": ExportColumn("truth", "whether it took the place of an answer", source=f"{_ACT}.is_default"),
        "is_lapsed": ExportColumn("truth", "whether it was possible no more", source=f"{_ACT}.is_lapsed"),
        "reason": ExportColumn("text", "why it was refused, or had lapsed", source=f"{_ACT}.reason"),
        "turn": ExportColumn("text", "of a refused reply, its turn", source=f"{_ACT}.turn"),
        "option_place": ExportColumn("integer", "the place of the chosen option", source=f"{_ACT}.option.place"),
        "option_of": ExportColumn("integer", "of how many options", source=f"{_ACT}.option.of"),
        "started_ms": ExportColumn("number", "when it began, simulated", "ms", f"{_ACT}.simulated.started_ms"),
        "ended_ms": ExportColumn("number", "when it ended, simulated", "ms", f"{_ACT}.simulated.ended_ms"),
    },
    key=("conversation", "place"),
    meaning="What players did, and whether it was legal.",
)

_CHANGE: Final = "record.role_changes[]"
ROLE_CHANGES: Final = export_of(
    _CHANGE,
    {
        **_numbered("change", "its number in the game"),
        "day": ExportColumn("integer", "the day", source=f"{_CHANGE}.day"),
        "phase": ExportColumn("text", "the phase of the day", source=f"{_CHANGE}.phase"),
        "agent": ExportColumn("text", "whose role changed", source=f"{_CHANGE}.player"),
        "was": ExportColumn("text", "the role before", source=f"{_CHANGE}.from"),
        "now": ExportColumn("text", "the role after", source=f"{_CHANGE}.to"),
        "why": ExportColumn("text", "why", source=f"{_CHANGE}.why"),
    },
    key=("conversation", "change"),
    meaning="Who became what.",
)

GAME_EXPORTS: Final[Mapping[str, Export]] = {
    "claims": CLAIMS,
    "votes": VOTES,
    "trials": TRIALS,
    "deaths": DEATHS,
    "deeds": DEEDS,
    "nights": NIGHTS,
    "acts": ACTS,
    "role_changes": ROLE_CHANGES,
}

GAME_CONVERSATION_COLUMNS: Final[Mapping[str, ExportColumn]] = {
    "ending": ExportColumn("text", "`win`, `draw` or how else the game ended", source="outcome.ending"),
    "reason": ExportColumn("text", "why it ended", source="outcome.reason"),
    "winners": ExportColumn("texts", "the factions that won", source="outcome.winners[]"),
    "days": ExportColumn("integer", "how many days it lasted", "days", "outcome.days"),
}

_CAST: Final = "record.cast[]"
_PLAYER: Final = "outcome.players[]"
GAME_AGENT_COLUMNS: Final = (
    AgentColumns(
        _CAST,
        "name",
        {
            "role": ExportColumn("text", "the role dealt", source=f"{_CAST}.role"),
            "role_slot": ExportColumn("text", "the entry of the role list that it fills", source=f"{_CAST}.slot"),
            "target": ExportColumn(
                "text", "the player that this one wins by seeing executed", source=f"{_CAST}.target"
            ),
        },
    ),
    AgentColumns(
        _PLAYER,
        "agent",
        {
            "final_role": ExportColumn("text", "the role at the end", source=f"{_PLAYER}.final_role"),
            "faction": ExportColumn("text", "the faction at the end", source=f"{_PLAYER}.faction"),
            "won": ExportColumn("truth", "whether the player won", source=f"{_PLAYER}.won"),
            "alive": ExportColumn("truth", "whether the player was alive at the end", source=f"{_PLAYER}.alive"),
            "death": ExportColumn("text", "what the player died of", source=f"{_PLAYER}.death"),
            "died_on_day": ExportColumn("integer", "when the player died", source=f"{_PLAYER}.died_on_day"),
            "measures": ExportColumn("json", "counts for what is measured", source=f"{_PLAYER}.measures"),
        },
    ),
)
