"""`mac-run show`: the list of a run's conversations, and one of them as text, prompts, replies and thoughts."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from operator import eq, ge, gt, le, lt, ne
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from mac_runner.cli.process import Exit
from mac_runner.printable import printable
from mac_runner.reports.testing import LINES_MAX
from mac_runner.results import Table
from mac_runner.runs.testing import run_tables
from mac_runner.types import Message, Prompt
from tests.cli.lab import (
    MAC_RUN,
    ROOT,
    AtOnce,
    Lab,
    Terminal,
    discussion,
    echoes,
    ending,
    environ,
    experiment,
    refusals,
    render_other_prompts,
    scripted,
    served,
)
from tests.kit import unreadable
from tests.sim.behaviour import Say, Send, failure
from tests.sim.openai_run import in_a_thread
from tests.sim.openai_server import OpenaiServer
from tests.tiers import some

SHOW = "show runs/small 0"
HOSTILE = "<think>I lie.\x1b[2J\u202e\u200b</think>\nSo be it.\r\x07\x9b31m \u2028 \ud800 \U000e0041\x00 end\n"


def test_show_prints_a_game_and_who_was_what(finished: Lab, at_once: AtOnce) -> None:
    shown = at_once(SHOW).done("\nDay 1, greeting\n")

    assert shown.stdout.startswith("small-000000 (finished)\n")
    players = shown.stdout.split("\nWho was what\n")[1].splitlines()
    assert players
    assert all(re.search(r" (won |lost)  (lived|died \([a-z ]+\))$", line) for line in players)
    assert at_once("show runs/small small-000000").stdout == shown.stdout


def without_roles(lines: list[str], names: str, roles: str) -> list[str]:
    """Lines of the truth as they are without it: no role behind a name, and private ones with their audience last."""
    plain = [re.sub(rf"\b({names}) \((?:{roles})\)", r"\1", line) for line in lines]
    return [re.sub(r"^  To ([^:]+): (.*)$", r"  \2 [only \1]", line) for line in plain]


def test_show_truth_only_adds_to_the_text(finished: Lab, at_once: AtOnce) -> None:
    record = finished.run_dir().transcript()["record"]
    names = "|".join(member["name"] for member in record["cast"])
    held = {member["role"].title() for member in record["cast"]} | {change["to"] for change in record["role_changes"]}
    roles = "|".join(held)
    plain = without_roles(at_once(SHOW).stdout.splitlines(), names, roles)
    shown = at_once(f"{SHOW} --truth").stdout.splitlines()
    rest = iter(without_roles(shown, names, roles))

    assert not [line for line in plain if line not in rest]
    verdicts = [line for line in shown if line.startswith("    ~ ")]
    assert verdicts
    assert all(re.search(r": (lie|(honest|unclear)(, but wrong: \w+ is the [\w ]+)?)$", line) for line in verdicts)
    nights = [line for line in shown if re.fullmatch(r"Night \d+, in truth", line)]
    assert len(nights) == len(set(nights)) == sum(bool(re.fullmatch(r"Night \d+", line)) for line in shown)


def test_truth_begins_with_the_cast_and_ends_with_who_lied(finished: Lab, at_once: AtOnce) -> None:
    lines = at_once(f"{SHOW} --truth").stdout.splitlines()
    record = finished.run_dir().transcript()["record"]
    cast = [(member["name"], member["role"].title()) for member in record["cast"]]

    assert lines[2] == "The cast"
    assert [line.split()[0] for line in lines[3 : 3 + len(cast)]] == [name for name, _ in cast]
    assert {f"  To {name} ({role}): You are the {role}." for name, role in cast} <= {*lines}
    assert not [line for line in lines if "[only" in line]
    title = lines.index("Who lied, and whom they fooled")
    counted = {
        line.split()[0]: [int(word) for word in re.findall(r"(?<= )\d+(?= |$)", line)[:4]]
        for line in lines[title + 2 :]
    }
    claims = Counter(claim["player"] for claim in record["claims"])
    lies = Counter(claim["player"] for claim in record["claims"] if claim["verdict"] == "lie")
    assert {name: counts[0] for name, counts in counted.items()} == claims
    assert {name: counts[2] for name, counts in counted.items() if counts[2]} == lies


@pytest.mark.ci
def test_show_seat_shows_no_secret_of_others(finished: Lab, at_once: AtOnce) -> None:
    name = at_once(SHOW).stdout.split("layers, in seat order: ")[1].split(",")[0]
    seen = at_once(f"{SHOW} --seat {name}").done(f"as {name} saw it", "[only you").stdout

    assert "Who was what" not in seen
    assert all(line.endswith("[only you]") for line in seen.splitlines() if "[only " in line)

    turns = finished.run_dir().transcript()["turns"]
    for view in ("--thoughts", "--raw"):
        printed = at_once(f"{SHOW} {view} --seat {name}").stdout
        keys = re.findall(r"^(?:  |=== )(\d+/\w+/\d+/\d+)", printed, re.M)
        assert keys == [turn["turn"] for turn in turns if turn["agent"] == name]
    other = next(turn["turn"] for turn in turns if turn["agent"] != name)
    for view in ("--prompt", "--raw"):
        at_once(f"{SHOW} {view} {other} --seat {name}").refused(f"no turn '{other}' of {name}")


def test_show_of_a_game_there_is_not_says_how_many_there_are(finished: Lab, at_once: AtOnce) -> None:
    at_once("show runs/small 99").refused("is called '99'", "2 of 2 conversations")


def test_flags_that_do_not_combine_are_refused(finished: Lab, at_once: AtOnce, snapshot: SnapshotAssertion) -> None:
    views = ("--turns", "--prompt 0", "--raw", "--thoughts")
    asked = (
        *(f"0 {view} --truth" for view in views),
        "0 --turns --seat Abel",
        *(f"0 {view} {other}" for view in views for other in views if view != other),
        *(*views, "--truth", "0 --where failed", "0 --limit 3", "--limit 0"),
        *("0 --tables wins", "--tables wins --limit 3", "--tables wins --seat Abel"),
    )

    assert refusals(at_once, (f"show runs/small {flags}" for flags in asked)) == snapshot


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
    days = [row["outcome"]["days"] for row in sorted(run.index, key=lambda row: row["index"])]
    rows = listed(at_once("show runs/many").stdout)

    assert [row["number"] for row in rows] == [*map(str, range(12))]
    assert [int(row["days"]) for row in rows] == days
    assert {row["status"] for row in rows} == {"finished"}

    def numbers(*conditions: str) -> list[int]:
        flags = [part for condition in conditions for part in ("--where", condition)]
        process = at_once("show runs/many", *flags).done()
        assert f"{max(len(process.stdout.splitlines()) - 1, 0)} of 12 conversations listed" in process.stderr
        return [int(row["number"]) for row in listed(process.stdout)] if process.stdout else []

    comparisons: dict[str, Callable[[Any, Any], Any]]
    comparisons = {"=": eq, "==": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge}
    for sign, compare in comparisons.items():
        assert numbers(f"days{sign}5") == [place for place, day in enumerate(days) if compare(day, 5)], sign
    for faction, counts in run.summary["wins"]["by_faction"].items():
        won = counts["wins"]
        assert len(numbers(f"winner={faction}")) == len(numbers(f"winner = {faction.upper()}")) == won
        assert len(numbers(f"winner!={faction}")) == 12 - won
    both = set(numbers("winner=town")) & set(numbers("days>5"))
    assert numbers("winner=town", "days>5") == sorted(both)
    assert numbers("failed") == []
    assert numbers("finished", "definition=with_a", "id=many-000003") == [3]

    limited = at_once("show runs/many --limit 5 --where days>=1")
    assert [row["number"] for row in listed(limited.stdout)] == [*"01234"]
    assert "5 of 12 conversations" in limited.stderr
    nothing = at_once("show runs/many --where winner=banana")
    assert (nothing.stdout, bool(re.search(r"0 of 12 .*mafia.*town", nothing.stderr))) == ("", True)


def test_conditions_that_mean_nothing_are_refused_with_what_there_is(
    finished: Lab, at_once: AtOnce, snapshot: SnapshotAssertion
) -> None:
    conditions = (
        *("winnr=mafia", "winner", "days", "days>", "days>many", "days=nan", "winner<mafia", "status=half", "=5", ""),
    )

    assert refusals(at_once, [("show runs/small --where", condition) for condition in conditions]) == snapshot


@pytest.mark.ci
def test_grid_is_listed_by_combination_and_its_games_are_named_by_directory(at_once: AtOnce) -> None:
    at_once(experiment(_grid={"sweep": {"seed": [1, 2]}}), "--quiet").done()
    parts = [part.splitlines() for part in at_once("show runs/small --where turns>0").stdout.split("\n\n")]

    assert [part[0] for part in parts] == ["seed-1 (seed: 1)", "seed-2 (seed: 2)"]
    assert [len(listed("\n".join(part[1:]))) for part in parts] == [2, 2]
    at_once(SHOW).refused("runs/small is a grid", "seed-1", "seed-2")
    at_once("show runs/small/seed-1 0").done()


def test_grid_is_listed_by_what_it_varies_and_a_misspelt_column_is_answered_with_that_too(at_once: AtOnce) -> None:
    at_once(experiment(_grid={"sweep": {"seed": [1, 2]}}), "--quiet").done()

    for condition in ("combination=seed-2", "seed>1"):
        assert at_once("show runs/small --where", condition).stdout.startswith("seed-2 (seed: 2)\nnumber ")
    refused = at_once("show runs/small --where sed=2").refused("no 'sed'", "combination, ", "seed, ", "turns, ")
    assert not refused.stdout


@pytest.mark.ci
def test_run_under_way_and_one_that_was_killed_are_listed_as_far_as_they_are(lab: Lab, at_once: AtOnce) -> None:
    process = lab.start_held(800, lab.write(experiment(conversations=10)))
    for _ in ("under way", "killed"):
        shown = at_once("show runs/small").done()
        done = len(listed(shown.stdout))
        assert 0 < done < 10
        assert f"{done} of {done} conversations listed; {10 - done} of 10" in shown.stderr
        process.send_signal(signal.SIGKILL)
        ending(process)


def test_conversations_without_columns_of_their_own_and_discussions_are_listed(at_once: AtOnce) -> None:
    contents = {"echoes": echoes(scripted("echo"), agents=({}, {}), rounds=2), "talk": discussion(scripted("clumsy"))}
    for name, content in contents.items():
        at_once(content, "--quiet").done()
        rows = listed(at_once(f"show runs/{name} --where turns>0").stdout)
        assert [row["number"] for row in rows] == ["0", "1", "2"]
        assert ("consensus" in rows[0]) == (name == "talk")
    at_once("show runs/echoes --where winner=mafia").refused("no 'winner'; allowed: ")


def test_failed_conversations_are_listed_with_the_reason_and_meet_no_condition_on_a_result(at_once: AtOnce) -> None:
    refused = "the \x1b[31mreason"
    with in_a_thread(OpenaiServer(script=lambda got: failure(400, refused) if got.number == 0 else Say())) as server:
        at_once(discussion(served(server.url)), "--quiet").ends(Exit.FAILURES)

    (failed,) = listed(at_once("show runs/talk --where failed").stdout)
    assert failed["status"] == "failed"
    assert printable(refused) in failed["failure"]
    assert len(listed(at_once("show runs/talk").stdout)) == 3
    for condition in ("rounds!=99", "rounds<99", "status!=failed", "ended_by!=never", "finished"):
        found = [row["number"] for row in listed(at_once("show runs/talk --where", condition).stdout)]
        assert len(found) == 2, condition
        assert failed["number"] not in found


EXPERIMENTS = sorted((ROOT / "experiments").glob("*.yaml"))


@pytest.mark.parametrize("file", some(3, EXPERIMENTS), ids=lambda file: file.stem)
def test_every_table_of_an_experiment_is_readable_and_its_end_is_short(lab: Lab, at_once: AtOnce, file: Path) -> None:
    ended = at_once(file, "--limit", "1", "--out", "runs/one").done("mac-run show runs/one --tables").stdout
    run = lab.run_dir("one").path

    assert len(ended.splitlines()) <= LINES_MAX
    tables = run_tables(run)
    assert len(tables) > 1
    for width in (80, 100, 140):
        assert unreadable(tables, width) == []
    titles = [part.title for part in tables if isinstance(part, Table)]
    at_once("show runs/one --tables").done(titles[0])
    at_once("show runs/one --tables", titles[-1][:8].upper()).done(titles[-1])
    at_once("show runs/one --tables absent").refused("no table is called 'absent'")


def messages(stdout: str) -> tuple[Message, ...]:
    """What `--prompt` printed, as messages."""
    _, *parts = re.split(r"^=== (system|user|assistant)\n", stdout, flags=re.MULTILINE)
    pairs = zip(parts[::2], parts[1::2], strict=True)
    return tuple(Message(role=role, content=text.removesuffix("\n")) for role, text in pairs)  # type: ignore[arg-type]


def test_prompt_printed_is_the_one_that_was_sent(finished: Lab, at_once: AtOnce) -> None:
    """Also for turns of one round, which are answered on the same view."""
    turns = finished.run_dir().transcript()["turns"]
    for turn in (turns[0], turns[1], *turns[5::40], turns[-1]):
        shown = at_once(SHOW, "--prompt", str(turn["turn"])).done()
        assert Prompt(messages=messages(shown.stdout)).sha256 == turn["prompt_sha256"]


def test_turn_may_be_shortened_where_it_is_clear(finished: Lab, at_once: AtOnce) -> None:
    keys = [str(turn["turn"]) for turn in finished.run_dir().transcript()["turns"]]
    steps = Counter(key.rsplit("/", 2)[0] for key in keys)
    single = next(name for name, count in steps.items() if count == 1)
    first_round = [key for key in keys if key.startswith("0/")]
    for flag in ("--prompt", "--raw"):
        short = at_once(SHOW, flag, single).done()
        whole = at_once(SHOW, flag, f"{single}/0/0")
        assert short.stdout == whole.stdout
        at_once(SHOW, flag, "0").refused(f"several turns: {first_round[0]}, {first_round[1]}")
        for unknown in (f"{single}x", "999/Zoe/0/0", "", "/", "\x1b[2J"):
            refused = at_once(SHOW, flag, unknown).refused()
            assert re.search(r"(near it|several turns): \d+/\w+/\d+/\d+", refused.stderr), unknown
            assert "\x1b" not in refused.stderr
        assert f"{single}/0/0" in at_once(SHOW, flag, f"{single}x").stderr


def test_prompt_of_another_version_is_refused_and_not_printed(
    finished: Lab, at_once: AtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = finished.run_dir().transcript()["turns"][0]["turn"]
    render_other_prompts(monkeypatch)

    at_once(f"{SHOW} --prompt 0").refused()
    at_once(f"{SHOW} --prompt {key}").refused("of another version")


@pytest.fixture
def hostile(at_once: AtOnce) -> OpenaiServer:
    """A server that answered a discussion with what acts on a terminal, and what it was sent."""
    message = {"content": HOSTILE, "reasoning_content": "First \x1b[31mthis."}
    reply = Send(200, json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]}).encode())
    with in_a_thread(OpenaiServer(script=lambda _received: reply)) as server:
        at_once(discussion(served(server.url), conversations=1), "--quiet").done()
    return server


@pytest.mark.ci
def test_what_was_sent_and_came_back_is_exact_in_a_pipe_and_harmless_on_a_terminal(
    lab: Lab, hostile: OpenaiServer, at_once: AtOnce, on_terminal: Callable[..., Terminal]
) -> None:
    turns = lab.run_dir("talk").transcript()["turns"]
    sent = [received.json["messages"] for received in hostile.received if not received.is_canary]
    key, text = turns[-1]["turn"], turns[-1]["reply"]["text"]

    for turn in turns:
        shown = at_once(f"show runs/talk 0 --prompt {turn['turn']}")
        assert [{"role": each.role, "content": each.content} for each in messages(shown.stdout)] in sent
    command = [*MAC_RUN, "show", "runs/talk", "0", "--raw", key]
    raw = subprocess.run(command, cwd=lab.path, env=environ(), capture_output=True, check=True).stdout
    assert raw.decode("utf-8", "surrogatepass") == text
    assert {"\x1b", "\r"} <= {*text}

    for args in (("--raw",), ("--prompt", key)):
        terminal = on_terminal("show", "runs/talk", "0", *args)
        assert terminal.end() == Exit.OK
        lines = terminal.text.replace("\r\n", "\n").split("\n")
        assert [line for line in lines if printable(line) != line] == [], args
    for flag in ("--thoughts", "--turns", ""):
        piped = at_once(f"show runs/talk 0 {flag}").done().stdout
        assert [line for line in piped.split("\n") if printable(line) != line] == [], flag
    thoughts = at_once("show runs/talk 0 --thoughts").stdout.split("\n")
    first = thoughts.index(r"    thinks  First \x1b[31mthis.")
    assert thoughts[first + 1] == r"            I lie.\x1b[2J\u202e\u200b"
    assert thoughts[first + 2].startswith(r"    says    So be it.\r\x07")
    at_once("show runs/talk 0 --raw").done(f"=== {key}, thinking")
    at_once(f"show runs/talk 0 --raw {key}").done(told="--thoughts shows them")


def test_thoughts_stand_beside_what_was_said_at_each_turn(finished: Lab, at_once: AtOnce) -> None:
    lines = at_once(f"{SHOW} --thoughts").stdout.splitlines()
    turns = finished.run_dir().transcript()["turns"]

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
