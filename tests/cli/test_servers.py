"""Whole runs over servers of three protocols: denied keys, faults, kills, thoughts, and what is loaded for whom."""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack
from random import Random
from typing import Any

import pytest

from mac_runner.cli.process import Exit
from mac_runner.types import JsonObject
from tests.backends.test_refusals import TOO_LONG
from tests.cli.lab import ROOT, AtOnce, Lab, discussion, ending, experiment, served
from tests.faults.tier import SCALE
from tests.patience import wait_for
from tests.sim.anthropic_server import AnthropicServer, message
from tests.sim.anthropic_server import failure as anthropic_failure
from tests.sim.behaviour import Behaviour, Hang, Received, Reset, Say, Send, completion, encoded, failure
from tests.sim.ollama_server import OllamaServer, says
from tests.sim.openai_run import in_a_thread
from tests.sim.openai_server import OpenaiServer
from tests.sim.surroundings import SETTINGS, drawn
from tests.tiers import first

KEY = "sk-ant-canary-0123456789"
WAIT = '{"act": "wait"}'
both = pytest.mark.parametrize("backend", ["openai", "anthropic"])


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)


def speaking(backend: str, answer: Callable[[Received], Behaviour] = lambda _: Say("A bridge.")) -> OpenaiServer:
    """A server of this protocol."""
    return AnthropicServer(answer=answer, api_key=KEY) if backend == "anthropic" else OpenaiServer(script=answer)


def talk(
    over: OpenaiServer, *, conversations: int = 6, agents: tuple[JsonObject, ...] = ({}, {}), **section: Any
) -> JsonObject:
    """Discussions over a server."""
    model = served(over.url, **section)
    if isinstance(over, AnthropicServer):
        model = served(over.host, backend="anthropic", max_in_flight=4, **section)
    return discussion(
        model, conversations=conversations, agents=agents, retry_config={"backoff_s": 0.01, "backoff_s_max": 0.02}
    )


@both
def test_denied_key_stops_the_run_which_goes_on_with_another(lab: Lab, at_once: AtOnce, backend: str) -> None:
    def revoked(received: Received) -> Behaviour:
        return failure(401, "key revoked") if received.number > 9 else Say("A bridge.")

    with in_a_thread(speaking(backend, revoked)) as server:
        at_once(talk(server)).ends(Exit.INTERRUPTED, "status 401: key revoked")
    with in_a_thread(speaking(backend)) as server:
        at_once(talk(server)).done()

    assert lab.run_dir("talk").statuses == {"finished": 6}
    assert server.requests < 24
    lab.verified(lab.run_dir("talk").path)


@both
def test_two_agents_of_one_engine_think_and_do_not(lab: Lab, at_once: AtOnce, backend: str) -> None:
    def asked(received: Received) -> tuple[bool, str | None]:
        """Whether a request switches thinking on, and the effort it asks for."""
        body: Any = received.json
        if backend == "openai":
            return body.get("chat_template_kwargs", {}).get("enable_thinking"), body.get("reasoning_effort")
        thinking = {"type": "adaptive", "display": "summarized"}
        return body.get("thinking") == thinking, body["output_config"].get("effort")

    def thoughtful(received: Received) -> Behaviour:
        thinks, _ = asked(received)
        if backend == "openai":
            return Say("<think>Both.</think>A bridge." if thinks else "A ferry.")
        return message("A bridge.", thinking="Both." if thinks else "")

    agents: tuple[JsonObject, ...] = ({"thinking": True, "reasoning_effort": "high"}, {"thinking": False})
    section: dict[str, Any] = {"server": "vllm"} if backend == "openai" else {}
    with in_a_thread(speaking(backend, thoughtful)) as server:
        at_once(talk(server, agents=agents, **section)).done()
    run = lab.run_dir("talk")
    first, second = (agent["sampling"] for agent in run.transcript()["task"]["agents"])

    assert {asked(received) for received in server.received} == {(True, "high"), (False, None)}
    assert {(turn["agent"], turn["reply"].get("thinking")) for turn in run.turns} == {("a", "Both."), ("b", None)}
    assert first == {"temperature": 1.0, "max_tokens": 512, "reasoning_effort": "high", "thinking": True}
    assert second["thinking"] is False
    lab.verified(run.path)


