"""`mac-run fork`: a recorded conversation played again from one of its turns on, in a run directory of its own."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

import mac_runner
from mac_runner.cli.process import Exit
from mac_runner.environments import Environment
from mac_runner.environments.testing import receive
from mac_runner.errors import RunDirectoryError
from mac_runner.plan import request_seed
from mac_runner.runs.testing import ForkRequest, parent_conversation, plan_fork, trust
from mac_runner.store import read_run, without_timing
from mac_runner.store.testing import Branch, encode_json
from mac_runner.types import JsonObject, RecordedReply, Reply, Task, Turn
from mac_runner.viewer.testing import NotThereError, RunSource
from mac_runner.views.testing import fork_trees
from tests.cli.lab import ROOT, AtOnce, Lab, discussion, echoes, experiment, refusals, scripted
from tests.faults.tier import SCALE
from tests.kit import copied
from tests.views.playing import compared

MODELS: JsonObject = {"m": scripted(), "r": scripted("random")}


THREE: tuple[JsonObject, ...] = ({}, {}, {})
MODERATOR: JsonObject = {
    "agent_id": "mod",
    "role": "moderator",
    "role_specific_config": {"speak_after_within_round": ["a", "b", "c"]},
}
GAMES = experiment(models=MODELS, conversations=3)
"""In which a heuristic and a random player meet."""
ECHO = echoes(scripted("echo"), agents=THREE, rounds=6, conversations=4)
TALK = discussion(scripted("discussant"), agents=[*THREE, MODERATOR], conversations=4, max_rounds=3)


def essence(found: JsonObject) -> bytes:
    """What a fork shares with its parent: all but the task, the names of models and the times."""
    return encode_json(without_timing({key: value for key, value in found.items() if key != "task"}))


def replies_in(found: Any) -> dict[str, str]:
    return {turn["turn"]: turn["reply"]["text"] for turn in found["turns"]}


def played_on(environment: Environment, branch: Branch, policy_of: dict[str, str]) -> dict[str, str]:
    """Every reply of a branch, played by scripted players as the engine of a run would."""
    task: Task = branch.task
    conversation = environment.open(task)
    said = {recorded.turn_key: recorded.reply.text for recorded in branch.replies}
    kept = {recorded.turn_key: recorded for recorded in branch.replies}
    while conversation.outcome is None:
        turn = next(turn for turn in conversation.turns() if not _waits(turn.after, conversation.turns(), turn.round))
        if (recorded := kept.get(turn.key)) is None:
            policy = environment.policy(policy_of[turn.model])
            prompt = conversation.prompt(turn)
            reply = Reply(text=policy(prompt.view, Random(request_seed(task, turn))))
            recorded = RecordedReply(turn_key=turn.key, prompt_sha256=prompt.sha256, reply=reply)
        said[turn.key] = recorded.reply.text
        receive(conversation, turn, recorded)
    return said


def _waits(after: frozenset[str], turns: tuple[Turn, ...], number: int) -> bool:
    return any(turn.agent in after and turn.round == number for turn in turns)


@pytest.mark.ci
@pytest.mark.parametrize("content", [GAMES, TALK, ECHO], ids=["game", "talk", "echo"])
def test_control_fork_at_any_turn_says_what_its_parent_said(lab: Lab, at_once: AtOnce, content: Any) -> None:
    at_once(content, "--quiet", "--out", "run").done()
    contents = read_run(lab.path / "run")
    policies = {name: model["scripted_config"]["policy"] for name, model in content["model_definitions"].items()}
    chance, rows = Random(5), list(contents.rows())
    for number in range(8 * SCALE):
        row = chance.choice(rows)
        said = replies_in(contents.acknowledged(row))
        key = chance.choice([*said])
        request = ForkRequest(
            run=lab.path / "run", game=str(row["task_id"]), turn=key, is_round=bool(number % 2), draws=range(2)
        )
        planned = plan_fork(request)
        control, drawn = planned.branches
        assert played_on(planned.environment, control, policies) == said, key
        kept = {recorded.turn_key for recorded in drawn.replies}
        assert kept <= said.keys()
        assert key not in kept


@pytest.fixture(scope="session")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with a run of four games; not to be changed."""
    lab = Lab(path=tmp_path_factory.mktemp("parent"))
    lab.play(lab.write(GAMES), "--quiet")
    return lab.path


@pytest.fixture
def forked(lab: Lab, parent: Path) -> Lab:
    """A working directory of its own with that run."""
    shutil.copytree(parent, lab.path, dirs_exist_ok=True)
    return lab


GAME = "small-000000"
FORK_OF = "is a fork of"


