"""The figures of games and of discussions, counted again from their transcripts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

import mac_runner
from mac_runner.environments.discussion.testing import discussion_figures
from mac_runner.environments.town_of_salem.testing import ROLES, opposes_town
from mac_runner.figures.registry import run_sections, study_sections
from mac_runner.figures.testing import Figure, RunData, Section, Study, Value
from mac_runner.flat import Row
from mac_runner.runs.testing import run_data, run_sources
from mac_runner.types import JsonObject
from tests.cli.lab import experiment, scripted
from tests.figures.reports import run as run_of
from tests.kit import index_row, summary_of
from tests.views import playing

pytest.importorskip("altair")
pytest.importorskip("scipy")
pandas = pytest.importorskip("pandas")

PLAYER = """
from mac_runner.environments.town_of_salem.bots import POLICIES

def shaky(view, chance):
    if chance.random() < 0.006:
        raise ValueError("lost the thread")
    return POLICIES["heuristic"](view, chance)
"""

MODELS = {"careful": scripted("./player.py:shaky"), "lucky": scripted("random")}


@pytest.fixture(scope="module")
def games(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Games of two models, some of which failed."""
    place = tmp_path_factory.mktemp("recount")
    (place / "player.py").write_text(PLAYER, encoding="utf-8")
    return play(place, "whole", MODELS)


def play(place: Path, name: str, models: Mapping[str, Any]) -> Path:
    file = place / f"{name}.yaml"
    file.write_text(yaml.safe_dump(experiment(name, conversations=9, models=models)), encoding="utf-8")
    mac_runner.run(file, out=place / name, progress=False)
    return place / name


@cache
def recorded(run: Path) -> Sequence[dict[str, Any]]:
    return [json.loads(path.read_bytes()) for path in sorted((run / "transcripts").glob("*.json"))]


def finished(run: Path) -> list[dict[str, Any]]:
    return [one for one in recorded(run) if one["status"] == "finished"]


@cache
def data_of(run: Path) -> RunData:
    (source,) = run_sources([run]).runs
    return run_data(source, run.name)


@cache
def figures_of(run: Path) -> Mapping[str, Figure]:
    return {figure.id: figure for section in run_sections(data_of(run)) for figure in section.figures}


def column(figure: Figure, value: str, *keys: str) -> dict[Any, Value]:
    return {tuple(row[key] for key in keys) if len(keys) > 1 else row[keys[0]]: row[value] for row in figure.rows}


def players(games: Sequence[Mapping[str, Any]]) -> Any:
    frame = pandas.DataFrame(
        {**player_of(game, player["agent"]), "game": place, "days": game["outcome"]["days"]}
        for place, game in enumerate(games)
        for player in game["outcome"]["players"]
    )
    frame["has_won"] = [
        side in games[game]["outcome"]["winners"] if side != "neutral" else won
        for game, side, won in zip(frame.game, frame.side, frame.won, strict=True)
    ]
    return frame


@pytest.mark.ci
def test_wins_by_faction_are_those_of_the_games_and_failed_ones_count_as_lost(games: Path) -> None:
    assert {one["status"] for one in recorded(games)} == {"finished", "failed"}
    figure, with_failed = figures_of(games)["wins-by-faction"], figures_of(games)["wins-with-failed"]
    won = players(finished(games)).groupby(["side", "game"]).has_won.any().groupby("side")
    everything = len(recorded(games))
    # classic-7 has players of each of its factions in every game.
    expected = {(side, "finished"): rate for side, rate in won.mean().items()}
    expected |= {(side, "failed ones counted too"): wins / everything for side, wins in won.sum().items()}

    assert column(figure, "value", "side") == pytest.approx(won.mean().to_dict(), abs=1e-4)
    both = {key: rate for key, rate in column(with_failed, "value", "label", "series").items() if " as " not in key[0]}
    assert both == pytest.approx(expected)
    assert (figure.n, with_failed.n) == (len(finished(games)), everything)


@pytest.mark.ci
def test_failed_games_without_recorded_roles_count_as_lost_by_all_who_may_have_played(games: Path) -> None:
    data = data_of(games)
    failed = [*data.read_table("agents", lambda row: row["status"] == "failed")]
    everything = len(recorded(games))

    def altered_by(agents: Sequence[Row]) -> RunData:
        return replace(data, name="b", read_table=lambda name, _wanted: iter(agents if name == "agents" else []))

    for altered in map(altered_by, ([], [{**row, "role": None} for row in failed])):
        single = figures(run_sections(altered))["wins-with-failed"]
        assert {row["n"] for row in single.rows if row["label"] in ("town", "mafia")} == {
            len(finished(games)),
            everything,
        }
        assert single.notes[-1].startswith(f"Not all roles of {everything - len(finished(games))} failed games")
        compared = figures(study_sections(Study(runs=[data, altered])))["wins-with-failed"]
        assert compared.n == 2 * everything
        for label in ("town, b", f"town, {data.name}"):
            counted = {row["series"]: row["n"] for row in compared.rows if row["label"] == label}
            assert counted == {"finished": len(finished(games)), "failed ones counted too": everything}


