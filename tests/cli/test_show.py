"""`mac-run show`: the list of a run's conversations, and one of them as text, prompts, replies and thoughts."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from operator import eq, ge, gt, le, lt, ne
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from mac_runner.cli.process import Exit
from mac_runner.printable import printable
from mac_runner.store.testing import decode_transcript
from mac_runner.types import JsonObject, Message, Prompt
from tests.cli.lab import MAC_RUN, AtOnce, Lab, RunDir, environ, experiment, refusals, render_other_prompts, scripted
from tests.cli.test_openai import talk
from tests.patience import LIMIT_S, ended
from tests.sim.behaviour import Say, Send, failure
from tests.sim.openai_run import in_a_thread
from tests.sim.openai_server import OpenaiServer

RUN = "runs/small"
HOSTILE = "<think>I lie.\x1b[2J\u202e\u200b</think>\nSo be it.\r\x07\x9b31m \u2028 \ud800 \U000e0041\x00 end\n"


def transcript(run: RunDir, number: int = 0) -> JsonObject:
    return decode_transcript(sorted((run.path / "transcripts").iterdir())[number].read_bytes())


def objects(value: object) -> list[JsonObject]:
    assert isinstance(value, list)
    return [each for each in value if isinstance(each, dict)]


def record(lab: Lab) -> JsonObject:
    found = transcript(lab.run_dir())["record"]
    assert isinstance(found, dict)
    return found


def test_show_prints_a_game_and_who_was_what(finished: Lab, at_once: AtOnce) -> None:
    shown = at_once("show", RUN, "0")

    assert shown.returncode == 0
    assert shown.stdout.startswith("small-000000 (finished)\n")
    assert "\nDay 1, greeting\n" in shown.stdout
    players = shown.stdout.split("\nWho was what\n")[1].splitlines()
    assert players
    assert all(re.search(r" (won |lost)  (lived|died \([a-z ]+\))$", line) for line in players)
    assert at_once("show", RUN, "small-000000").stdout == shown.stdout


def without_roles(lines: list[str], names: str, roles: str) -> list[str]:
    """Lines of the truth as they are without it: no role behind a name, and private ones with their audience last."""
    plain = [re.sub(rf"\b({names}) \((?:{roles})\)", r"\1", line) for line in lines]
    return [re.sub(r"^  To ([^:]+): (.*)$", r"  \2 [only \1]", line) for line in plain]


def test_show_truth_only_adds_to_the_text(finished: Lab, at_once: AtOnce) -> None:
    cast = objects(record(finished)["cast"])
    names = "|".join(str(member["name"]) for member in cast)
    changes = objects(record(finished)["role_changes"])
    held = {str(member["role"]).title() for member in cast} | {str(change["to"]) for change in changes}
    roles = "|".join(held)
    plain = without_roles(at_once("show", RUN, "0").stdout.splitlines(), names, roles)
    shown = at_once("show", RUN, "0", "--truth").stdout.splitlines()
    rest = iter(without_roles(shown, names, roles))

    assert not [line for line in plain if line not in rest]
    verdicts = [line for line in shown if line.startswith("    ~ ")]
    assert verdicts
    assert all(re.search(r": (lie|(honest|unclear)(, but wrong: \w+ is the [\w ]+)?)$", line) for line in verdicts)
    nights = [line for line in shown if re.fullmatch(r"Night \d+, in truth", line)]
    assert len(nights) == len(set(nights)) == sum(bool(re.fullmatch(r"Night \d+", line)) for line in shown)


def test_truth_begins_with_the_cast_and_ends_with_who_lied(finished: Lab, at_once: AtOnce) -> None:
    lines = at_once("show", RUN, "0", "--truth").stdout.splitlines()
    found = record(finished)
    cast = objects(found["cast"])

    assert lines[2] == "The cast"
    assert [line.split()[0] for line in lines[3 : 3 + len(cast)]] == [member["name"] for member in cast]
    for member in cast:
        assert (
            f"  To {member['name']} ({str(member['role']).title()}): You are the {str(member['role']).title()}."
            in lines
        )
    assert not [line for line in lines if "[only" in line]
    title = next(place for place, line in enumerate(lines) if line == "Who lied, and whom they fooled")
    counted = {
        line.split()[0]: [int(word) for word in re.findall(r"(?<= )\d+(?= |$)", line)[:4]]
        for line in lines[title + 2 :]
    }
    claims = Counter(str(claim["player"]) for claim in objects(found["claims"]))
    lies = Counter(str(claim["player"]) for claim in objects(found["claims"]) if claim["verdict"] == "lie")
    assert {name: counts[0] for name, counts in counted.items()} == claims
    assert {name: counts[2] for name, counts in counted.items() if counts[2]} == lies


@pytest.mark.ci
def test_show_seat_shows_no_secret_of_others(finished: Lab, at_once: AtOnce) -> None:
    everything = at_once("show", RUN, "0").stdout
    name = everything.split("layers, in seat order: ")[1].split(",")[0]
    seen = at_once("show", RUN, "0", "--seat", name).stdout

    assert f"as {name} saw it" in seen
    assert "[only you" in seen
    assert "Who was what" not in seen
    assert all(line.endswith("[only you]") for line in seen.splitlines() if "[only " in line)

    for view in ("--thoughts", "--raw"):
        keys = re.findall(
            r"^(?:  |=== )(\d+/\w+/\d+/\d+)", at_once("show", RUN, "0", view, "--seat", name).stdout, re.M
        )
        own = [str(turn["turn"]) for turn in objects(transcript(finished.run_dir())["turns"]) if turn["agent"] == name]
        assert keys == own
    other = next(
        str(turn["turn"]) for turn in objects(transcript(finished.run_dir())["turns"]) if turn["agent"] != name
    )
    for view in ("--prompt", "--raw"):
        refused = at_once("show", RUN, "0", view, other, "--seat", name)
        assert refused.returncode == Exit.BAD_INPUT
        assert f"no turn '{other}' of {name}" in refused.stderr
        assert not refused.stdout


def test_show_of_a_game_there_is_not_says_how_many_there_are(finished: Lab, at_once: AtOnce) -> None:
    shown = at_once("show", RUN, "99")

    assert shown.returncode == 2
    assert "is called '99'" in shown.stderr
    assert "2 of 2 conversations" in shown.stderr


def test_flags_that_do_not_combine_are_refused(finished: Lab, at_once: AtOnce, snapshot: SnapshotAssertion) -> None:
    views = ("--turns", "--prompt 0", "--raw", "--thoughts")
    asked = (
        *(f"0 {view} --truth" for view in views),
        "0 --turns --seat Abel",
        *(f"0 {view} {other}" for view in views for other in views if view != other),
        *(*views, "--truth", "0 --where failed", "0 --limit 3", "--limit 0"),
    )

    assert refusals(at_once, (f"show {RUN} {flags}" for flags in asked)) == snapshot


@pytest.fixture(scope="session")
def many(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """A run of 12 games, not to be changed."""
    lab = Lab(path=tmp_path_factory.mktemp("many"))
    lab.play(lab.write(experiment("many", conversations=12, models={"a": scripted(), "b": scripted()})))
    return lab


def listed(stdout: str) -> list[dict[str, str]]:
    """The rows of a list by the names in its heading."""
    head, *rows = [re.split(r" {2,}", line.strip()) for line in stdout.splitlines()]
    return [dict(zip(head, row, strict=False)) for row in rows]


@pytest.mark.ci
def test_list_has_every_conversation_and_conditions_leave_those_that_meet_them(
    many: Lab, at_once: AtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(many.path)
    run = many.run_dir("many")
    outcomes = [row["outcome"] for row in sorted(run.index, key=lambda row: int(str(row["index"])))]
    days = [outcome["days"] for outcome in outcomes if isinstance(outcome, dict)]
    rows = listed(at_once("show", "runs/many").stdout)

    assert [row["number"] for row in rows] == [*map(str, range(12))]
    assert [int(row["days"]) for row in rows] == days
    assert {row["status"] for row in rows} == {"finished"}

    def numbers(*conditions: str) -> list[int]:
        flags = [part for condition in conditions for part in ("--where", condition)]
        process = at_once("show", "runs/many", *flags)
        assert process.returncode == Exit.OK, process.stderr
        assert f"{max(len(process.stdout.splitlines()) - 1, 0)} of 12 conversations listed" in process.stderr
        return [int(row["number"]) for row in listed(process.stdout)] if process.stdout else []

    comparisons: dict[str, Callable[[Any, Any], Any]] = {
        "=": eq,
        "==": eq,
        "!=": ne,
        "<": lt,
        "<=": le,
        ">": gt,
        ">=": ge,
    }
    for sign, compare in comparisons.items():
        assert numbers(f"days{sign}5") == [place for place, day in enumerate(days) if compare(day, 5)], sign
    wins = run.summary["wins"]
    assert isinstance(wins, dict)
    by_faction = wins["by_faction"]
    assert isinstance(by_faction, dict)
    for faction, counts in by_faction.items():
        assert isinstance(counts, dict)
        won = counts["wins"]
        assert len(numbers(f"winner={faction}")) == len(numbers(f"winner = {faction.upper()}")) == won
        assert len(numbers(f"winner!={faction}")) == 12 - int(str(won))
    both = set(numbers("winner=town")) & set(numbers("days>5"))
    assert numbers("winner=town", "days>5") == sorted(both)
    assert numbers("failed") == []
    assert numbers("finished", "definition=with_a", "id=many-000003") == [3]

    limited = at_once("show", "runs/many", "--limit", "5", "--where", "days>=1")
    assert [row["number"] for row in listed(limited.stdout)] == [*"01234"]
    assert "5 of 12 conversations" in limited.stderr
    nothing = at_once("show", "runs/many", "--where", "winner=banana")
    assert nothing.stdout == ""
    assert re.search(r"0 of 12 .*mafia.*town", nothing.stderr)


def test_conditions_that_mean_nothing_are_refused_with_what_there_is(
    finished: Lab, at_once: AtOnce, snapshot: SnapshotAssertion
) -> None:
    conditions = (
        *("winnr=mafia", "winner", "days", "days>", "days>many", "days=nan", "winner<mafia", "status=half", "=5", ""),
    )

    assert refusals(at_once, [("show", RUN, "--where", condition) for condition in conditions]) == snapshot


@pytest.mark.ci
def test_grid_is_listed_by_combination_and_its_games_are_named_by_directory(lab: Lab, at_once: AtOnce) -> None:
    lab.write({**experiment(conversations=2), "_grid": {"sweep": {"seed": [1, 2]}}})
    at_once("small.yaml", "--quiet")
    process = at_once("show", RUN, "--where", "turns>0")
    slugs = sorted(path.parent.name for path in (lab.path / RUN).glob("*/experiment.yaml"))

    assert len(slugs) == 2
    parts = process.stdout.split("\n\n")
    assert [part.splitlines()[0] for part in parts] == [f"{slug} (seed: {slug.split('-')[1]})" for slug in slugs]
    assert [len(listed("\n".join(part.splitlines()[1:]))) for part in parts] == [2, 2]
    refused = at_once("show", RUN, "0")
    assert refused.returncode == Exit.BAD_INPUT
    assert f"{RUN} is a grid" in refused.stderr
    assert all(slug in refused.stderr for slug in slugs)
    assert at_once("show", f"{RUN}/{slugs[0]}", "0").returncode == Exit.OK


@pytest.mark.ci
def test_run_under_way_and_one_that_was_killed_are_listed_as_far_as_they_are(lab: Lab, at_once: AtOnce) -> None:
    process = lab.start_held(800, lab.write(experiment(conversations=10)))
    for _ in ("under way", "killed"):
        shown = at_once("show", RUN)
        assert shown.returncode == Exit.OK, shown.stderr
        done = len(listed(shown.stdout))
        assert 0 < done < 10
        assert f"{done} of {done} conversations listed; {10 - done} of 10" in shown.stderr
        process.send_signal(signal.SIGKILL)
        ended(process)


def test_conversations_without_columns_of_their_own_and_discussions_are_listed(lab: Lab, at_once: AtOnce) -> None:
    for name, section in (("echo", {"echo": {"rounds": 2}}), ("discussion", {"discussion": {"topics": ["Bridge?"]}})):
        policy = {"echo": "echo", "discussion": "clumsy"}[name]
        content = experiment(name, models={"m": scripted(policy)}, **section)
        content["conversation_config"] = {"environment": name, "conversations": 3}
        content["agent_definitions"] = [{"agent_id": each, "role": "participant", "model": "m"} for each in "ab"]
        del content["game"]
        assert at_once(lab.write(content), "--quiet").returncode == Exit.OK, name
        rows = listed(at_once("show", f"runs/{name}", "--where", "turns>0").stdout)
        assert [row["number"] for row in rows] == ["0", "1", "2"]
        assert ("consensus" in rows[0]) == (name == "discussion")
    unmet = at_once("show", "runs/echo", "--where", "winner=mafia")
    assert "no 'winner'; allowed: " in unmet.stderr


def test_failed_conversations_are_listed_with_the_reason_and_meet_no_condition_on_a_result(
    lab: Lab, at_once: AtOnce
) -> None:
    refused = "the \x1b[31mreason"
    with in_a_thread(OpenaiServer(script=lambda got: failure(400, refused) if got.number == 0 else Say())) as server:
        assert at_once(lab.write(talk(server.url)), "--quiet").returncode == Exit.FAILURES

    (failed,) = listed(at_once("show", "runs/talk", "--where", "failed").stdout)
    assert failed["status"] == "failed"
    assert printable(refused) in failed["failure"]
    assert len(listed(at_once("show", "runs/talk").stdout)) == 6
    for condition in ("rounds!=99", "rounds<99", "status!=failed", "ended_by!=never", "finished"):
        found = [row["number"] for row in listed(at_once("show", "runs/talk", "--where", condition).stdout)]
        assert len(found) == 5, condition
        assert failed["number"] not in found


def messages(stdout: str) -> tuple[Message, ...]:
    """What `--prompt` printed, as messages."""
    _, *parts = re.split(r"^=== (system|user|assistant)\n", stdout, flags=re.MULTILINE)
    pairs = zip(parts[::2], parts[1::2], strict=True)
    return tuple(Message(role=role, content=text.removesuffix("\n")) for role, text in pairs)  # type: ignore[arg-type]


def test_prompt_printed_is_the_one_that_was_sent(finished: Lab, at_once: AtOnce) -> None:
    """Also for turns of one round, which are answered on the same view."""
    turns = objects(transcript(finished.run_dir())["turns"])
    for turn in (turns[0], turns[1], *turns[5::40], turns[-1]):
        shown = at_once("show", RUN, "0", "--prompt", str(turn["turn"]))
        assert shown.returncode == Exit.OK, shown.stderr
        assert Prompt(messages=messages(shown.stdout)).sha256 == turn["prompt_sha256"]


def test_turn_may_be_shortened_where_it_is_clear(finished: Lab, at_once: AtOnce) -> None:
    keys = [str(turn["turn"]) for turn in objects(transcript(finished.run_dir())["turns"])]
    steps = Counter(key.rsplit("/", 2)[0] for key in keys)
    single = next(name for name, count in steps.items() if count == 1)
    first_round = [key for key in keys if key.startswith("0/")]
    for flag in ("--prompt", "--raw"):
        short, whole = at_once("show", RUN, "0", flag, single), at_once("show", RUN, "0", flag, f"{single}/0/0")
        assert short.returncode == Exit.OK
        assert short.stdout == whole.stdout
        unclear = at_once("show", RUN, "0", flag, "0")
        assert unclear.returncode == Exit.BAD_INPUT
        assert f"several turns: {first_round[0]}, {first_round[1]}" in unclear.stderr
        for unknown in (f"{single}x", "999/Zoe/0/0", "", "/", "\x1b[2J"):
            refused = at_once("show", RUN, "0", flag, unknown)
            assert refused.returncode == Exit.BAD_INPUT, unknown
            assert re.search(r"(near it|several turns): \d+/\w+/\d+/\d+", refused.stderr), unknown
            assert "\x1b" not in refused.stderr
        assert f"{single}/0/0" in at_once("show", RUN, "0", flag, f"{single}x").stderr


def test_prompt_of_another_version_is_refused_and_not_printed(
    finished: Lab, at_once: AtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    render_other_prompts(monkeypatch)
    shown = at_once("show", RUN, "0", "--prompt", "0")

    assert shown.returncode == Exit.BAD_INPUT
    key = str(objects(transcript(finished.run_dir())["turns"])[0]["turn"])
    shown = at_once("show", RUN, "0", "--prompt", key)
    assert shown.returncode == Exit.BAD_INPUT
    assert "of another version" in shown.stderr
    assert shown.stdout == ""


@pytest.fixture
def hostile(lab: Lab, at_once: AtOnce) -> tuple[Lab, OpenaiServer]:
    """A discussion with a server that answers with what acts on a terminal, and what it was sent."""
    message = {"content": HOSTILE, "reasoning_content": "First \x1b[31mthis."}
    reply = Send(200, json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]}).encode())
    with in_a_thread(OpenaiServer(script=lambda _received: reply)) as server:
        content = talk(server.url)
        content["conversation_config"] = {"environment": "discussion", "conversations": 1}
        at_once(lab.write(content), "--quiet")
    return lab, server


def shown_on_terminal(lab: Lab, *args: str) -> str:
    """What `mac-run` writes to a terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*MAC_RUN, *args], cwd=lab.path, env=environ(), stdout=theirs, stderr=theirs, stdin=theirs
    )
    os.close(theirs)
    data = bytearray()
    try:
        while part := os.read(ours, 1 << 16):
            data += part
    except OSError:
        pass  # Linux says so when the process has closed the terminal.
    os.close(ours)
    assert process.wait(LIMIT_S) == Exit.OK
    return data.decode()


