"""What makes a run another one, and what does not."""

from __future__ import annotations

import copy
import hashlib
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from mac_runner.config import Difference, Experiment, differences, identity_of
from mac_runner.config.testing import file_schema, parse_document
from mac_runner.section import Bearing, leaf_fields
from mac_runner.types import JsonObject, JsonValue
from tests.config.conftest import ANN, GAME, TALK, VLLM, loaded, refused, with_model

LEAVES = {".".join(map(str, path)): field for path, field in leaf_fields(Experiment)}

RUNTIME_KEYS = {
    "conversation_config": "conversations step_limit_s",
    "discussion": "questions.files prompt.template_file",
    "experiment_metadata": "description",
    "fleet": "enable_mig first_port gpus max_agents_per_gpu max_gpus probe.stall_s probe.start_s restart.budget "
    "restart.per_s swap.policy swap.residency_s",
    "game": "template_file",
    "limits": "tokens usd hours",
    "metric_plugins.*": "distribution version sha256 path",
    "model_definitions.*": "usd_per_hour usd_per_mtok.cached usd_per_mtok.completion usd_per_mtok.prompt",
    "model_definitions.*.anthropic_config": "base_url api_key_env max_in_flight prompt_caching stall_s timeout_s",
    "model_definitions.*.fleet_config": "chat_template.path command lanes max_num_seqs "
    "tensor_parallel_size timeout_s weight_updates",
    "model_definitions.*.latency": "prefill_ms kernel_ms quantum",
    "model_definitions.*.nano_config": "gpu_memory_utilization kv_cache_gib max_num_batched_tokens "
    "max_num_seqs_upper_bound tensor_parallel_size data_parallel_size",
    "model_definitions.*.ollama_config": "host keep_alive max_in_flight stall_s timeout_s",
    "model_definitions.*.openai_config": "base_urls admin_key_env api_key_env max_in_flight reply_limit_parameter "
    "stall_s timeout_s weights_dir",
    "model_definitions.*.scripted_config": "capacity latency_ms",
    "model_definitions.*.vllm_config": "max_num_seqs_upper_bound tensor_parallel_size data_parallel_size "
    "gpu_memory_utilization admission",
    "plugins.*": "path runtime_settings",
    "report": "baseline primary",
    "retry_config": "engine_patience_s max_attempts backoff_s backoff_s_max request_deadline_s",
    "rewards": "total",
    **dict.fromkeys(
        ("game.latency.calibration", "model_definitions.*.latency.calibration"),
        "file model gpu engine in_flight prompt_tokens context_tokens",
    ),
}
RUNTIME = {f"{section}.{key}" for section, keys in RUNTIME_KEYS.items() for key in keys.split()} | {
    "metrics",
    "profile",
}


def test_every_field_says_how_it_bears_on_identity(subtests: pytest.Subtests) -> None:
    for path, field in LEAVES.items():
        with subtests.test(path):
            marks = [mark for mark in field.metadata if isinstance(mark, Bearing)]

            assert len(marks) == 1, (
                f"{path} is not classed. Annotate it with IDENTITY if changing it changes what the results mean, or "
                "with RUNTIME if it only changes how fast or where they are made; then it joins the list in this test. "
                "What is filled in from the version at hand is RECORDED."
            )


def test_every_key_is_described_by_the_docstring_under_it() -> None:
    """Editors show it."""
    schema: Any = file_schema()
    keys = {
        f"{name}.{key}": found
        for name, part in schema["$defs"].items()
        for key, found in part.get("properties", {}).items()
    }

    assert [key for key, found in {**keys, **schema["properties"]}.items() if not found.get("description")] == []


def test_what_is_filled_in_from_this_version_is_compared_and_is_no_part_of_a_digest() -> None:
    now = loaded(GAME)
    earlier = loaded(GAME, overrides=["game.roles=[sheriff]"])

    assert {path for path, field in LEAVES.items() if Bearing.RECORDED in field.metadata} == {"game.roles"}
    assert [found.path for found in differences(now.resolved, earlier.resolved).identity] == ["game.roles"]
    assert identity_of(now.experiment) == identity_of(earlier.experiment)