def test_wins_by_role_and_by_model_are_those_of_the_players(games: Path) -> None:
    frame = players(finished(games))
    sides = frame.groupby(["model", "side", "game"]).has_won.any().groupby(["model", "side"]).mean()
    by_model = column(figures_of(games)["wins-by-model"], "value", "model")

    assert column(figures_of(games)["wins-by-role"], "value", "role") == pytest.approx(
        frame.groupby("role").won.mean().to_dict(), abs=1e-4
    )
    assert by_model == pytest.approx({f"{model} as {side}": rate for (model, side), rate in sides.items()}, abs=1e-4)


def test_a_side_that_took_its_default_often_says_so_beside_its_name(games: Path) -> None:
    chance = Random(5)
    taken = {(model, side): chance.choice([0, 5, 6, 40]) for model in MODELS for side in ("town", "mafia")}
    rows: list[Any] = [*data_of(games).read_rows()]
    for player in (player for row in rows if row["outcome"] for player in row["outcome"]["players"]):
        player["measures"] |= {"tu": 100, "de": taken[player["model"], player["faction"]]}
    altered = replace(data_of(games), name="altered", read_rows=lambda: iter(rows))
    figures = {figure.id: figure for section in run_sections(altered) for figure in section.figures}

    names = {f"{model} as {side}": count for (model, side), count in taken.items()}
    expected = {f"{name} (defaults {count}%)" if count > 5 else name for name, count in names.items()}
    assert {row["model"] for row in figures["wins-by-model"].rows} == expected
    (section,) = study_sections(Study(runs=[data_of(games), altered]))
    compared = {figure.id: figure for figure in section.figures}
    for name, column in (("wins-by-run", "run"), ("wins-difference", "run")):
        assert any("(defaults" in str(row[column]) for row in compared[name].rows), name


def test_length_counts_every_game_once_and_survival_is_the_share_of_players_alive_after_a_day(games: Path) -> None:
    """Until the first game ended nobody is censored, so the estimate is a plain share."""
    days = pandas.Series([game["outcome"]["days"] for game in finished(games)]).value_counts().to_dict()
    found = pandas.DataFrame(figures_of(games)["game-length"].rows).groupby("x")["count"].sum().to_dict()
    assert found == days

    frame = players(finished(games))
    rows = [row for row in figures_of(games)["survival-by-faction"].rows if float(row["x"] or 0) < frame.days.min()]
    assert any(row["x"] for row in rows)
    for row in rows:
        side = frame[frame.side == row["label"]]
        assert row["value"] == pytest.approx(1 - (side.died_on_day <= row["x"]).mean())


def player_of(game: Mapping[str, Any], name: str) -> Any:
    """A player as the outcome has it, with the side that they were dealt to."""
    (player,) = (player for player in game["outcome"]["players"] if player["agent"] == name)
    return {**player, "side": str(ROLES[player["role"]].faction)}


def test_votes_of_the_town_are_those_of_the_record(games: Path) -> None:
    votes = []
    for game in finished(games):
        for event in game["record"]["events"]:
            # Nobody of classic-7 changes their role.
            if event.get("kind") == "vote":
                voter, target = (player_of(game, event["data"][who]) for who in ("player", "target"))
                if voter["side"] == "town":
                    votes.append((voter["model"], event["day"], bool(opposes_town(ROLES[target["role"]]))))
    frame = pandas.DataFrame(votes, columns=["model", "day", "is_right"])

    figure = figures_of(games)["vote-accuracy"]
    lot = {row["round"]: row for row in figure.rows if row["of"] == "by lot"}
    figure = replace(figure, rows=tuple(row for row in figure.rows if row["of"] != "by lot"))
    assert column(figure, "value", "of", "round") == pytest.approx(
        frame.groupby(["model", "day"]).is_right.mean().to_dict(), abs=1e-4
    )
    assert column(figure, "n", "of", "round") == frame.groupby(["model", "day"]).size().to_dict()
    assert {day: row["n"] for day, row in lot.items()} == frame.groupby("day").size().to_dict()
    assert all(row["lo"] is None and 0 < float(row["value"] or 0) < 1 for row in lot.values())


