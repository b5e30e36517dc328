"""A game of two players who choose in secret, round after round, whether to share or to take.

This file is the whole environment. `new_game.yaml` names it and says who plays. The function below yields what it asks
and gets the answers back. It runs again from its recorded answers when a run goes on after a stop, so it may use no
clock, no file, no global variable, and no chance but `table.random`.
"""

from random import Random

from pydantic import BaseModel, Field

from mac_runner import Ask, AskView, Table, game

PAYOFF = {("share", "share"): 3, ("share", "take"): 0, ("take", "share"): 5, ("take", "take"): 1}
"""What a player earns with its choice and that of the other."""


class Settings(BaseModel):
    """The `settings:` of the experiment file. Others than these are refused."""

    rounds: int = Field(default=5, ge=1, le=100)
    """How often the two choose."""
    has_talk: bool = True
    """Whether they say something before they choose."""


def tit_for_tat(view: AskView, random: Random) -> str:
    """A scripted player: shares at first, and then does what the other did. `view` is what its agent has read."""
    if view.ask.choices is None:
        return "Let us share."
    choices = [told.data["choices"] for told in view.told if "choices" in told.data]
    return choices[-1][next(name for name in choices[-1] if name != view.ask.agent)] if choices else "share"


# `seats`: two definitions of the experiment file or more rotate over two seats, which have these names.
@game(settings=Settings, seats=2, names=("Ann", "Ben"), players={"tit_for_tat": tit_for_tat})
def new_game(table: Table):
    """The game, from its rules to its outcome."""
    table.rules = (
        f"{' and '.join(table.agents)} choose {table.settings.rounds} times, in secret, to share or to take. "
        "Both share: 3 points each. Both take: 1 point each. Else who takes gets 5, and who shares gets 0."
    )
    points = dict.fromkeys(table.agents, 0)
    for number in range(1, table.settings.rounds + 1):
        when = f"Round {number}"
        if table.settings.has_talk:
            for name in table.agents:
                # Without choices the answer is the agent's words. The next one reads them, so they are asked in turn.
                words = yield Ask(name, "Say one sentence to the other player.", default="")
                table.tell(f"{name}: {words}", when=when)
        # A list is asked together: neither reads what the other answered. `default` is what counts when a reply cannot
        # be used, after corrections.
        answers = yield [
            Ask(name, "Share or take?", choices=("share", "take"), default="share") for name in table.agents
        ]
        choices = dict(zip(table.agents, answers, strict=True))
        for name, other in (table.agents, table.agents[::-1]):
            points[name] += PAYOFF[choices[name], choices[other]]
        # All read the text. `choices` is data for readers of the record and for scripted players.
        table.tell(", ".join(f"{name} chose to {choices[name]}" for name in choices) + ".", when=when, choices=choices)
    # The outcome: numbers, yes or no, and these by agent are counted in the summary.
    return {"points": points, "total": sum(points.values()), "is_even": len(set(points.values())) == 1}
