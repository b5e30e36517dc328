"""Who reads whom: each rule of the routing, and over random discussions nothing beyond it."""

from __future__ import annotations

import json
import re
from itertools import permutations
from random import Random

import pytest
from syrupy.assertion import SnapshotAssertion

from mac_runner.config import Experiment
from mac_runner.environments import Conversation
from mac_runner.environments.discussion import DiscussionConfig
from mac_runner.environments.discussion.testing import (
    DiscussionEnvironment,
    DiscussionView,
    RoutingStrategy,
    aside_field,
    readable,
)
from mac_runner.plan import plan_tasks
from mac_runner.types import JsonValue, Prompt, Reply, Turn
from tests.environments.discussion.table import agent, all_say, opened, read_by, reply, shown, talk

FOUR = ("ann", "bob", "cat", "dan")
ROLE_FIELDS = {
    "participant": ("rationale", "answer"),
    "moderator": ("summary", "question"),
    "devils_advocate": ("argument", "alternative"),
    "judge": ("rationale", "verdict"),
}


def reads(routing: RoutingStrategy, **visible_to: frozenset[str]) -> dict[str, str]:
    found = readable(routing, FOUR, {name: visible_to.get(name) for name in FOUR})
    return {reader: " ".join(sorted(others)) for reader, others in found.items()}


def test_each_topology_lets_read_whom_it_says_and_visible_to_narrows_it() -> None:
    all_of = {"ann": "bob cat dan", "bob": "ann cat dan", "cat": "ann bob dan", "dan": "ann bob cat"}
    assert reads(RoutingStrategy()) == all_of
    narrowed = {**all_of, "ann": "bob cat", "cat": "bob", "dan": "bob cat", "bob": "ann cat"}
    assert reads(RoutingStrategy(), ann=frozenset({"bob"}), dan=frozenset()) == narrowed
    ring = {"ann": "bob dan", "bob": "ann cat", "cat": "bob dan", "dan": "ann cat"}
    assert reads(RoutingStrategy(topology="ring")) == ring
    star = {"ann": "cat", "bob": "cat", "cat": "ann bob dan", "dan": "cat"}
    assert reads(RoutingStrategy(topology="star", hub="cat")) == star
    groups = RoutingStrategy(topology="groups", groups={"one": ("ann", "bob"), "two": ("bob", "cat")})
    assert reads(groups) == {"ann": "bob", "bob": "ann cat", "cat": "bob", "dan": ""}


def test_a_private_channel_reaches_its_members_and_nobody_else() -> None:
    conversation = opened(
        talk(
            agent("ann"),
            agent("bob"),
            agent("cat"),
            routing_strategy={"topology": "groups", "groups": {"x": ["cat"]}, "channels": {"duo": ["ann", "bob"]}},
        )
    )
    reply(conversation, "ann", rationale="open", answer="The boy", to_duo="psst")
    for name in ("bob", "cat"):
        assert "psst" not in read_by(conversation, name)
        reply(conversation, name, rationale="open", answer="The boy", to_duo="not for cat to write")

    assert ' speaker="ann">psst</aside>' in read_by(conversation, "bob")
    assert "psst" not in read_by(conversation, "cat")
    assert "to_duo" not in read_by(conversation, "cat")
    assert "not for" in read_by(conversation, "ann")
    assert sum("not for" in str(event) for event in conversation.record()["events"]) == 1  # type: ignore[union-attr]


def test_own_words_are_told_as_such_and_those_of_others_under_their_name(snapshot: SnapshotAssertion) -> None:
    conversation = opened(talk(agent("ann"), agent("bob")))
    all_say(conversation, "The boy")

    prompt = read_by(conversation, "ann")
    assert [line for line in prompt.splitlines() if "</statement>" in line] == snapshot


def test_the_order_of_replies_shows_in_no_prompt() -> None:
    names = ("ann", "bob", "cat")
    prompts = set()
    for order in permutations(names):
        conversation = opened(talk(*map(agent, names)))
        all_say(conversation, "The boy", *order)
        prompts.add(tuple(read_by(conversation, name) for name in names))

    assert len(prompts) == 1


# Over random discussions every message carries marks of its own, and each prompt is searched for all of them.


def some_of(names: list[str], random: Random) -> list[str]:
    return random.sample(names, random.randint(0, len(names)))


