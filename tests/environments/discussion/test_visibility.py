"""Who reads whom, and who agents are: in grammatical words for themselves, and for others as far and as early as shown.

Over random discussions nobody reads more than the routing allows.
"""

from __future__ import annotations

import json
import re
from itertools import permutations, product
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml
from syrupy.assertion import SnapshotAssertion

from mac_runner.config import Experiment
from mac_runner.environments import Conversation
from mac_runner.environments.discussion import DiscussionConfig
from mac_runner.environments.discussion.testing import (
    DiscussionConversation,
    DiscussionView,
    IdentityRevealConfig,
    RoutingStrategy,
    aside_field,
    identity_of,
    readable,
)
from mac_runner.environments.testing import article, phrase
from mac_runner.types import JsonValue, Prompt, Reply, Turn
from tests.environments.discussion.table import (
    agent,
    all_say,
    opened,
    read_by,
    reply,
    result,
    say,
    shown,
    talk,
    turn_of,
)

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
    routing: JsonValue = {"topology": "groups", "groups": {"x": ["cat"]}, "channels": {"duo": ["ann", "bob"]}}
    conversation = opened(talk(*map(agent, ("ann", "bob", "cat")), routing_strategy=routing))
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
    conversation = opened(experiment)
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


# Identities.

PHRASES: list[list[Any]] = yaml.safe_load(Path(__file__).with_name("phrases.yaml").read_text(encoding="utf-8"))
ARTICLES = {
    "an": "hour honest heir honorary MBA HR FBI LGBT SUV umbrella uninvited unimpressed American 8 80-year-old X-ray",
    "a": "university unique European one-armed user usual UN CEO PhD Ukrainian Ugandan house 7 100-year-old B-list",
}


def test_an_identity_is_a_grammatical_phrase() -> None:
    found = [[persona, demographics, phrase(persona, demographics)] for persona, demographics, _ in PHRASES]

    assert found == PHRASES
    for an, words in ARTICLES.items():
        assert {word: article(word) for word in words.split()} == dict.fromkeys(words.split(), an)


def test_an_agent_is_told_its_id_and_who_it_is() -> None:
    conversation = opened(talk(agent("ann", persona="economist", demographics={"age": "elderly"}), agent("bob")))
    system = conversation.prompt(conversation.turns()[0]).messages[0]

    assert (system.role, ", an elderly economist." in system.content) == ("system", True)
    assert "You are bob." in read_by(conversation, "bob")
    for as_human, told in {True: "as a human and speak as one.", False: "as an AI", None: ""}.items():
        own = identity_of(agent("ann", if_as_human=as_human), IdentityRevealConfig()).own
        assert told in own
        assert ("You take part" in own) == bool(told)
    persona = "You value fairness. You speak little."
    who = agent("ann", persona=persona, demographics={"age": "elderly"})
    assert identity_of(who, IdentityRevealConfig()).own.endswith(f"an elderly person. {persona}")


def test_others_see_of_an_agent_what_is_revealed() -> None:
    who = agent("ann", persona="economist", demographics={"age": "elderly"}, if_as_human=True)
    cases: list[tuple[dict[str, JsonValue], str]] = [
        ({}, ""),
        ({"persona": True}, "an economist"),
        ({"demographics": True}, "an elderly person"),
        ({"persona": True, "demographics": True}, "an elderly economist"),
        ({"presence_mode": "as_declared"}, "a human"),
        ({"presence_mode": "all_ai", "persona": True}, "an economist, an AI"),
        ({"presence_mode": "all_human"}, "a human"),
    ]
    for reveal, told in cases:
        assert identity_of(who, IdentityRevealConfig.model_validate(reveal)).shown == told, reveal


def test_with_everything_hidden_others_see_ids_only() -> None:
    hidden = agent("ann", persona="economist", demographics={"age": "elderly"}, if_as_human=True)
    conversation = opened(talk(hidden, agent("bob")))
    for name in ("ann", "bob"):
        assert ("elderly" in read_by(conversation, name)) == (name == "ann")
        all_say(conversation, "The boy", name)

    prompt = read_by(conversation, "bob")
    assert "\n- ann\n" in prompt
    assert ' speaker="ann" answer="' in prompt
    assert not any(word in prompt for word in ("elderly", "economist", "human", "identity="))


def test_what_is_revealed_stands_with_every_statement_and_in_the_list_of_others() -> None:
    people = (agent("ann", persona='the "best" <b>economist'), agent("bob"))
    conversation = opened(talk(*people, identity_reveal_config={"persona": True}))
    all_say(conversation, "The boy")

    prompt = read_by(conversation, "bob")
    assert ' a "best" <b>economist\n' in prompt
    assert "identity=\"a 'best' ‹b›economist\"" in prompt


# Identities that are revealed from a round on, and their parts in templates.

TEXT = "a 34-year-old Black woman from Ohio"
PEOPLE = (
    agent("ann", persona="economist", demographics={"age": "elderly"}, if_as_human=True),
    agent("bob", demographics=TEXT),
    agent("mod", "moderator"),
)
SHOWN: dict[str, JsonValue] = {"persona": True, "demographics": True, "presence_mode": "as_declared"}
ANN = "an elderly economist, a human"
WORDS = ("elderly", "economist", "Ohio", "a human")


def revealing(from_round: int | None = None, *, max_rounds: int = 4, **prompt: str) -> Experiment:
    reveal = SHOWN if from_round is None else {**SHOWN, "reveal_from_round": from_round}
    return talk(*PEOPLE, max_rounds=max_rounds, identity_reveal_config=reveal, prompt=dict(prompt))