@pytest.mark.ci
def test_control_fork_is_a_run_equal_to_its_parent(forked: Lab, at_once: AtOnce) -> None:
    command = "fork runs/small 0 --turn #60 --out fk"
    at_once(command).done()

    fork = forked.dir("fk").transcript(f"{GAME}-f60-d000")
    assert essence(fork) == essence(forked.run_dir().transcript(GAME))
    (row,) = forked.dir("fk").index
    due = {"fork_of": GAME, "turn": [*replies_in(fork)][60], "arm": "fork", "draw": 0, "off_policy": False}
    assert {key: row[key] for key in due} == due
    forked.verified(forked.path / "fk")
    at_once(command).done(told="nothing to run")
    at_once("fork fk").done("1 of 1 games finished")


@pytest.mark.ci
def test_draws_differ_from_the_turn_on_and_only_there(forked: Lab, at_once: AtOnce) -> None:
    at_once("fork runs/small 0 --turn #30 --draws 4 --out fk").done()

    said = [*replies_in(forked.run_dir().transcript(GAME)).items()]
    ends = set()
    for draw in range(4):
        found = forked.dir("fk").transcript(f"{GAME}-f30-d{draw:03d}")
        assert [*replies_in(found).items()][:30] == said[:30]
        ends.add(str(found["final_state_sha256"]))
    assert len(ends) == 4
    forked.verified(forked.path / "fk")


@pytest.mark.ci
def test_killed_fork_goes_on_by_the_same_command_and_without_its_parent(forked: Lab, at_once: AtOnce) -> None:
    command = "fork runs/small 0 --turn #20 --draws 3"
    at_once(f"{command} --out whole --quiet").done()
    forked.kill_held(60, *command.split(), "--out", "fk", "--concurrency", "1")
    shutil.copytree(forked.path / "fk", forked.path / "copy")

    at_once(f"{command} --out fk --quiet").done()
    shutil.rmtree(forked.run_dir().path)
    at_once("fork copy --quiet").done()

    for name in ("fk", "copy"):
        assert forked.dir(name).transcripts == forked.dir("whole").transcripts
    forked.verified(forked.path / "copy")


PERSONA = "agent_definitions.with_m.persona=You are cautious."


def test_change_that_an_earlier_turn_would_see_is_refused_and_names_it(forked: Lab, at_once: AtOnce) -> None:
    first = next(turn["turn"] for turn in forked.run_dir().transcript(GAME)["turns"] if turn["model"] == "m")
    with forked.unchanged():
        at_once("fork runs/small 0 --turn #60 --out fk --set", PERSONA).refused(first, "--rebase")


def test_rebased_fork_marks_every_number_as_off_policy(forked: Lab, at_once: AtOnce) -> None:
    at_once("fork runs/small 0 --turn #60 --out fk --rebase --set", PERSONA).done("off-policy")

    run = forked.dir("fk")
    assert run.index[0]["off_policy"] is True
    arms = {"fork": {"planned": 1, "ended": 1, "off_policy": True}}
    assert run.summary["fork"] == {"of": 1, "arms": arms, "off_policy": True}
    forked.verified(run.path)


def test_seat_with_another_model_keeps_the_names_of_the_models_that_spoke_before(forked: Lab, at_once: AtOnce) -> None:
    turns = forked.run_dir().transcript(GAME)["turns"]
    agent = next(turn["agent"] for turn in turns[40:] if turn["model"] == "m")

    at_once(f"fork runs/small 0 --turn #40 --seat {agent}.model=r --out fk").done()

    found = forked.dir("fk").transcript(f"{GAME}-f40-d000")
    models = [turn["model"] for turn in found["turns"] if turn["agent"] == agent]
    before = sum(turn["agent"] == agent for turn in turns[:40])
    assert models[:before] == ["m"] * before
    assert set(models[before:]) == {"r"}
    forked.verified(forked.path / "fk")
    (path,) = (forked.path / "fk" / "transcripts").glob("*.json")
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'"model": "m"', b'"model": "r"', 1))
    at_once("verify fk").ends(Exit.FAILURES)
    at_once("verify fk --repair").done()
    assert path.read_bytes() == whole


def test_given_reply_is_said_and_marked(forked: Lab, at_once: AtOnce) -> None:
    text = "<speak>I am the Sheriff.</speak>"
    (forked.path / "reply.txt").write_text(text)

    for name, flags in (("one", ("--reply", text)), ("two", ("--reply-file", "reply.txt"))):
        at_once("fork runs/small 0 --turn #30", *flags, "--out", name).done()

    found = forked.dir("one").transcript(f"{GAME}-f30-d000")
    key = list(replies_in(found))[30]
    assert replies_in(found)[key] == text
    assert found["task"]["fork"]["forced"] == [key]
    assert forked.dir("one").index[0]["off_policy"] is True
    assert forked.dir("one").transcripts == forked.dir("two").transcripts
    forked.verified(forked.path / "one")