@pytest.mark.ci
def test_mislynches_are_lynched_players_who_do_not_oppose_the_town(games: Path) -> None:
    lynched = [
        not opposes_town(ROLES[death["role"].lower()])
        for game in finished(games)
        for death in game["record"]["deaths"]
        if "lynch" in death["causes"]
    ]
    found = figures_of(games)["mislynches"].rows[0]

    assert (found["when"], found["n"]) == ("all days", len(lynched))
    assert found["value"] == pytest.approx(sum(lynched) / len(lynched), abs=1e-4)


def test_claims_are_those_of_the_record_by_faction_and_by_kind(games: Path) -> None:
    claims = pandas.DataFrame(
        {**claim, "side": player_of(game, claim["player"])["side"]}
        for game in finished(games)
        for claim in game["record"]["claims"]
    )
    for name, key in (("claims-by-faction", "side"), ("claims-by-kind", "kind")):
        found = column(figures_of(games)[name], "value", key, "verdict")
        of = claims.groupby(key).size()
        expected = {place: count / of[place[0]] for place, count in claims.groupby([key, "verdict"]).size().items()}

        assert {place: share for place, share in found.items() if share} == pytest.approx(expected, abs=1e-4)
        assert column(figures_of(games)[name], "n", key) == of.to_dict()


def test_lies_stand_in_the_order_of_the_factions(games: Path) -> None:
    rows = [str(row["measure"]) for row in figures_of(games)["lies"].rows]
    labels = [*dict.fromkeys(row for row in rows if row.startswith("claims that are lies: "))]

    assert labels == [f"claims that are lies: {side}" for side in ("town", "mafia", "neutral")][: len(labels)]
    assert len(labels) > 1


def test_night_effect_counts_the_actions_of_outcomes(games: Path) -> None:
    frame = players(finished(games))
    counts = {key: frame.measures.map(lambda found, key=key: found.get(key, 0)) for key in ("na", "ne")}
    acts = pandas.DataFrame({"role": frame.role, "definition": frame.definition, **counts})
    sums = acts.groupby(["role", "definition"]).sum()

    assert column(figures_of(games)["night-effect"], "value", "of", "side") == pytest.approx(
        (sums["ne"] / sums["na"])[sums["na"] > 0].to_dict(), abs=1e-4
    )


def test_every_figure_asks_a_question_and_has_n_unit_and_the_data_of_its_picture(games: Path) -> None:
    figures = figures_of(games)
    assert len(figures) == 15
    for figure in figures.values():
        assert figure.title.endswith("?")
        assert figure.n > 0
        assert figure.unit
        assert {column.name for column in figure.columns} <= figure.rows[0].keys()
        assert figure.spec is not None
        drawn = json.dumps(figure.spec)
        assert all(
            json.dumps(str(row["label"])) in drawn for row in figure.rows if row.get("label") and "clusters" in row
        )


def test_run_without_a_finished_conversation_has_no_figures(games: Path) -> None:
    rows = [row for row in data_of(games).read_rows() if row["status"] == "failed"]

    assert run_sections(replace(data_of(games), read_rows=lambda: iter(rows))) == []
    assert run_sections(data("a", [])) == ()


@pytest.mark.ci
def test_runs_of_the_same_deals_are_compared_deal_by_deal(games: Path) -> None:
    other = play(games.parent, "swapped", {"lucky": MODELS["lucky"], "careful": MODELS["careful"]})
    (section,) = study_sections(Study(runs=[data_of(games), data_of(other)]))
    figures = {figure.id: figure for figure in section.figures}
    won: list[dict[int, bool]] = [
        {game["task"]["index"]: "mafia" in game["outcome"]["winners"] for game in finished(each)}
        for each in (games, other)
    ]
    shared = won[0].keys() & won[1].keys()

    (row,) = (row for row in figures["wins-difference"].rows if row["outcome"] == "mafia")
    assert (row["compared"], row["n"]) == ("paired", len(shared))
    assert row["difference"] == pytest.approx(sum(won[1][deal] - won[0][deal] for deal in shared) / len(shared))
    played = column(figures["wins-by-run"], "n", "run", "side")
    assert played == {(run, side): len(won[run == other.name]) for run, side in played}
    assert {run for run, _ in played} == {games.name, other.name}


@pytest.fixture(scope="module")
def played() -> list[JsonObject]:
    """Discussions of BBQ questions."""
    overrides = ("_grid=null", "report=null")
    content = playing.experiment("experiments/bbq_identity.yaml", *overrides)
    return playing.transcripts(content, "discussant", count=24)


def data(name: str, found: list[JsonObject]) -> RunData:
    rows = [index_row(number, one["outcome"]) | {"counts": one["counts"]} for number, one in enumerate(found)]
    return run_of(name, rows, seed=7, environment="discussion")


def figures(sections: Sequence[Section]) -> dict[str, Figure]:
    return {figure.id: figure for section in sections for figure in section.figures}


