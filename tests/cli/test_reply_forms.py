"""The forms that replies are held to, and replies that cannot be used: in runs, summaries, retries and `doctor`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from mac_runner.cli.process import Exit
from mac_runner.types import JsonObject, JsonValue
from tests.cli.lab import AtOnce, Lab, discussion, experiment, scripted, served
from tests.sim.behaviour import Behaviour, Received, Say, Send, encoded, failure
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


@contextmanager
def answering(script: Callable[[Received], Behaviour]) -> Iterator[tuple[OpenaiServer, JsonObject]]:
    """A server, and a definition of its model."""
    with in_a_thread(OpenaiServer(script=script)) as server:
        yield server, served(server.url)


def refusing(status: int, words: str, *forms: str) -> Callable[[Received], Behaviour]:
    """Refuses these forms, and answers anything else with an act that is always legal."""
    return lambda received: failure(status, words) if sent(received) in forms and not received.is_canary else WAIT


@pytest.mark.ci
def test_server_that_refuses_schemas_stops_the_run_and_the_setting_is_named(
    at_once: AtOnce, lab: Lab, subtests: pytest.Subtests
) -> None:
    setting = "model_definitions.folk.constrained_decoding"
    for number, (status, words) in enumerate(REFUSALS):
        name = f"refused-{number}"
        with subtests.test(words), answering(refusing(status, words, "schema")) as (server, model):
            at_once(experiment(name, models={"folk": model}), "--no-live").ends(
                Exit.INTERRUPTED,
                f"model folk: {server.url}: status {status}: {words[:60]}",
                f"set {setting}: json_object or none (`mac-run doctor FILE`",
            )
            assert lab.run_dir(name).index == []
            if number == 0:
                at_once(f"{name}.yaml --quiet --set {setting}=json_object").done()


def test_server_that_fails_is_told_from_one_that_refuses(at_once: AtOnce, lab: Lab, subtests: pytest.Subtests) -> None:
    """Other refusals fail a conversation each, also where the words would fit, but no form was asked for."""
    rows = [("this prompt breaks our rules", "schema"), (REFUSALS[0][1], "none")]
    for words, setting in rows:
        with subtests.test(words), answering(refusing(400, words, "schema", "none")) as (_, model):
            content = experiment(f"as-{setting}", models={"m": {**model, "constrained_decoding": setting}})
            process = at_once(content, "--no-live")

            assert "constrained_decoding" not in process.stderr
            assert lab.run_dir(f"as-{setting}").statuses == {"failed": 2}


def test_reply_that_the_server_refuses_for_its_form_is_corrected_in_its_conversation(at_once: AtOnce, lab: Lab) -> None:
    fly = '{"act": "fly"}'
    error: JsonObject = {"message": "Generated JSON does not match the expected schema.", "failed_generation": fly}
    refused = Send(400, encoded({"error": error}))

    with answering(lambda received: WAIT if received.number % 9 else refused) as (_, model):
        at_once(experiment(conversations=1, models={"m": model}), "--quiet").done()

    assert lab.run_dir().statuses == {"finished": 1}
    assert sum(turn["reply"]["text"] == fly for turn in lab.run_dir().turns) > 1


@pytest.mark.ci
def test_each_setting_is_what_requests_ask_for(at_once: AtOnce, lab: Lab, subtests: pytest.Subtests) -> None:
    for setting, form in (("schema", "json"), ("json_object", "json"), ("none", "markup")):
        with subtests.test(setting), answering(lambda _received: WAIT) as (server, model):
            name = f"as-{setting}"
            models: JsonObject = {"m": {**model, "constrained_decoding": setting}}
            at_once(experiment(name, conversations=1, models=models), "--no-live").done()

            assert {sent(received) for received in server.received} == {setting}
            told = lab.run_dir(name).summary["models"]["m"]
            assert (told["constrained_decoding"], told["reply_form"]) == (setting, form)
            tables = at_once(f"show runs/{name} --tables models").done().stdout
            assert (f"json, held to {setting}" in tables) is (setting != "none")
            at_once(f"verify runs/{name}").done()


@pytest.mark.ci
def test_doctor_tries_weaker_forms_until_one_is_obeyed(at_once: AtOnce, subtests: pytest.Subtests) -> None:
    words = REFUSALS[0][1]
    advice = "PROBLEM: the engine {} `constrained_decoding: schema`; set model_definitions.m.constrained_decoding: {}\n"

    def prose(*forms: str) -> Callable[[Received], Behaviour]:
        return lambda received: Say("I wait.") if sent(received) in forms else WAIT

    def unruled(received: Received) -> Behaviour:
        return failure(400, "System role not supported") if b'"system"' in received.body else WAIT

    rows = [
        (refusing(400, words), ["obeyed"], None),
        (unruled, ["obeyed"], None),
        (refusing(400, words, "schema"), ["refused", "obeyed"], ("refuses", "json_object")),
        (refusing(400, words, "schema", "json_object"), ["refused", "refused", "obeyed"], ("refuses", "none")),
        (prose("schema", "json_object"), ["ignored", "ignored", "obeyed"], ("does not keep to", "none")),
        (refusing(400, "no", "schema", "json_object", "none"), ["refused", "refused", "refused"], None),
        (lambda received: WAIT if received.is_canary else failure(500, "no"), ["failed"], None),
    ]
    for script, ends, said in rows:
        with subtests.test(str(ends)), answering(script) as (_, model):
            process = at_once("doctor", experiment(models={"m": model})).ends(
                Exit.OK if ends == ["obeyed"] else Exit.FAILURES, printed=advice.format(*said) if said else ()
            )
            tried = [line for line in process.stdout.splitlines() if " constrained_decoding " in line]

            assert [line.split(": ")[1].split(" ")[0] for line in tried] == ends
            assert ("whatever the form" in process.stdout) is (ends == ["refused"] * 3)


@pytest.mark.ci
def test_doctor_tries_a_model_whose_turn_comes_after_anothers(at_once: AtOnce) -> None:
    def script(received: Received) -> Behaviour:
        return WAIT if received.is_canary else Say('{"rationale": "So it is.", "answer": "yes"}')

    waits: JsonObject = {"role_specific_config": {"speak_after_within_round": ["a"]}}
    with answering(script) as (server, model):
        models: list[JsonObject] = [scripted("discussant"), {**model, "constrained_decoding": "none"}]
        at_once("doctor", discussion(models, agents=({}, waits))).done("for json: obeyed")

    assert [sent(received) for received in server.received] == ["none", "none"]


@pytest.mark.ci
def test_each_combination_of_a_grid_says_what_its_replies_were_held_to(at_once: AtOnce, lab: Lab) -> None:
    axis: JsonObject = {"model_definitions.m.constrained_decoding": ["schema", "none"]}
    with answering(lambda _received: WAIT) as (_, model):
        at_once(experiment(conversations=1, models={"m": model}, _grid={"sweep": axis}), "--quiet").done()

    for held, form in (("schema", "json"), ("none", "markup")):
        told = lab.run_dir(f"small/constrained_decoding-{held}").summary["models"]["m"]
        assert told == {"constrained_decoding": held, "reply_form": form}
    at_once("verify runs/small").done()


NOISE = "I can't help with that."
GOOD = '{"rationale": "r", "answer": "Yes"}'
QUESTION = {"question_id": "q", "question_type": "binary", "question": "Is it so?"}
PEOPLE = ("ann", "bob", "cat")


def talk(lab: Lab, url: str, *, agents: int = 2, retry: JsonObject | None = None, **more: JsonValue) -> str:
    """Two discussions over the server at `url`, of an agent with a model of its own and of others who share one."""
    (lab.path / "q.jsonl").write_text(json.dumps(QUESTION))
    content = discussion(
        [served(url), served(url)],
        conversations=2,
        agents=[{"agent_id": name, "model": f"m{min(place, 1)}"} for place, name in enumerate(PEOPLE[:agents])],
        discussion={"questions": ["q.jsonl"], "max_rounds": 2},
        retry_config={"max_retries": 1, **(retry or {})},
    )
    return lab.write(content | more)


def saying_well(says_well: Callable[[str], bool]) -> OpenaiServer:
    """Answers well what `says_well` of the request, and anything else with a refusal."""
    return OpenaiServer(script=lambda received: Say(GOOD if says_well(received.body.decode()) else NOISE))


def test_a_run_without_a_usable_reply_ends_with_a_failure_and_says_why(lab: Lab, at_once: AtOnce) -> None:
    told = (
        "nothing was usable: all of 8 turns took their default (mostly, m0: refusal in 8 of 8 unusable replies; "
        "m1: refusal in 8 of 8 unusable replies)"
    )
    with in_a_thread(saying_well(lambda _: False)) as stub:
        printed = at_once(talk(lab, stub.url)).ends(Exit.FAILURES).stdout
        assert told in " ".join(printed.split())

    assert lab.run_dir("talk").statuses == {"finished": 2}
    at_once("talk.yaml --quiet").ends(Exit.FAILURES, told)
    at_once("status runs/talk").done(told)
    assert json.loads(at_once("status runs/talk --json").stdout)["warning"] == told
    lab.verified(lab.run_dir("talk").path)


def test_a_run_of_mostly_defaults_warns_and_one_of_fewer_names_whose_they_are(lab: Lab, at_once: AtOnce) -> None:
    with in_a_thread(saying_well(lambda body: "You are ann" in body)) as stub:
        half = at_once(talk(lab, stub.url)).done()  # Half of the turns, and not more.
        at_once(talk(lab, stub.url, agents=3), "--out", "three").done("8 of 12 turns")

    assert ("turns took their" in half.stdout, "bob 100.0% of 4 turns" in half.stdout) == (False, True)
    assert "ann 0" not in half.stdout
    assert lab.dir("three").summary["unusable_by_model"] == {"m1": {"refusal": 16}}


def test_one_combination_without_a_usable_reply_fails_the_grid(lab: Lab, at_once: AtOnce) -> None:
    with in_a_thread(saying_well(lambda body: "at most 1 round," not in body)) as stub:
        process = at_once(talk(lab, stub.url, _grid={"sweep": {"discussion.max_rounds": [1, 2]}})).ends(Exit.FAILURES)
        quiet = at_once("talk.yaml --quiet").ends(Exit.FAILURES)

    for printed in (process.stdout, quiet.stderr, at_once("status runs/talk").stdout):
        before, _ = printed.split("nothing was usable")
        assert before.splitlines()[-1].strip().startswith("max_rounds-1:")


def test_a_discussion_fails_when_corrections_are_used_up_and_is_retried(lab: Lab, at_once: AtOnce) -> None:
    good, run = ["You are ann"], lab.run_dir("talk")
    with in_a_thread(saying_well(lambda body: good[0] in body)) as stub:
        file = talk(lab, stub.url, retry={"when_exhausted": "fail"})
        at_once(file).ends(Exit.FAILURES)
        assert run.statuses == {"failed": 2}
        (failure,) = {row["failure"] for row in run.index}
        assert failure.startswith("turn 0/bob/0/1: bob ")
        last = run.transcript()["turns"][-1]
        assert (last["turn"], last["receipt"]["kind"]) == ("0/bob/0/1", "failure")
        lab.verified(run.path)

        good[0] = "You are "
        at_once("retry runs/talk").done()
        at_once(file, "--out", "undisturbed").done()
    assert run.statuses == {"finished": 2}
    lab.verified(run.path)


def test_a_game_fails_when_corrections_are_used_up(lab: Lab, at_once: AtOnce) -> None:
    retry: JsonObject = {"max_retries": 1, "when_exhausted": "fail"}
    with in_a_thread(saying_well(lambda _: False)) as stub:
        at_once(experiment(models={"m": served(stub.url)}, retry_config=retry)).ends(Exit.FAILURES)

    run = lab.run_dir()
    assert run.statuses == {"failed": 2}
    assert all("no usable reply" in row["failure"] for row in run.index)
    lab.verified(run.path)


def test_what_follows_spent_corrections_is_part_of_the_identity_of_a_run(at_once: AtOnce) -> None:
    at_once(experiment(), "--limit", "1").done()
    at_once("small.yaml --set retry_config.when_exhausted=fail").refused("retry_config.when_exhausted")
