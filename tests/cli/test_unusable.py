"""Replies that cannot be used: conversations that fail for them, and runs in which none could be used."""

from __future__ import annotations

import json

from mac_runner.cli.process import Exit
from mac_runner.types import JsonObject, JsonValue
from tests.cli.lab import AtOnce, Lab, experiment, scripted
from tests.sim.behaviour import Behaviour, Received, Say
from tests.sim.openai_run import in_a_thread
from tests.sim.openai_server import OpenaiServer

NOISE = "I can't help with that."
GOOD = '{"rationale": "r", "answer": "Yes"}'
QUESTION = {"question_id": "q", "question_type": "binary", "question": "Is it so?", "choices": []}
RETRY: JsonObject = {"max_retries": 1}


def talk(lab: Lab, url: str, *, retry: JsonObject | None = None, **more: JsonValue) -> str:
    """Two discussions of two agents with models of their own, over the server at `url`."""
    (lab.path / "q.jsonl").write_text(json.dumps({key: value for key, value in QUESTION.items() if key != "choices"}))
    config: JsonObject = {"model": "stub", "base_urls": [url]}
    return lab.write(
        {
            "experiment_metadata": {"experiment_name": "talk"},
            "conversation_config": {"environment": "discussion", "conversations": 2},
            "discussion": {"questions": ["q.jsonl"], "max_rounds": 2},
            "model_definitions": {
                name: {"backend": "openai", "openai_config": dict(config)} for name in ("left", "right")
            },
            "agent_definitions": [
                {"agent_id": "ann", "role": "participant", "model": "left"},
                {"agent_id": "bob", "role": "participant", "model": "right"},
            ],
            "retry_config": {**RETRY, **(retry or {})},
            **more,
        }
    )


def server(*, good: str = "") -> OpenaiServer:
    """Answers the agent `good` well, and refuses the other."""

    def script(received: Received) -> Behaviour:
        return Say(GOOD if good and f"You are {good}" in received.body.decode() else NOISE)

    return OpenaiServer(script=script)


def test_a_run_without_a_usable_reply_ends_with_a_failure_and_says_why(lab: Lab, at_once: AtOnce) -> None:
    with in_a_thread(server()) as stub:
        process = at_once(talk(lab, stub.url))

    assert process.returncode == Exit.FAILURES
    told = (
        "nothing was usable: all of 8 turns took their default (mostly, left: refusal in 8 of 8 unusable replies; "
        "right: refusal in 8 of 8 unusable replies)"
    )
    assert told in process.stderr
    assert "nothing was usable" in process.stdout
    assert lab.run_dir("talk").statuses == {"finished": 2}
    again = at_once("talk.yaml", "--quiet")
    assert (again.returncode, told in again.stderr) == (Exit.FAILURES, True)
    assert told in at_once("status", "runs/talk").stdout
    assert json.loads(at_once("status", "runs/talk", "--json").stdout)["warning"] == told
    lab.verified(lab.run_dir("talk").path)


def test_a_run_of_mostly_defaults_warns_and_one_of_few_does_not(lab: Lab, at_once: AtOnce) -> None:
    with in_a_thread(server(good="ann")) as stub:
        process = at_once(talk(lab, stub.url))
        # Half of the turns, and not more.
        assert (process.returncode, "took their default" in process.stdout) == (Exit.OK, False)
        third: JsonObject = {"agent_id": "cat", "role": "participant", "model": "right"}
        people: list[JsonValue] = [
            {"agent_id": "ann", "role": "participant", "model": "left"},
            {"agent_id": "bob", "role": "participant", "model": "right"},
            third,
        ]
        process = at_once(talk(lab, stub.url, agent_definitions=people), "--out", "three")

    assert process.returncode == Exit.OK
    assert "8 of 12 turns" in process.stdout
    summary = json.loads((lab.path / "three" / "summary.json").read_text())
    assert summary["unusable_by_model"] == {"right": {"refusal": 16}}


def test_one_combination_without_a_usable_reply_fails_the_grid(lab: Lab, at_once: AtOnce) -> None:
    def script(received: Received) -> Behaviour:
        return Say(NOISE if "at most 1 round," in received.body.decode() else GOOD)

    sweep: JsonObject = {"sweep": {"discussion.max_rounds": [1, 2]}}
    with in_a_thread(OpenaiServer(script=script)) as stub:
        process = at_once(talk(lab, stub.url, _grid=sweep))
        assert process.returncode == Exit.FAILURES, process.stderr
        assert "max_rounds-1" in process.stderr.split("nothing was usable")[0].splitlines()[-1]
        assert "max_rounds-2" not in process.stderr.split("nothing was usable")[0].splitlines()[-1]
        assert at_once("talk.yaml", "--quiet").returncode == Exit.FAILURES
    assert process.stdout.count("nothing was usable") == 1
    assert at_once("status", "runs/talk").stdout.count("nothing was usable") == 1


def test_a_discussion_fails_when_corrections_are_used_up_and_is_retried(lab: Lab, at_once: AtOnce) -> None:
    moody = {"good": "ann"}

    def script(received: Received) -> Behaviour:
        return Say(GOOD if f"You are {moody['good']}" in received.body.decode() else NOISE)

    with in_a_thread(OpenaiServer(script=script)) as stub:
        file = talk(lab, stub.url, retry={"when_exhausted": "fail"})
        process = at_once(file)
        run = lab.run_dir("talk")
        assert (process.returncode, run.statuses) == (Exit.FAILURES, {"failed": 2})
        failures = {str(row["failure"]) for row in run.index}
        (failure,) = failures
        assert failure.startswith("turn 0/bob/0/1: bob ")
        last = json.loads(next((run.path / "transcripts").glob("*.json")).read_text())["turns"][-1]
        assert (last["turn"], last["receipt"]["kind"]) == ("0/bob/0/1", "failure")
        lab.verified(run.path)

        moody["good"] = ""
        assert at_once("retry", "runs/talk").returncode == Exit.OK
        assert at_once(file, "--out", "undisturbed").returncode == Exit.OK
    assert run.statuses == {"finished": 2}
    lab.verified(run.path)


def test_a_game_fails_when_corrections_are_used_up(lab: Lab, at_once: AtOnce) -> None:
    with in_a_thread(OpenaiServer(script=lambda _received: Say("Hello."))) as stub:
        models: JsonObject = {
            "m": {"backend": "openai", "openai_config": {"model": "stub", "base_urls": [stub.url]}},
        }
        file = lab.write(experiment(models=models, retry_config={"max_retries": 1, "when_exhausted": "fail"}))
        process = at_once(file)

    assert process.returncode == Exit.FAILURES
    run = lab.run_dir("small")
    assert run.statuses == {"failed": 2}
    assert all("no usable reply" in str(row["failure"]) for row in run.index)
    lab.verified(run.path)


def test_what_follows_spent_corrections_is_part_of_the_identity_of_a_run(lab: Lab, at_once: AtOnce) -> None:
    file = lab.write(experiment(models={"m": scripted()}))
    assert at_once(file, "--limit", "1").returncode == Exit.OK
    process = at_once(file, "--set", "retry_config.when_exhausted=fail")

    assert process.returncode == Exit.BAD_INPUT
    assert "retry_config.when_exhausted" in process.stderr