def answers(transcript: Any) -> Iterator[tuple[int, str, str | None]]:
    """The round, the agent and the answer of each statement of a participant, from the record."""
    for event in transcript["record"]["events"]:
        said = event["data"]
        if said.get("role") == "participant":
            answer = (said.get("said") or {}).get("answer")
            yield int(said["round"]), str(said["agent"]), None if answer is None else str(answer)


def right(transcript: Any) -> str:
    return str(transcript["outcome"]["correct_answer_id"])


@pytest.mark.ci
def test_accuracy_by_round_is_that_of_the_records(played: list[JsonObject]) -> None:
    said = [(number, answer == right(one)) for one in played for number, _, answer in answers(one)]
    rounds = pandas.DataFrame(said, columns=["round", "is_right"]).groupby("round").is_right.agg(["size", "mean"])

    *rows, _ = figures(run_sections(data("a", played)))["accuracy-by-round"].rows

    assert [row["n"] for row in rows] == rounds["size"].tolist()
    assert [row["value"] for row in rows] == pytest.approx(rounds["mean"].tolist(), abs=1e-4)


@pytest.mark.ci
def test_conformity_is_that_of_the_records(played: list[JsonObject]) -> None:
    """With three participants the majority of the others is what both of them said."""
    counted: Counter[tuple[str, bool]] = Counter()
    for transcript in played:
        given: dict[str, list[str | None]] = {}
        for _, agent, answer in answers(transcript):
            given.setdefault(agent, []).append(answer)
        for agent, own in given.items():
            others = [each for name, each in given.items() if name != agent]
            for number, (before, after) in enumerate(pairwise(own)):
                held = {each[number] for each in others}
                if len(held) == 1 and None not in held and before is not None and after is not None:
                    (majority,) = held
                    place = "with the majority" if before == majority else "alone against the majority"
                    counted[place, after != before if before == majority else after == majority] += 1

    figure = figures(run_sections(data("a", played)))["conformity"]

    assert {str(row["place"]) for row in figure.rows} == {place for place, _ in counted}
    for row in figure.rows:
        kept, moved = (counted[str(row["place"]), has_moved] for has_moved in (False, True))
        assert row["n"] == kept + moved
        assert row["value"] == pytest.approx(moved / (kept + moved), abs=1e-4)


@pytest.mark.ci
def test_transitions_hold_each_participant_once(played: list[JsonObject]) -> None:
    found = figures(run_sections(data("a", played)))
    people = sum(len({agent for _, agent, _ in answers(transcript)}) for transcript in played)

    assert sum(int(row["count"] or 0) for row in found["transitions-correctness"].rows) == people
    stances = [found[f"transitions-stance-{context}"] for context in ("ambiguous", "disambiguated")]
    assert sum(int(row["count"] or 0) for figure in stances for row in figure.rows) <= people


def test_bias_scores_are_on_as_many_answers_as_the_tables_of_a_grid_say(played: list[JsonObject]) -> None:
    run = data("a", played)
    tables = discussion_figures(summary_of(run.read_rows()))
    found = figures([*run_sections(run), *study_sections(Study(runs=[run], baseline="a"))])
    kinds = {"first answers": "first", "last answers": "final", "answer of the group": "group"}

    for context in ("ambiguous", "disambiguated"):
        said = {words: tables[f"bias.{kind}.{context}"].n for words, kind in kinds.items()}
        whole = [row for row in found["bias-by-category"].rows if (row["category"], row["context"]) == ("all", context)]
        assert {str(row["answers"]): row["n"] for row in whole} == said
        assert {str(row["answers"]): row["n"] for row in found[f"bias-compared-{context}"].rows} == said


def test_run_against_itself_has_no_difference(played: list[JsonObject]) -> None:
    study = Study(runs=[data("a", played), data("b", played)], baseline="a")

    assert {row["difference"] for row in figures(study_sections(study))["difference-rates"].rows} == {0.0}


def test_one_discussion_is_not_called_discussions(played: list[JsonObject]) -> None:
    study = Study(runs=[data("a", played[:1]), data("b", played[:1])], baseline="a")

    assert figures(study_sections(study))["difference-rates"].notes[0].startswith("Some have 1 discussion only: ")


def test_primary_figure_comes_first_and_q_is_never_below_p(played: list[JsonObject]) -> None:
    runs = [data("a", played), data("b", played[::-1]), data("c", played[:12])]
    several = figures(study_sections(Study(runs=runs, primary="consensus")))

    primary = several["difference-consensus"]
    assert [figure.id for figure in several.values() if figure.is_primary] == [primary.id]
    assert next(iter(several)) == primary.id
    rows = [row for name, figure in several.items() if name.startswith("difference") for row in figure.rows]
    assert all(float(row["q"] or 0) >= float(row["p"] or 0) - 1e-9 for row in rows)