def test_the_runtime_fields_are_these() -> None:
    assert {path for path, field in LEAVES.items() if Bearing.RUNTIME in field.metadata} == RUNTIME


@pytest.fixture
def resolved() -> JsonObject:
    return loaded(GAME).resolved


def test_equal_configs_do_not_differ(resolved: JsonObject) -> None:
    assert differences(resolved, copy.deepcopy(resolved)) == ((), ())


# An agent with another id is another agent: one removed and one added.
def test_change_of_any_field_is_classed_as_the_field_is(subtests: pytest.Subtests) -> None:
    """One case for each field: it is what differs, in the class that it is marked with, by name, with both values."""
    for path in sorted(LEAVES.keys() - {"agent_definitions.*.agent_id"}):
        with subtests.test(path):
            keys = path.replace("*", "one").split(".")
            found = differences(_nested(keys, "old"), _nested(keys, "new"))

            expected = (Difference(".".join(keys), "old", "new"),)
            assert found == (((), expected) if path in RUNTIME else (expected, ()))


def _nested(keys: list[str], value: str) -> JsonObject:
    """A config with only the value at `keys`; agents are a list and named by their id."""
    if keys[0] == "agent_definitions":
        return {"agent_definitions": [{"agent_id": "one", **_nested(keys[2:], value)}]}
    return {keys[0]: value if len(keys) == 1 else _nested(keys[1:], value)}


FOLK = "model_definitions.folk"
RUNTIME_CHANGES: dict[str, tuple[str, JsonValue, JsonValue]] = {
    "conversation_config.conversations=9": ("conversation_config.conversations", 3, 9),
    f"{FOLK}.scripted_config.capacity=9": (f"{FOLK}.scripted_config.capacity", 64, 9),
    "retry_config.max_attempts=9": ("retry_config.max_attempts", 5, 9),
    "experiment_metadata.description=x": ("experiment_metadata.description", "", "x"),
    f"{FOLK}.usd_per_mtok={{prompt: 1, completion: 2}}": (
        *(f"{FOLK}.usd_per_mtok", None),
        {"prompt": 1.0, "cached": None, "completion": 2.0},
    ),
    f"{FOLK}.usd_per_hour=2.5": (f"{FOLK}.usd_per_hour", None, 2.5),
}
IDENTITY_CHANGES: dict[str, tuple[str, JsonValue, JsonValue]] = {
    "seed=1": ("seed", 0, 1),
    "game.lobby=[Doctor]": ("game.lobby", "classic-10", ["Doctor"]),
    "game.seats={player: 10}": ("game.seats", None, {"player": 10}),
    "game.flags.mafia_parity=true": ("game.flags.mafia_parity", False, True),
    "agent_definitions.0.temperature=0": ("agent_definitions.player.temperature", 1.0, 0.0),
    "retry_config.max_retries=1": ("retry_config.max_retries", 2, 1),
    f"{FOLK}.scripted_config.policy=heuristic": (f"{FOLK}.scripted_config.policy", "random", "heuristic"),
}


def test_an_identity_change_is_another_run_and_a_runtime_change_is_not(
    resolved: JsonObject, subtests: pytest.Subtests
) -> None:
    for override, change in {**RUNTIME_CHANGES, **IDENTITY_CHANGES}.items():
        with subtests.test(override):
            found, expected = differences(resolved, loaded(GAME, overrides=[override]).resolved), Difference(*change)

            assert found == (((), (expected,)) if override in RUNTIME_CHANGES else ((expected,), ()))


def test_an_engine_added_or_removed_is_another_run(resolved: JsonObject) -> None:
    more = "model_definitions.spare={backend: scripted, scripted_config: {policy: random}}"
    added = loaded(GAME, overrides=[more]).resolved

    assert [difference.path for difference in differences(resolved, added).identity] == ["model_definitions.spare"]
    assert differences(added, resolved).identity[0].new is None


def test_an_agent_added_or_moved_is_another_run(resolved: JsonObject) -> None:
    other = "  - {agent_id: other, role: player, model: folk}\n"
    added = loaded(GAME + other).resolved
    moved = loaded(GAME.replace("agent_definitions:\n", "agent_definitions:\n" + other)).resolved

    assert differences(resolved, added).identity == (Difference("agent_definitions", ["player"], ["player", "other"]),)
    assert differences(added, moved).identity == (
        Difference("agent_definitions", ["player", "other"], ["other", "player"]),
    )


