"""What a file is refused with: every line of it has a place, says what is wrong, and what to write instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from syrupy.assertion import SnapshotAssertion

from tests.config.conftest import TALK


class File(NamedTuple):
    """The smallest game, with something replaced and something behind it, and the flags of the command."""

    old: str = ""
    new: str = ""
    more: str = ""
    flags: tuple[str, ...] = ()
    profile: str | None = None


OPENAI = "model_definitions.folk={backend: openai, openai_config: {model: m, base_urls: [http://h/v1]}}"
THINKING = ("model: folk", "model: folk, thinking: true, verbosity: low")
PROFILES = "profile: smal\nprofiles: {small: {}, large: {}}\n"
FILES = {
    "the model of an agent is none": File("model: folk", "model: fork"),
    "conversations are no whole groups": File(flags=("conversation_config.samples_per_task=2",)),
    "an agent id is taken twice": File(more="  - {agent_id: player, role: player, model: folk}\n"),
    "a backend has the section of another": File(flags=("model_definitions.folk.backend=vllm",)),
    "a backend would ignore thinking": File(*THINKING),
    "a backend would ignore a part of it": File(*THINKING, flags=(OPENAI,)),
    "seats of an agent that is none": File(flags=("game.seats={palyer: 10}",)),
    "an environment has the section of another": File(
        flags=("conversation_config.environment=discussion", "game.lobby=classic-7")
    ),
    "several problems": File(
        "_name: trial\nconversation_config:\n  environment: town_of_salem\n  conversations: 3",
        "_nam: trial\nconversation_config:\n  environment: town_of_salem\n  conversations: 0",
        "sede: 3\nretry_config:\n  max_retires: 1\n",
    ),
    "profiles that are not chosen": File(more="profiles:\n  a: {gmae: {}, profile: b}\n  b: 3\n"),
    "profiles that are a list": File(more="profiles: [a]\n"),
    "a profile that a flag misspells": File(more=PROFILES.partition("\n")[2], profile="smal"),
    "a profile that the file misspells": File(more=PROFILES),
    "a key is missing in what a profile replaces": File(
        more="profiles:\n  bare:\n    model_definitions:\n      folk: {backend: scripted}\n", profile="bare"
    ),
    "a fleet that no model uses": File(more="fleet: {gpus: 2}\n"),
}
TALKS = {
    "identities that are never shown": "topics: [bridges], max_rounds: 1, "
    "identity_reveal_config: {presence_mode: all_ai}"
}


def test_wording_of_refusals(refusal: Callable[..., list[str]], game_text: str, snapshot: SnapshotAssertion) -> None:
    """The texts are in `__snapshots__`."""
    said = {}
    for name, file in FILES.items():
        assert file.old in game_text, name
        text = game_text.replace(file.old, file.new) if file.old else game_text
        said[name] = refusal(text + file.more, overrides=file.flags, profile=file.profile)
    agent = "  - {agent_id: ann, role: participant, model: m}\n"
    for name, section in TALKS.items():
        said[name] = refusal(TALK.replace("topics: [bridges]", section) + agent)
    for text in ("3", "[a]", "just words", "~"):
        said[f"a file that is {text}"] = refusal(text)

    assert said == snapshot