def random_experiment(random: Random) -> Experiment:
    names = [f"a{number}" for number in range(random.randint(2, 6))]
    agents = []
    for number, name in enumerate(names):
        after = random.sample(names[:number], random.randint(0, number))
        roles = ["participant", "participant", "moderator", "devils_advocate"]
        role = "participant" if number == 0 else random.choice(roles)
        if number == len(names) - 1 and "a0" in after:
            role = "judge"
        visible_to = some_of(names, random) if random.random() < 0.4 else None
        agents.append(agent(name, role, after=after, visible_to=visible_to))
    pairs = {f"c{i}": random.sample(names, random.randint(2, len(names))) for i in range(random.randint(0, 2))}
    routing: dict[str, JsonValue] = {
        "history_rounds": random.choice([1, 2, None]),
        "topology": random.choice(["everyone", "ring", "star", "groups"]),
        "hub": random.choice(names),
        "groups": {"g": [*some_of(names, random)], "h": [*some_of(names, random)]},
        "channels": {name: [*members] for name, members in pairs.items()},
    }
    return talk(*agents, max_rounds=4, routing_strategy=routing)


def marked(conversation: Conversation, experiment: Experiment, turn: Turn) -> Reply:
    role = next(each.role for each in experiment.agent_definitions if each.agent_id == turn.agent)
    words, choice = ROLE_FIELDS[role]
    said = {words: f"mark-{turn.round}-{turn.agent}-open.", choice: "The boy" if role != "devils_advocate" else "z"}
    if role == "devils_advocate":
        view = conversation.prompt(turn).view
        assert isinstance(view, DiscussionView)
        said[choice] = "The grandmother" if view.majority != "y" else "The boy"
    if role == "judge":
        said[choice] = "continue" if turn.round < 3 else "The boy"
    for channel, members in experiment.settings_as(DiscussionConfig).routing_strategy.channels.items():
        if turn.agent in members:
            said[aside_field(channel)] = f"mark-{turn.round}-{turn.agent}-{channel}."
    return Reply(text=json.dumps(said))


def lawful(experiment: Experiment, turn: Turn) -> set[str]:
    """The marks a turn may see, worked out from the rules anew."""
    routing = experiment.settings_as(DiscussionConfig).routing_strategy
    names = [each.agent_id for each in experiment.agent_definitions]
    configs = {each.agent_id: each.role_specific_config for each in experiment.agent_definitions}
    me = turn.agent
    marks = set()
    for number in range(turn.round + 1):
        if routing.history_rounds is not None and number < turn.round - routing.history_rounds:
            continue
        for other in names:
            if number == turn.round:
                may_read = may_listen = other in configs[me].speak_after_within_round
            else:
                listed = configs[other].visible_to
                near = {
                    "everyone": True,
                    "ring": (names.index(me) - names.index(other)) % len(names) in (1, len(names) - 1),
                    "star": routing.hub in (me, other),
                    "groups": any({me, other} <= set(members) for members in routing.groups.values()),
                }[routing.topology]
                may_read = other == me or (near and (listed is None or me in listed))
                may_listen = True
            if may_read:
                marks.add(f"mark-{number}-{other}-open.")
            for channel, members in routing.channels.items():
                if may_listen and me in members and other in members:
                    marks.add(f"mark-{number}-{other}-{channel}.")
    return marks


def seen(prompt: Prompt) -> tuple[set[str], set[str]]:
    """The marks in the words of a prompt, and those in its view."""
    pattern = re.compile(r"mark-\d+-a\d+-\w+\.")
    return set(pattern.findall(shown(prompt))), set(pattern.findall(repr(prompt.view)))


def watch_discussion(seed: int) -> int:
    """Play a random discussion and search each of its prompts; how many there were."""
    random = Random(seed)
    experiment = random_experiment(random)
    conversation = DiscussionEnvironment(experiment).open(next(iter(plan_tasks(experiment, None))))
    count = 0
    while turns := conversation.turns():
        waiting = {turn.agent for turn in turns}
        turn = random.choice([turn for turn in turns if not turn.after & waiting])
        prompt = conversation.prompt(turn)
        assert seen(prompt) == (lawful(experiment, turn), lawful(experiment, turn)), turn.key
        conversation.receive(turn, marked(conversation, experiment, turn))
        count += 1

    assert count == 4 * len(experiment.agent_definitions)
    return count


@pytest.mark.parametrize("seed", range(60))
def test_nothing_leaks_over_random_routings(seed: int) -> None:
    assert watch_discussion(seed)
