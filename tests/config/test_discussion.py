"""The section `discussion`: what is refused at load with file, line and remedy, and what makes a run another one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from mac_runner.config import Loaded, differences
from mac_runner.environments.discussion import DiscussionConfig
from mac_runner.errors import ConfigError

Load = Callable[..., Loaded]
Refusal = Callable[..., list[str]]

QUESTION = json.dumps({"question_id": "q", "question_type": "binary", "question": "Now?"})
TALK = """\
experiment_metadata: {experiment_name: talk}
conversation_config: {environment: discussion, conversations: 2}
discussion:
  topics: [bridges]
model_definitions: {m: {backend: scripted, scripted_config: {policy: discussant}}}
agent_definitions:
  - {agent_id: ann, role: participant, model: m}
  - {agent_id: bob, role: participant, model: m}
  - agent_id: jud
    role: judge
    model: m
    role_specific_config: {speak_after_within_round: [ann]}
"""
ASKING = TALK.replace("topics: [bridges]", "questions: [q.jsonl]")


SECTIONS = {
    "topics: [x], questions: [q.jsonl]": "topics: is given beside questions",
    "topics: [x], stopping: {min_rounds: 9}": "stopping.min_rounds: is more than max_rounds, which is 2",
    "topics: [x], routing_strategy: {topology: star}": "routing_strategy.hub: is missing; a star needs",
    "topics: [x], routing_strategy: {topology: star, hub: anna}": "routing_strategy.hub: there is no agent 'anna'",
    "topics: [x], routing_strategy: {topology: groups}": "routing_strategy.groups: is missing",
    "topics: [x], routing_strategy: {groups: {g: [ann, bo]}}": "routing_strategy.groups.g.1: there is no agent 'bo'",
    "topics: [x], routing_strategy: {channels: {duo: [ann]}}": "routing_strategy.channels.duo: has fewer than two",
    "topics: [x], routing_strategy: {channels: {duo: [ann, bob], Duo: [ann, bob]}}": (
        "routing_strategy.channels.Duo: reads like the channel 'duo'"
    ),
}
AGENTS = {
    ("role: judge", "role: jugde"): "trial.yaml:10: agent_definitions.2.role: the environment 'discussion' has no",
    ("[ann]", "[]"): "trial.yaml:12: agent_definitions.2.role_specific_config.speak_after_within_round: names no",
    ("[ann]", "[anne]"): "there is no agent 'anne'; allowed: ann, bob, jud (did you mean 'ann'?)",
    ("agent_id: bob", "agent_id: ann"): "trial.yaml:8: agent_definitions.1.agent_id: 'ann' is taken",
    ("bob, role: participant", "bob, role: judge"): "'bob' is the judge already",
    ("[ann]", "[ann], visible_to: [amm]"): "2.role_specific_config.visible_to.0: there is no agent 'amm'",
    ("role: participant", "role: moderator"): "hold no agent with the role 'participant'",
}
TOPICS = {
    "max_rounds: 3": "trial.yaml:3: discussion.questions: is missing",
    "questions: [none.jsonl]": "trial.yaml:4: discussion.questions.0: none.jsonl: cannot",
}


def test_bad_discussion_is_refused_with_line_and_remedy(refusal: Refusal, subtests: pytest.Subtests) -> None:
    cases = {
        **{("  topics: [bridges]", f"  {{{new}}}"): f"discussion.{told}" for new, told in SECTIONS.items()},
        **{("topics: [bridges]", new): told for new, told in TOPICS.items()},
        **AGENTS,
    }
    for (old, new), expected in cases.items():
        with subtests.test(new):
            assert old in TALK
            lines = refusal(TALK.replace(old, new))

            assert any(expected in line for line in lines), lines


def test_bad_questions_are_reported_by_their_own_file_and_line(load: Load) -> None:
    Path("q.jsonl").write_text(f"{QUESTION}\n{QUESTION}\n")

    with pytest.raises(ConfigError, match=r"^q.jsonl:2: .* q.jsonl:1"):
        load(ASKING)


def test_questions_are_named_relative_to_the_experiment_file(load: Load) -> None:
    Path("q.jsonl").write_text(QUESTION)
    discussion = load(ASKING).experiment.settings_as(DiscussionConfig)
    assert discussion is not None

    assert [discussion.question_at(index).question_id for index in range(2)] == ["q", "q"]


def test_the_content_of_the_questions_is_part_of_the_identity_and_their_place_is_not(load: Load) -> None:
    Path("q.jsonl").write_text(QUESTION)
    first = load(ASKING).resolved
    Path("moved.jsonl").write_text(QUESTION)
    moved = differences(first, load(ASKING.replace("q.jsonl", "moved.jsonl")).resolved)
    Path("q.jsonl").write_text(QUESTION.replace("Now", "Then"))
    changed = differences(first, load(ASKING).resolved)

    assert ([d.path for d in moved.identity], [d.path for d in moved.runtime]) == ([], ["discussion.questions.files"])
    assert [d.path for d in changed.identity] == ["discussion.questions_sha256"]


def test_a_digest_that_is_given_is_held_to(load: Load, refusal: Refusal) -> None:
    Path("q.jsonl").write_text(QUESTION)
    right = hashlib.sha256(QUESTION.encode()).hexdigest()
    pinned = ASKING.replace("[q.jsonl]", f"[q.jsonl]\n  questions_sha256: {right}")
    assert load(pinned).resolved == load(ASKING).resolved

    Path("q.jsonl").write_text(QUESTION + "\n")
    (message,) = refusal(pinned)
    assert message.startswith("trial.yaml:5: discussion.questions_sha256: ")


def test_the_text_of_a_template_is_part_of_the_identity_and_its_place_is_not(load: Load) -> None:
    text = TALK.replace("topics: [bridges]", "topics: [bridges]\n  prompt: {template_file: t.jinja}")
    Path("t.jinja").write_text("{% block system %}one{% endblock %}")
    first = load(text).resolved
    Path("u.jinja").write_text("{% block system %}one{% endblock %}")
    moved = differences(first, load(text.replace("t.jinja", "u.jinja")).resolved)
    Path("t.jinja").write_text("{% block system %}two{% endblock %}")
    changed = differences(first, load(text).resolved)

    assert ([d.path for d in moved.identity], len(moved.runtime)) == ([], 1)
    assert [d.path for d in changed.identity] == ["discussion.prompt.template"]


def test_a_template_that_cannot_be_read_is_refused(refusal: Refusal) -> None:
    text = TALK.replace("topics: [bridges]", "topics: [bridges]\n  prompt: {template_file: t.jinja}")
    key = "template_file: t.jinja"
    for data, expected in ((None, "cannot be read"), (b"", "0 characters"), (b"\xff", "not UTF-8")):
        if data is not None:
            Path("t.jinja").write_bytes(data)

        (message,) = refusal(text)
        assert message.startswith(f"trial.yaml:5: discussion.prompt.{key}")
        assert expected in message