def test_a_field_this_version_does_not_know_is_identity(resolved: JsonObject) -> None:
    assert differences({**resolved, "later": 1}, resolved).identity == (Difference("later", 1, None),)


def test_true_is_not_one(resolved: JsonObject) -> None:
    assert differences({**resolved, "seed": 1}, {**resolved, "seed": True}).identity


ENGINE = (
    "backend: vllm, vllm_config: {model: q, enforce_eager: true, hf_overrides: {a: [1]}, chat_template_kwargs: {b: 1}}"
)


def test_engine_arguments_the_schema_does_not_name_are_kept_and_changing_them_makes_another_run() -> None:
    text = with_model(GAME, ENGINE)
    before: Any = loaded(text).resolved
    section = before["model_definitions"]["folk"]["vllm_config"]
    changes: dict[str, tuple[JsonValue, JsonValue]] = {
        "enforce_eager": (True, False),
        "hf_overrides.a": ([1], [2]),
        "chat_template_kwargs.b": (1, 2),
        "swap": (None, 3),
    }

    assert (section["enforce_eager"], section["hf_overrides"]) == (True, {"a": [1]})
    assert section["admission"] == "token_budget"
    jsonschema.validate(parse_document(text.encode(), "f").value, file_schema())
    for key, (old, new) in changes.items():
        override = f"model_definitions.folk.vllm_config.{key}"
        after = loaded(text, overrides=[f"{override}={str(new).lower()}"]).resolved

        assert differences(before, after) == ((Difference(override, old, new),), ())


def test_each_form_of_replies_makes_another_run_and_its_default_does_not() -> None:
    default = f"{VLLM}, constrained_decoding: schema, reply_form: null"
    free = f"{VLLM}, constrained_decoding: none"
    plain, written, *others = (
        identity_of(loaded(with_model(GAME, model)).experiment)
        for model in (VLLM, default, free, f"{free}, reply_form: json")
    )

    assert written == plain
    assert len({plain, *others}) == 3


QUESTION = json.dumps({"question_id": "q", "question_type": "binary", "question": "Now?"})
BLOCK = "{% block system %}one{% endblock %}"


@pytest.mark.parametrize(
    ("key", "content", "other", "place", "identity"),
    [
        ("questions: [FILE]", QUESTION, QUESTION.replace("Now", "Then"), "questions.files", "questions_sha256"),
        (
            *("topics: [x], prompt: {template_file: FILE}", BLOCK, BLOCK.replace("one", "two")),
            *("prompt.template_file", "prompt.template"),
        ),
    ],
    ids=["questions", "template"],
)
def test_the_content_of_a_file_is_part_of_the_identity_and_its_place_is_not(
    key: str, content: str, other: str, place: str, identity: str
) -> None:
    def resolved(name: str, content: str) -> JsonObject:
        Path(name).write_text(content)
        return loaded(TALK.replace("topics: [bridges]", key.replace("FILE", name)) + ANN).resolved

    first = resolved("a", content)
    moved, changed = differences(first, resolved("b", content)), differences(first, resolved("a", other))

    assert ([d.path for d in moved.identity], [d.path for d in moved.runtime]) == ([], [f"discussion.{place}"])
    assert [d.path for d in changed.identity] == [f"discussion.{identity}"]


def test_a_digest_that_is_given_is_held_to() -> None:
    Path("q.jsonl").write_text(QUESTION)
    right = hashlib.sha256(QUESTION.encode()).hexdigest()
    asking = TALK.replace("topics: [bridges]", "questions: [q.jsonl]") + ANN
    pinned = asking.replace("{questions", f"{{questions_sha256: {right}, questions")
    assert loaded(pinned).resolved == loaded(asking).resolved

    Path("q.jsonl").write_text(QUESTION + "\n")
    (message,) = refused(pinned)
    assert message.startswith("trial.yaml:3: discussion.questions_sha256: ")