def test_fork_of_a_fork_ends_like_it_at_turns_before_and_after_the_first(forked: Lab, at_once: AtOnce) -> None:
    at_once("fork runs/small 0 --turn #60 --draws 2 --out fk").done()
    shutil.rmtree(forked.path / "runs")
    drawn = forked.dir("fk").transcript(f"{GAME}-f60-d001")

    for place in (20, 60, 70):
        at_once(f"fork fk 1 --turn #{place} --out again{place}").done()
        again = forked.dir(f"again{place}")
        assert essence(again.transcript(f"{GAME}-f60-d001-f{place}-d000")) == essence(drawn)
        forked.verified(again.path)


def test_filter_forks_all_games_that_meet_it_and_names_those_without_the_turn(forked: Lab, at_once: AtOnce) -> None:
    counts: dict[str, int] = {row["task_id"]: row["counts"]["turns"] for row in forked.run_dir().index}
    shortest = min(counts, key=lambda task_id: counts[task_id])
    turn = f"#{counts[shortest]}"

    at_once(f"fork runs/small --where finished --turn {turn} --out fk").done(told=f"a turn {turn}: {shortest}")

    assert {row["fork_of"] for row in forked.dir("fk").index} == counts.keys() - {shortest}


def test_dry_run_says_the_budget_and_touches_nothing(forked: Lab, at_once: AtOnce) -> None:
    rest = len(replies_in(forked.run_dir().transcript(GAME))) - 60
    with forked.unchanged():
        at_once("fork runs/small 0 --turn #60 --draws 5 --out fk --dry-run").done(
            f"5 conversations, about {5 * rest} turns"
        )


def test_forks_merge_with_forks_alone(forked: Lab, at_once: AtOnce) -> None:
    for place in (30, 60):
        at_once(f"fork runs/small 0 --turn #{place} --out fk{place}").done()

    at_once("merge both fk30 fk60").done()
    at_once("merge mixed fk30 runs/small").refused("forks with forks")

    forked.verified(forked.path / "both")
    assert [row["task_id"] for row in forked.dir("both").index] == [f"{GAME}-f{place}-d000" for place in (30, 60)]
    assert forked.dir("both").summary["fork"]["of"] == 2


def test_what_cannot_be_forked_is_refused_with_a_reason(
    forked: Lab, at_once: AtOnce, snapshot: SnapshotAssertion
) -> None:
    fork, at = "fork runs/small 0", "fork runs/small 0 --turn #60"
    at_once(f"{at} --out fk").done()
    refused = (
        "fork runs/small 9 --turn #60 --out x",
        *(f"{fork} --turn {turn} --out x" for turn in ("#9999", "99/Nobody")),
        *(
            f"{at} --set {change} --out x"
            for change in ("seed=3", "'game.lobby=[sheriff, doctor, godfather, mafioso]'")
        ),
        *(f"{at} --seat Nobody.model=r --out x", f"{at} --draws 2 --out fk", f"{at} --out runs/small", f"{at} --out ."),
        *(at, f"{fork} --out x", "fork runs/small", "small.yaml --out fk"),
    )
    with forked.unchanged():
        assert refusals(at_once, refused) == snapshot


def test_damaged_parent_is_refused(forked: Lab, at_once: AtOnce) -> None:
    path = forked.path / "runs" / "small" / "transcripts" / f"{GAME}.json"
    path.write_bytes(path.read_bytes().replace(b"Sheriff", b"sheriff"))

    at_once("fork runs/small 0 --turn #60 --out fk").refused("not what was")


@pytest.mark.ci
def test_value_pairs_the_draws_of_its_arms(forked: Lab, at_once: AtOnce) -> None:
    command = "fork runs/small 0 --value --turn #30 --draws 3 --silence --out fk --quiet"
    process = at_once(command).done("said less resampled")

    value = json.loads((forked.path / "fk" / "value.json").read_text())
    assert {name: arm["n"] for name, arm in value["arms"].items()} == {"said": 3, "resampled": 3, "silent": 3}
    assert [(pair["first"], pair["second"], pair["pairs"]) for pair in value["differences"]] == [
        ("said", "resampled", 3),
        ("said", "silent", 3),
    ]
    key, said = [*replies_in(forked.run_dir().transcript(GAME)).items()][30]
    for draw in range(1, 4):
        kept = forked.dir("fk").transcript(f"{GAME}-f30-said-d{draw:03d}")
        other = forked.dir("fk").transcript(f"{GAME}-f30-resampled-d{draw:03d}")
        assert replies_in(kept)[key] == said
        if replies_in(other)[key] == said:
            assert essence(kept) == essence(other)
    assert at_once(command).stdout == process.stdout
    forked.verified(forked.path / "fk")