@pytest.mark.ci
def test_clients_of_servers_are_loaded_for_no_other_experiment(lab: Lab) -> None:
    program = "import sys, mac_runner.cli.play; sys.exit(len({'aiohttp', 'anthropic'} & {*sys.modules}))"

    assert lab.start(program=(sys.executable, "-c", program)).wait() == 0


@pytest.mark.parametrize("seed", first(1, range(6 * SCALE), tier="ci", rest="nightly"))
def test_settings_that_an_environment_has_for_other_clients_change_nothing(
    lab: Lab, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients read them when they are imported, so each process shows it once."""
    for name, _ in SETTINGS:
        monkeypatch.delenv(name, raising=False)
    surroundings = drawn(seed)
    texts = []
    with ExitStack() as stack:
        servers = [OpenaiServer(), OllamaServer(), AnthropicServer(api_key=KEY)]
        urls = [stack.enter_context(in_a_thread(server)) for server in servers]
        models = [
            served(urls[0].url),
            served(urls[1].host, "qwen3:4b", backend="ollama"),
            served(urls[2].host, backend="anthropic"),
        ]
        free = [{**model, "constrained_decoding": "none"} for model in models]
        file = lab.write(discussion(free, conversations=1, agents=({}, {}, {}), max_rounds=1))
        lab.run("doctor", file, env=surroundings).done("problems     none")
        for name, env in (("plain", {}), ("set", surroundings)):
            lab.done(file, "--quiet", "--out", name, env=env)
            texts.append([(turn["agent"], turn["reply"]["text"]) for turn in lab.dir(name).turns])

    assert texts[0] == texts[1]
    assert {agent for agent, _ in texts[0]} == {"a", "b", "c"}


def test_server_without_usage_is_said_not_to_count(lab: Lab, at_once: AtOnce) -> None:
    reply = {"choices": [{"message": {"content": "A bridge."}, "finish_reason": "stop"}]}
    with in_a_thread(OpenaiServer(script=lambda _received: Send(200, json.dumps(reply).encode()))) as server:
        at_once(talk(server)).done(told="tokens not counted")
    ended, summary = at_once("show runs/talk --tables"), lab.run_dir("talk").summary

    assert re.search(r"^tokens +not counted", ended.stdout, re.MULTILINE)
    assert summary["tokens"]["uncounted_turns"] == summary["turns"]
    assert summary["tokens"]["uncounted_models"] == ["m"]
    lab.verified(lab.run_dir("talk").path)


def test_odd_reply_is_kept_as_it_came_and_what_it_does_not_count_is_counted(lab: Lab, at_once: AtOnce) -> None:
    def script(received: Received) -> Send:
        usage = (9, 4, 2) if received.number else (-1, -1, -1)
        return Send(200, completion(Say("A bridge.", "repetition", usage=usage), received))

    with in_a_thread(OpenaiServer(script=script)) as server:
        at_once(talk(server)).done()
    run = lab.run_dir("talk")

    at_once("show runs/talk --tables").done("; 1 turns were")
    assert {turn["reply"]["finish_reason"] for turn in run.turns} == {"repetition"}
    assert run.summary["tokens"]["uncounted_turns"] == 1
    assert run.summary["tokens"]["prompt"] == 9 * (run.summary["turns"] - 1)
    lab.verified(run.path)


def test_missing_key_is_reported_before_anything_is_touched(lab: Lab, at_once: AtOnce) -> None:
    file = lab.write(discussion(served("http://127.0.0.1:9/v1", api_key_env="STUB_KEY")))
    with lab.unchanged():
        at_once(file).refused(f"{file}:", "variable STUB_KEY is")


def test_sampling_of_agents_that_set_none_is_recorded_as_before(lab: Lab, at_once: AtOnce) -> None:
    with in_a_thread(OpenaiServer()) as server:
        at_once(talk(server, server="vllm")).done()
    bodies = [received.json for received in server.received]

    sampling = lab.run_dir("talk").transcript()["task"]["agents"][0]["sampling"]
    assert sampling == {"temperature": 1.0, "max_tokens": 512}
    assert not any({"chat_template_kwargs", "reasoning_effort", "verbosity"} & body.keys() for body in bodies)


def thinking(received: Received) -> Behaviour:
    """Thinks about every second request, in the field of vLLM or in that of DeepSeek, or in the text itself."""
    field, text = {0: ("reasoning", WAIT), 2: ("reasoning_content", WAIT), 4: ("", f"<think>Hm.</think>{WAIT}")}.get(
        received.number % 6, ("", WAIT)
    )
    said: JsonObject = {"role": "assistant", "content": text, **({field: "Hm."} if field else {})}
    choice: JsonObject = {"index": 0, "finish_reason": "stop", "message": said}
    return Send(200, encoded({"choices": [choice], "usage": {"prompt_tokens": 9, "completion_tokens": 4}}))


LIMIT_CHARS = 12_000


@pytest.mark.ci
@pytest.mark.parametrize("seed", range(2 * SCALE))
def test_game_whose_prompts_a_server_finds_too_long_is_shortened_and_finished(
    at_once: AtOnce, lab: Lab, seed: int
) -> None:
    """In the words of any provider; by the first seed in those of vLLM."""
    chance, refused = Random(seed), list[str]()

    def script(received: Received) -> Behaviour:
        messages: Any = received.json["messages"]
        asked = "".join(message["content"] for message in messages)
        if len(asked) <= LIMIT_CHARS:
            speech = {"act": "speak", "text": f"I am {chance.random()}. {'Who was where, and why? ' * 4}"}
            return Say(json.dumps(speech) if '{"act": "speak"' in messages[-1]["content"] else WAIT)
        refused.append(chance.choice([*TOO_LONG.values()]) if seed else TOO_LONG["vLLM"])
        return failure(chance.choice((400, 422)) if seed else 400, refused[-1])

    calendar: JsonObject = {"discussion_rounds": 1, "max_days": 6}
    with in_a_thread(OpenaiServer(script=script)) as server:
        game: JsonObject = {"lobby": "classic-7", "calendar": calendar}
        at_once(experiment(conversations=1, models={"m": served(server.url)}, game=game), "--quiet").done()
    run = lab.run_dir()
    corrected = [turn["turn"] for turn in run.turns if turn["reply"]["finish_reason"] == "overflow"]

    assert run.statuses == {"finished": 1}
    assert len(refused) == len(corrected) > 0
    assert run.summary["defaults"] == 0
    lab.verified(run.path)


@pytest.mark.ci
def test_thoughts_are_recorded_beside_replies_and_survive_a_repair(at_once: AtOnce, lab: Lab) -> None:
    with in_a_thread(OpenaiServer(script=thinking)) as server:
        at_once(experiment(models={"m": served(server.url)}), "--quiet").done()
    run = lab.run_dir()
    replies = [turn["reply"] for turn in run.turns]
    whole = {path: path.read_bytes() for path in (run.path / "transcripts").iterdir()}

    assert {reply["text"] for reply in replies} == {WAIT}
    assert {reply.get("thinking") for reply in replies} == {"Hm.", None}
    assert sum("thinking" in reply for reply in replies) == -(-len(replies) // 2)
    at_once("verify runs/small").done()

    for path in whole:
        path.unlink()
    at_once("verify runs/small --repair").done()
    assert {path: path.read_bytes() for path in (run.path / "transcripts").iterdir()} == whole


def test_run_of_a_model_that_does_not_think_says_nothing_of_thoughts(at_once: AtOnce, lab: Lab) -> None:
    with in_a_thread(OpenaiServer(script=lambda _received: Say(WAIT))) as server:
        at_once(experiment(conversations=1, models={"m": served(server.url)}), "--quiet").done()

    files = [path for path in lab.run_dir().path.rglob("*") if path.is_file()]
    assert not [path for path in files if b'"thinking":' in path.read_bytes()]


@pytest.mark.ci
def test_run_over_the_messages_api_goes_on_after_a_kill(lab: Lab, at_once: AtOnce) -> None:
    killed: list[Received] = []

    def answer(received: Received) -> Behaviour:
        return Say("A bridge.") if received.number < 10 or killed else Hang()

    with in_a_thread(speaking("anthropic", answer)) as server:
        file = lab.write(talk(server, conversations=12))
        running = lab.start(file, "--no-live")
        wait_for(lambda: running.poll() is not None or server.requests > 10, "ten replies")
        running.send_signal(signal.SIGKILL)
        ending(running).ends(-signal.SIGKILL)
        killed += server.received
        at_once(file).done()

    assert server.requests > len(killed)
    assert lab.run_dir("talk").statuses == {"finished": 12}
    lab.verified(lab.run_dir("talk").path)


def test_faults_of_the_messages_api_cost_nothing(lab: Lab, at_once: AtOnce) -> None:
    def moody(received: Received) -> Behaviour:
        faults: dict[int, Behaviour] = {
            0: anthropic_failure(529, "Overloaded", kind="overloaded_error"),
            2: anthropic_failure(429, "limit", kind="rate_limit_error", headers=(("retry-after", "0.01"),)),
            4: anthropic_failure(500, "broken"),
        }
        return faults.get(received.number % 7, message("A bridge."))

    with in_a_thread(speaking("anthropic", moody)) as server:
        at_once(talk(server)).done()

    assert lab.run_dir("talk").statuses == {"finished": 6}


@pytest.mark.ci
def test_doctor_finds_what_a_model_without_structured_outputs_takes(at_once: AtOnce) -> None:
    """The setting that works is named, and not one that the API has not."""

    def older(received: Received) -> Behaviour:
        is_held = bool(received.json.get("output_config"))
        return failure(400, "output_config.format: Extra inputs are not permitted") if is_held else message("a")

    agents: tuple[JsonObject, ...] = ({"thinking": True, "max_tokens": 3000}, {})
    with in_a_thread(speaking("anthropic", older)) as server:
        found = at_once("doctor", talk(server, thinking_budget_tokens=2000, agents=agents))

    found.ends(Exit.FAILURES, printed="set model_definitions.m.constrained_decoding: none")
    assert "json_object" not in found.stdout


MODEL = "qwen3:4b"


def job(host: str) -> tuple[str, ...]:
    """The main job with the models of this Ollama; one small game of it."""
    address = f"model_definitions.townsfolk.ollama_config.host={host}"
    settings = (f"--set={one}" for one in (address, "game.lobby=classic-7", "game.calendar.max_days=2"))
    return (
        "run",
        f"{ROOT}/experiments/tos_100games.yaml",
        "--profile=ollama",
        *settings,
        "--limit=1",
        "--out=runs/one",
    )


@pytest.mark.ci
def test_main_job_is_played_by_a_model_of_ollama(lab: Lab, at_once: AtOnce, stub: OllamaServer) -> None:
    at_once(*job(stub.host), "--dry-run").done()
    assert not stub.pages
    stub.answer = lambda received: says(received) if received.number else Reset()

    at_once(*job(stub.host)).done()

    assert lab.run_dir("one").statuses == {"finished": 1}
    assert {str(chat["model"]) for chat in stub.chats} == {MODEL}
    assert all(chat["format"] for chat in stub.chats)
    lab.verified(lab.run_dir("one").path)


@pytest.mark.ci
def test_missing_model_of_ollama_is_bad_input_unless_it_is_to_be_pulled(
    lab: Lab, at_once: AtOnce, stub: OllamaServer
) -> None:
    stub.library, stub.shelf = stub.shelf, {}

    at_once(*job(stub.host)).refused(f"`ollama pull {MODEL}`, ")
    at_once(*job(stub.host), "--pull").done(told=f"pulling {MODEL}: done")

    assert lab.run_dir("one").statuses == {"finished": 1}


@pytest.mark.ci
def test_ollama_that_is_not_there_leaves_a_run_that_can_go_on(at_once: AtOnce, dead_host: str) -> None:
    at_once(*job(dead_host)).ends(Exit.INTERRUPTED, f"{dead_host} does not answer")
