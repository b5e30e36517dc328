"""Werewolf: wolves kill by night, a seer looks at one seat, the village votes one out each day."""

from statistics import mode

from pydantic import BaseModel, Field

from mac_runner import Ask, Table, game


class Settings(BaseModel):
    wolves: int = Field(default=2, ge=1)


@game(settings=Settings)
def werewolf(table: Table):
    table.rules = "A game of Werewolf. Wolves kill by night; the village votes one out each day."
    alive, day = list(table.agents), 0
    *wolves, seer = table.random("deal").sample(alive, table.settings.wolves + 1)
    role = dict.fromkeys(alive, "villager") | dict.fromkeys(wolves, "wolf") | {seer: "seer"}
    for name in alive:
        table.tell(f"You are a {role[name]}.", to=name, when="Deal")
    table.tell(f"The wolves: {', '.join(wolves)}.", to=wolves, when="Deal")
    while wolves and 2 * len(wolves) < len(alive):
        day += 1
        prey = [name for name in alive if name not in wolves]
        picks = yield [Ask(name, "Name your victim.", choices=prey, default=prey[0]) for name in wolves]
        alive.remove(victim := mode(picks))
        table.tell(f"{victim}, a {role[victim]}, was killed.", when=f"Day {day}", died=victim)
        if seer in alive:
            seen = yield Ask(seer, "Name someone to look at.", choices=alive, default=seer)
            table.tell(f"{seen} is a {role[seen]}.", to=seer, when=f"Day {day}")
        for name in alive:
            said = yield Ask(name, "Say something to the village.", default="")
            table.tell(f"{name}: {said}", when=f"Day {day}")
        votes = yield [Ask(name, "Vote one out.", choices=alive, default=name) for name in alive]
        alive.remove(out := mode(votes))
        table.tell(f"{out}, a {role[out]}, was voted out.", when=f"Day {day}", died=out)
        wolves = [name for name in wolves if name in alive]
    won = {name: (role[name] == "wolf") == bool(wolves) for name in role}
    return {"winner": "wolves" if wolves else "village", "days": day, "roles": role, "won": won}
