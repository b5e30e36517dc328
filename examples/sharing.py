"""Sharing: two players take a fruit each, one after the other; each alone knows which fruit it likes.

The first to move cannot know what the other likes. The second hears what is taken, and has to do with the rest. The
game has no secret code and no trust in it: `examples/grpo.py` is about learning, and its model learns this game in
minutes.
"""

from random import Random

from pydantic import BaseModel, Field

from mac_runner import Ask, AskView, Table, game

FRUIT = ("apple", "banana", "cherry", "grape", "lemon", "melon", "orange", "plum")


class Settings(BaseModel):
    """The `settings:` of the experiment file."""

    fruit: int = Field(default=4, ge=2, le=len(FRUIT))
    """How many kinds of fruit there are, one of each."""
    other: float = Field(default=0.25, ge=0, le=1)
    """What a fruit is worth to a player who likes another one, whose worth is 1."""
    has_rules: bool = True
    """Whether the prompts say the rules. A model that knows no language need not read them."""


def keen(view: AskView, random: Random) -> str:
    """A scripted player, the best there is: it takes what it likes, or else another fruit."""
    known = {key: value for told in view.told for key, value in told.data.items()}
    left = [fruit for fruit in known["fruit"] if fruit != known.get("taken")]
    return str(known["liked"] if known["liked"] in left else random.choice(left))


@game(settings=Settings, seats=2, names=("Ann", "Bob"), players={"keen": keen})
def sharing(table: Table):
    """One fruit for each."""
    settings, draw = table.settings, table.random("tastes")
    fruit = FRUIT[: settings.fruit]
    if settings.has_rules:
        table.rules = (
            f"There is one of each: {', '.join(fruit)}. {' and then '.join(table.agents)} take one, in one word. "
            f"The fruit that you like is worth 1 to you, another one {settings.other}, one that is gone 0."
        )
    payoff, taken = dict.fromkeys(table.agents, 0.0), []
    for name in table.agents:
        liked = draw.choice(fruit)
        table.tell(f"You like {liked}.", to=name, when="Taste", liked=liked, fruit=fruit)
        said = yield Ask(name, "Take a fruit.", default="nothing")
        word = said.split()[0].strip(".,!").casefold()
        if word in fruit and word not in taken:
            taken.append(word)
            payoff[name] = 1.0 if word == liked else settings.other
            table.tell(f"{name} took {word}.", when="Move", taken=word)
    return {"taken": taken, "payoff": payoff, "total": sum(payoff.values())}