@pytest.mark.ci
def test_what_was_sent_and_came_back_is_exact_in_a_pipe_and_harmless_on_a_terminal(
    hostile: tuple[Lab, OpenaiServer], at_once: AtOnce
) -> None:
    lab, server = hostile
    turns = objects(transcript(lab.run_dir("talk"))["turns"])
    sent = [received.json["messages"] for received in server.received if not received.is_canary]
    key = str(turns[-1]["turn"])

    for turn in turns:
        shown = at_once("show", "runs/talk", "0", "--prompt", str(turn["turn"]))
        assert [{"role": each.role, "content": each.content} for each in messages(shown.stdout)] in sent
    reply = turns[-1]["reply"]
    assert isinstance(reply, dict)
    command = [*MAC_RUN, "show", "runs/talk", "0"]
    raw = subprocess.run([*command, "--raw", key], cwd=lab.path, env=environ(), capture_output=True, check=True).stdout
    assert raw.decode("utf-8", "surrogatepass") == reply["text"]
    assert {"\x1b", "\r"} <= set(str(reply["text"]))

    for args in (("--raw",), ("--prompt", key)):
        text = shown_on_terminal(lab, "show", "runs/talk", "0", *args).replace("\r\n", "\n")
        assert [line for line in text.split("\n") if printable(line) != line] == [], args
    for others in (("--thoughts",), ("--turns",), ()):
        piped = at_once("show", "runs/talk", "0", *others).stdout
        assert [line for line in piped.split("\n") if printable(line) != line] == [], others
    thoughts = at_once("show", "runs/talk", "0", "--thoughts").stdout.split("\n")
    first = thoughts.index(r"    thinks  First \x1b[31mthis.")
    assert thoughts[first + 1] == r"            I lie.\x1b[2J\u202e\u200b"
    assert thoughts[first + 2].startswith(r"    says    So be it.\r\x07")
    assert f"=== {key}, thinking" in at_once("show", "runs/talk", "0", "--raw").stdout
    assert "--thoughts shows them" in at_once("show", "runs/talk", "0", "--raw", key).stderr


def test_thoughts_stand_beside_what_was_said_at_each_turn(finished: Lab, at_once: AtOnce) -> None:
    lines = at_once("show", RUN, "0", "--thoughts").stdout.splitlines()
    turns = objects(transcript(finished.run_dir())["turns"])

    assert [line.strip() for line in lines if re.fullmatch(r"  \d+/\w+/\d+/\d+", line)] == [
        turn["turn"] for turn in turns
    ]
    assert sum(line.startswith("    thinks  ") for line in lines) == sum(
        "<thinking>" in json.dumps(turn["reply"]) for turn in turns
    )
    assert not [line for line in lines if "<thinking>" in line]
    assert [line for line in lines if line and not line.startswith(" ")][1:4] == [
        "Day 1, greeting",
        "Night 1",
        "Day 2, discussion",
    ]