def play_round(conversation: DiscussionConversation, ann: str = "The boy", bob: str = "The boy") -> None:
    all_say(conversation, ann, "ann")
    all_say(conversation, bob, "bob")
    say(conversation, "mod", "They talk.")


def sent(experiment: Experiment, reader: str, rounds: int) -> list[tuple[str, str]]:
    """The system and the user message of an agent, round by round."""
    conversation, found = opened(experiment), []
    for _ in range(rounds):
        system, user = conversation.prompt(turn_of(conversation, reader)).messages
        found.append((system.content, user.content))
        play_round(conversation)
    return found


def test_before_the_round_others_see_ids_only_and_from_it_on_all_that_is_shown() -> None:
    for place, first in product(("system", "last"), (2, 3)):
        for number, (system, user) in enumerate(sent(revealing(first, identity_place=place), "mod", 4), start=1):
            # With `last` the roster names every agent, so only the moderator reads it, who has no identity of its own.
            assert not any(word in system for word in WORDS), (place, number)
            assert [word in user for word in WORDS] == [number >= first] * len(WORDS), (place, number)


def test_the_system_message_stays_the_same_and_the_roster_comes_first() -> None:
    found = sent(revealing(), "bob", 3)

    assert len({system for system, _ in found}) == 1
    for _, user in found[1:]:
        roster = f"Who the others are:\n- ann, {ANN}\n\nWhat was said:\n"
        assert user.startswith(roster)
        assert f'speaker="ann" identity="{ANN}"' in user
    assert "the others are" not in found[0][1]
    for system, user in sent(revealing(1), "bob", 3):
        assert f"\n- ann, {ANN}\n" in system, "revealed from the first round all is in the system message"
        assert "the others are" not in user


def test_where_nothing_is_shown_the_round_changes_nothing() -> None:
    plain, late = (talk(*PEOPLE, max_rounds=1, identity_reveal_config={"reveal_from_round": n}) for n in (1, 9))

    assert IdentityRevealConfig(reveal_from_round=9) == IdentityRevealConfig()
    assert sent(plain, "bob", 1) == sent(late, "bob", 1)


def test_changes_and_followings_before_the_round_are_of_agents_not_shown() -> None:
    conversation = opened(revealing(3, max_rounds=3))
    play_round(conversation, "The boy", "The grandmother")
    play_round(conversation, "The grandmother", "The grandmother")  # ann follows bob, whom she knows by his id only.
    play_round(conversation, "The boy", "The boy")

    outcome, ann = result(conversation), ANN
    # The moderator's identity is no participant's; in the last round nobody had read another answer than its own.
    assert outcome["changes_by_identity"] == {"(not shown)": [1, 2], TEXT: [1, 1], ann: [1, 1]}
    assert outcome["influence"] == {"(not shown)": [1, 2]}
    agents: Any = outcome["agents"]
    assert (agents["ann"]["shown"], agents["ann"]["shown_from"]) == (ann, 3)


TEMPLATE = """\
{% block system %}
I am an AI agent assisting {{ demographics_text }}|{{ demographics.age }}|{{ demographics.home }}|{{ persona }}|\
{{ if_as_human }}
{% for other in others %}
{{ other.agent }}:{{ other.persona }}:{{ other.demographics.age }}:{{ other.demographics_text }}:{{ other.shown }}
{% endfor %}
{% endblock %}
{% block later_round %}
{% for other in members %}
{{ other.agent }}:{{ other.persona }}:{{ other.demographics.age }}:{{ other.demographics_text }}:\
{% if other.if_as_human is none %}?{% else %}{{ other.if_as_human }}{% endif %}

{% endfor %}
{{ roster | map(attribute="agent") | join("+") }}
{% endblock %}
"""


@pytest.mark.ci
def test_templates_have_all_of_the_agent_and_of_others_what_is_revealed(snapshot: SnapshotAssertion) -> None:
    people = (
        agent("ann", persona="economist", demographics={"age": "elderly", "home": "Oslo"}, if_as_human=True),
        agent("bob", demographics=TEXT, persona="clerk", if_as_human=False),
    )
    reveal: JsonValue = {"demographics": True, "presence_mode": "all_human"}
    text = {"template_file": "own.jinja", "template": TEMPLATE}
    conversation = opened(talk(*people, max_rounds=2, identity_reveal_config=reveal, prompt=dict(text)))
    systems = [read_by(conversation, name).splitlines()[:2] for name in ("ann", "bob")]
    all_say(conversation, "The boy")

    later = conversation.prompt(turn_of(conversation, "bob")).messages[1].content.splitlines()
    assert [*systems, later] == snapshot


def test_demographics_as_a_text_are_said_and_shown_as_they_are_written() -> None:
    grown = "You grew up in Ohio."
    for persona, text, own, seen_as in (
        (None, TEXT, f", {TEXT}.", TEXT),
        ("nurse", TEXT, f", {TEXT}, a nurse.", f"{TEXT}, a nurse"),
        (None, f"{grown} ", f". {grown}", f"who is described so: {grown}"),
        (None, "  ", ".", ""),
    ):
        who = agent("ann", persona=persona, demographics=text)
        told = identity_of(who, IdentityRevealConfig(persona=True, demographics=True))

        assert (told.own, told.shown) == (f"You are ann{own}", seen_as)
        assert identity_of(who, IdentityRevealConfig()).shown == ""
    assert phrase(None, TEXT) == TEXT