def test_turn_keeps_what_was_said_beside_it_and_round_draws_it_again(lab: Lab, at_once: AtOnce) -> None:
    at_once(ECHO, "--quiet", "--out", "run").done()
    found = {
        is_round: plan_fork(ForkRequest(run=lab.path / "run", game="0", turn="2/b", is_round=is_round)).branches[0]
        for is_round in (False, True)
    }

    kept = {is_round: {recorded.turn_key for recorded in branch.replies} for is_round, branch in found.items()}
    before = {f"{number}/{name}/0/0" for number in range(2) for name in ("a", "b", "c")}
    assert kept == {False: before | {"2/a/0/0", "2/c/0/0"}, True: before}


@pytest.mark.ci
def test_game_of_a_plug_in_is_forked_where_its_code_is_trusted(lab: Lab, at_once: AtOnce) -> None:
    for name in ("werewolf.py", "werewolf.yaml"):
        copied(ROOT / "examples" / name, lab.path)
    at_once("werewolf.yaml --limit 4 --out run --quiet").done()
    command = ("fork", "run", "0", "--turn", "#9", "--out", "fk", "--quiet")

    lab.run(*command).refused("--trust")  # In a process that has not imported the code.
    at_once(*command, "--trust").done()

    assert not (lab.path / "x").exists()
    fork = lab.dir("fk").transcript("werewolf-000000-f9-d000")
    assert essence(fork) == essence(lab.dir("run").transcript("werewolf-000000"))
    trust([lab.path / "run"])
    chance = Random(8)
    rows = [*read_run(lab.path / "run").rows()]
    for _ in range(20):
        row = chance.choice(rows)
        said = replies_in(lab.dir("run").transcript(str(row["task_id"])))
        key = chance.choice([*said])
        planned = plan_fork(ForkRequest(run=lab.path / "run", game=str(row["task_id"]), turn=key))
        assert played_on(planned.environment, planned.branches[0], {"village": "random"}) == said, key


@pytest.mark.ci
def test_functions_do_what_the_verbs_do(forked: Lab, at_once: AtOnce) -> None:
    run, fork = forked.run_dir().path, partial(mac_runner.fork, turn="#60", progress=False)
    at_once("fork runs/small 0 --turn #60 --draws 2 --out verbs").done()
    at_once("fork runs/small 0 --value --turn #60 --draws 3 --out verbs-value --outcome days").done()

    view = fork(run, 0, draws=2, out="functions")
    value = mac_runner.value(run, 0, turn="#60", draws=3, outcome="days", out="functions-value", progress=False)

    assert view.summary["fork"] == forked.dir("verbs").summary["fork"]
    assert forked.dir("functions").transcripts == forked.dir("verbs").transcripts
    assert value == json.loads((forked.path / "verbs-value" / "value.json").read_text())
    assert fork(run, 0, draws=2, out="functions").summary == view.summary
    with pytest.raises(mac_runner.ConfigError, match="game, or conditions"):
        fork(run, out="x")
    with pytest.raises(mac_runner.ConfigError, match=r"where: .*\['finished'\]"):
        fork(run, where="finished", out="x")
    several = fork(run, where=(one for one in ["finished"]), out="functions-all")
    assert len(several) == len(mac_runner.open_run(run))


def test_a_fork_is_compared_with_its_parent_while_that_is_there(forked: Lab, at_once: AtOnce) -> None:
    at_once("fork runs/small 0 --turn #60 --draws 3 --out fk").done()
    contents = read_run(forked.path / "fk")
    tree, *others = fork_trees(contents.rows())
    parent = parent_conversation(contents, GAME)[1]

    assert (tree.parent, others) == (GAME, [])
    assert sum(len(arm.draws) for arm in tree.arms) == contents.counts.done
    assert all(arm.value is not None and arm.lo is not None for arm in tree.arms)
    for row in contents.rows():
        view = compared(contents.transcript(str(row["task_id"])), parent)
        assert view.reason == f"{row['task_id']} {FORK_OF} {GAME}"
        assert view.first_turn in ("", row["turn"])

    pages = RunSource(forked.path / "fk")
    assert pages.compare("", GAME, "1", "").reason.endswith(f"fork of {GAME}")
    assert pages.conversation("", GAME, "").task_id == GAME
    assert [*pages.forks("", GAME)] == [*pages.forks("", "1")] == [*pages.forks("", "")] == [tree]
    with pytest.raises(NotThereError):
        pages.conversation("", "small-000002", "")

    file = forked.path / "runs" / "small" / "transcripts" / f"{GAME}.json"
    file.write_bytes(file.read_bytes() + b"\n")
    with pytest.raises(RunDirectoryError, match="not what was"):
        parent_conversation(contents, GAME)
    with pytest.raises(RunDirectoryError, match="forks of 'small-000002'"):
        parent_conversation(contents, "small-000002")
