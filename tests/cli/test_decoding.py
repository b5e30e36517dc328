"""A server and the forms that replies are held to: refused, ignored or obeyed, in runs, summaries and `doctor`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from mac_runner.types import JsonObject, JsonValue
from tests.cli.lab import AtOnce, Lab, experiment
from tests.sim.behaviour import Behaviour, Received, Say, failure
from tests.sim.openai_run import in_a_thread
from tests.sim.openai_server import OpenaiServer

REFUSALS = [
    (400, "Invalid parameter: 'response_format' of type 'json_schema' is not supported with this model."),
    (400, "This response_format type is unavailable now"),
    (422, "Failed to deserialize the JSON body: response_format.type `json_schema` is unavailable now"),
    (400, "invalid schema for response format: response_format/json_schema/next: minItems is not supported"),
    (400, "'response_format.type' must be 'json_schema' or 'text'"),
    (400, "litellm.UnsupportedParamsError: together_ai does not support parameters: ['response_format'], for model=m"),
    (400, "The provided JSON schema contains features not supported by xgrammar."),
    (422, "Input validation error: grammar is not valid: Grammar must have a 'properties' field"),
    (400, "Failed to initialize samplers: failed to parse grammar"),
    (400, "JSON schema conversion failed: unsupported $ref"),
    (501, "Structured outputs are not implemented for this engine"),
    (400, "json mode is not supported for this model"),
    (404, "No endpoint of this model supports response_format"),
]
"""Status and words of OpenAI, DeepSeek (two), Groq, LM Studio, LiteLLM, vLLM, TGI, llama.cpp (two), and others."""
FORMS = {"json_schema": "schema", "json_object": "json_object"}
WAIT = Say('{"act": "wait"}')


def sent(received: Received) -> str:
    """What a request asks the reply to be held to."""
    form = received.json.get("response_format")
    return FORMS[str(form["type"])] if isinstance(form, dict) else "none"


def served(server: OpenaiServer, **more: JsonValue) -> JsonObject:
    """A model definition."""
    return {"backend": "openai", "openai_config": {"model": "stub", "base_urls": [server.url]}, **more}


@contextmanager
def answering(script: Callable[[Received], Behaviour]) -> Iterator[OpenaiServer]:
    with in_a_thread(OpenaiServer(script=script)) as server:
        yield server


def refusing(status: int, words: str, *forms: str) -> Callable[[Received], Behaviour]:
    """Refuses these forms, and answers anything else with an act that is always legal."""
    return lambda received: failure(status, words) if sent(received) in forms and not received.is_canary else WAIT


@pytest.mark.ci
def test_server_that_refuses_schemas_stops_the_run_and_the_setting_is_named(
    at_once: AtOnce, lab: Lab, subtests: pytest.Subtests
) -> None:
    for number, (status, words) in enumerate(REFUSALS):
        with subtests.test(words), answering(refusing(status, words, "schema")) as server:
            name = f"refused-{number}"
            process = at_once(lab.write(experiment(name, models={"folk": served(server)})), "--no-live")

            assert process.returncode == 3
            assert f"model folk: {server.url}: status {status}: {words[:60]}" in process.stderr
            advice = "set model_definitions.folk.constrained_decoding: json_object or none (`mac-run doctor FILE`"
            assert advice in process.stderr
            assert lab.run_dir(name).index == []
            if number == 0:
                corrected = ("--set", "model_definitions.folk.constrained_decoding=json_object")
                assert at_once(f"{name}.yaml", "--quiet", *corrected).returncode == 0


def test_server_that_fails_is_told_from_one_that_refuses(at_once: AtOnce, lab: Lab, subtests: pytest.Subtests) -> None:
    """Other refusals fail a conversation each, also where the words would fit, but no form was asked for."""
    rows = [
        (400, "this prompt breaks our rules", {}),
        (400, REFUSALS[0][1], {"constrained_decoding": "none"}),
    ]
    for number, (status, words, more) in enumerate(rows):
        with subtests.test(words, **more), answering(refusing(status, words, "schema", "none")) as server:
            name = f"failed-{number}"
            process = at_once(lab.write(experiment(name, models={"folk": served(server, **more)})), "--no-live")

            assert "constrained_decoding" not in process.stderr
            assert lab.run_dir(name).statuses == {"failed": 2}


@pytest.mark.ci
def test_each_setting_is_what_requests_ask_for(at_once: AtOnce, lab: Lab, subtests: pytest.Subtests) -> None:
    for setting in ("schema", "json_object", "none"):
        with subtests.test(setting), answering(lambda _received: WAIT) as server:
            model = served(server, constrained_decoding=setting)
            name = f"as-{setting}"
            process = at_once(lab.write(experiment(name, conversations=1, models={"m": model})), "--no-live")

            assert process.returncode == 0
            assert {sent(received) for received in server.received} == {setting}
            told = lab.run_dir(name).summary["models"]
            form = "markup" if setting == "none" else "json"
            assert isinstance(told, dict)
            assert isinstance(told["m"], dict)
            assert (told["m"]["constrained_decoding"], told["m"]["reply_form"]) == (setting, form)
            assert at_once("verify", f"runs/{name}").returncode == 0
            assert (f"json, held to {setting}" in process.stdout) is (setting != "none")


@pytest.mark.ci
def test_doctor_tries_weaker_forms_until_one_is_obeyed(at_once: AtOnce, lab: Lab, subtests: pytest.Subtests) -> None:
    words = REFUSALS[0][1]
    advice = "PROBLEM: the engine {} `constrained_decoding: schema`; set model_definitions.m.constrained_decoding: {}\n"

    def prose(*forms: str) -> Callable[[Received], Behaviour]:
        return lambda received: Say("I wait.") if sent(received) in forms else WAIT

    rows = [
        (refusing(400, words), ["obeyed"], None),
        (refusing(400, words, "schema"), ["refused", "obeyed"], ("refuses", "json_object")),
        (refusing(400, words, "schema", "json_object"), ["refused", "refused", "obeyed"], ("refuses", "none")),
        (prose("schema", "json_object"), ["ignored", "ignored", "obeyed"], ("does not keep to", "none")),
        (refusing(400, "no", "schema", "json_object", "none"), ["refused", "refused", "refused"], None),
        (lambda received: WAIT if received.is_canary else failure(500, "no"), ["failed"], None),
    ]
    for number, (script, ends, said) in enumerate(rows):
        with subtests.test(str(ends)), answering(script) as server:
            process = at_once("doctor", lab.write(experiment(f"doctor-{number}", models={"m": served(server)})))
            tried = [line for line in process.stdout.splitlines() if " constrained_decoding " in line]

            assert [line.split(": ")[1].split(" ")[0] for line in tried] == ends
            assert process.returncode == (0 if ends == ["obeyed"] else 1)
            if said is not None:
                assert advice.format(*said) in process.stdout


@pytest.mark.ci
def test_doctor_tries_a_model_whose_turn_comes_after_anothers(at_once: AtOnce, lab: Lab) -> None:
    def script(received: Received) -> Behaviour:
        return WAIT if received.is_canary else Say('{"rationale": "So it is.", "answer": "yes"}')

    with answering(script) as server:
        talk: JsonObject = {
            "experiment_metadata": {"experiment_name": "talk"},
            "conversation_config": {"environment": "discussion", "conversations": 1},
            "discussion": {"topics": ["Are bridges good?"]},
            "model_definitions": {
                "first": {"backend": "scripted", "scripted_config": {"policy": "discussant"}},
                "second": served(server, constrained_decoding="none"),
            },
            "agent_definitions": [
                {"agent_id": "ann", "role": "participant", "model": "first"},
                {
                    "agent_id": "bob",
                    "role": "participant",
                    "model": "second",
                    "role_specific_config": {"speak_after_within_round": ["ann"]},
                },
            ],
        }
        process = at_once("doctor", lab.write(talk))

    assert "for json: obeyed" in process.stdout
    assert [sent(received) for received in server.received] == ["none", "none"]
    assert process.returncode == 0


@pytest.mark.ci
def test_each_combination_of_a_grid_says_what_its_replies_were_held_to(at_once: AtOnce, lab: Lab) -> None:
    axis: JsonObject = {"model_definitions.m.constrained_decoding": ["schema", "none"]}
    with answering(lambda _received: WAIT) as server:
        content = experiment(conversations=1, models={"m": served(server)}, _grid={"sweep": axis})
        assert at_once(lab.write(content), "--quiet").returncode == 0

    summaries = lab.run_dir().path.glob("constrained_decoding-*/summary.json")
    found = [json.loads(path.read_bytes())["models"]["m"] for path in summaries]
    assert sorted(map(str, found)) == sorted(
        str({"constrained_decoding": held, "reply_form": form})
        for held, form in (("schema", "json"), ("none", "markup"))
    )
    assert at_once("verify", str(lab.run_dir().path)).returncode == 0
