"""The Nurse, a role of Town of Salem that the package does not have: it protects, and has notices of its own."""

from mac_runner import EndedConversation
from mac_runner.environments.town_of_salem.roles import (
    TOWN_GOAL,
    Alignment,
    Faction,
    Level,
    NightAbility,
    NightAction,
    NightState,
    Notice,
    Protection,
    Role,
    Says,
    Step,
    others,
    register,
)

NURSED = Notice(name="nursed", words="A Nurse sat with you.", befalls="they were nursed")
WOUND = Notice(
    name="wound",
    words="You dressed the wounds of {target}.",
    says=Says.ATTACKED,
    is_finding=True,
)


def nurse(night: NightState, action: NightAction) -> None:
    house = night.house(action)
    night.protect(house, Protection(action.seat, "nursed", Level.BASIC, WOUND))
    night.notify(house, NURSED)


NURSE = Role(
    name="Nurse",
    faction=Faction.TOWN,
    alignment=Alignment.TOWN_PROTECTIVE,
    card="Each night nurse one player: they survive basic attacks, and you learn of them.",
    goal=TOWN_GOAL,
    group="town",
    investigator_group=9,
    abilities=(
        NightAbility(
            verb="nurse",
            help="let that player survive basic attacks tonight",
            step=Step.PROTECT,
            effect=nurse,
            aims=others,
            protects=True,
            tactic="protect",
            account="I sat up with {target}",
        ),
    ),
)
register(NURSE)


def nursing(conversation: EndedConversation) -> dict[str, float]:
    """A shaped reward of nothing: the experiment names it, so that this file is imported."""
    return {agent.name: 0.0 for agent in conversation.agents}
