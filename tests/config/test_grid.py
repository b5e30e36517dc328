"""`_grid`: the experiments of a file, what they are called, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mac_runner.config import Experiment, Grid, Loaded, in_words, load, load_experiment, renamed, slug_beside
from mac_runner.config.testing import GRID_SLUG_CHARS_MAX, NAME_CHARS_MAX
from mac_runner.environments.discussion import DiscussionConfig
from mac_runner.environments.town_of_salem import GameConfig
from mac_runner.errors import ConfigError
from tests.config.conftest import ANN, FILE, SWEPT, TALK

BROADCAST = "_grid: {broadcast: {%s: {paths: [%s], values: %s}}}\n"


def lay(section: str, **flags: Any) -> Grid:
    """The grid of SWEPT with this section, which begins on line 10."""
    found = read(section, **flags)
    assert isinstance(found, Grid)
    return found


def read(section: str, **flags: Any) -> Grid | Loaded:
    FILE.write_text(SWEPT + section, encoding="utf-8")
    return load(FILE, **flags)


def experiments(grid: Grid) -> list[Experiment]:
    return [combination.loaded.experiment for combination in grid.combinations]


def test_sweep_takes_every_value_with_every_other_the_first_key_slowest() -> None:
    grid = lay("_grid: {sweep: {game.lobby: [classic-7, classic-10], seed: [1, 2, 3]}}\n")

    assert grid.columns == ("game.lobby", "seed")
    assert [(one.settings_as(GameConfig).lobby, one.seed) for one in experiments(grid)] == [
        (lobby, seed) for lobby in ("classic-7", "classic-10") for seed in (1, 2, 3)
    ]
    assert [dict(one.values) for one in grid.combinations][1] == {"game.lobby": "classic-7", "seed": 2}


def test_zip_varies_its_keys_together_by_row_or_by_column() -> None:
    rows = "[{game.lobby: classic-7, seed: 1}, {seed: 2, game.lobby: classic-10}]"
    for group in (rows, "{game.lobby: [classic-7, classic-10], seed: [1, 2]}"):
        grid = lay(f"_grid: {{zip: {{tables: {group}}}}}\n")

        found = [(one.settings_as(GameConfig).lobby, one.seed) for one in experiments(grid)]
        assert found == [("classic-7", 1), ("classic-10", 2)]
        assert grid.columns == ("game.lobby", "seed")


def test_broadcast_gives_all_its_keys_one_value_and_is_one_column() -> None:
    paths = "agent_definitions.0.temperature, agent_definitions.other.temperature"
    grid = lay(BROADCAST % ("heat", paths, "[0.0, 0.7]"))

    heats = [[agent.temperature for agent in one.agent_definitions] for one in experiments(grid)]
    assert heats == [[0.0, 0.0], [0.7, 0.7]]
    assert [dict(one.values) for one in grid.combinations] == [{"heat": 0.0}, {"heat": 0.7}]


def test_a_key_that_a_broadcast_lists_twice_is_refused() -> None:
    for paths, expected in {"seed, seed": "paths.1: seed is listed twice", "name, name": "cannot vary"}.items():
        with pytest.raises(ConfigError, match=expected):
            lay(BROADCAST % ("heat", paths, "[1, 2]"))


def test_labels_name_the_values_of_a_broadcast_in_columns_and_directories() -> None:
    grid = lay(BROADCAST % ("stop", "agent_definitions.0.stop", "[[], ['END', 'STOP']], labels: [never, words]"))

    assert [one.agent_definitions[0].stop for one in experiments(grid)] == [(), ("END", "STOP")]
    assert [dict(one.values) for one in grid.combinations] == [{"stop": "never"}, {"stop": "words"}]
    assert [one.slug for one in grid.combinations] == ["stop-never", "stop-words"]


def test_any_values_may_have_labels() -> None:
    personas = "{agent_definitions.0.persona: {bold: one who never gives in, shy: one who agrees with the last}}"
    swept = lay(f"_grid: {{sweep: {personas}}}\n")
    zipped = lay("_grid: {zip: {size: {small: {game.lobby: classic-7}, large: {game.lobby: classic-10}}}}\n")
    shared = lay(BROADCAST % ("heat", "agent_definitions.0.temperature", "{cold: 0.0, hot: 1.5}"))

    assert slugs(swept) == ["persona-bold", "persona-shy"]
    assert experiments(swept)[0].agent_definitions[0].persona == "one who never gives in"
    assert [dict(one.values) for one in zipped.combinations] == [{"size": "small"}, {"size": "large"}]
    assert slugs(zipped) == ["size-small", "size-large"]
    assert [one.agent_definitions[0].temperature for one in experiments(shared)] == [0.0, 1.5]
    assert [dict(one.values) for one in shared.combinations] == [{"heat": "cold"}, {"heat": "hot"}]
    assert swept.combinations[1].loaded.locate(("agent_definitions", 0, "persona")) == "trial.yaml:10"


def test_a_label_changes_no_identity() -> None:
    (plain,) = lay("_grid: {sweep: {seed: [1]}}\n").combinations
    (labelled,) = lay("_grid: {sweep: {seed: {first: 1}}}\n").combinations

    assert (plain.identity, plain.slug, labelled.slug) == (labelled.identity, "seed-1", "seed-first")


def test_axes_multiply() -> None:
    grid = lay(
        "_grid:\n"
        "  sweep: {game.lobby: [classic-7, classic-10]}\n"
        "  zip: {rows: [{seed: 1, retry_config.max_retries: 0}, {seed: 2, retry_config.max_retries: 1}]}\n"
        "  broadcast: {heat: {paths: [agent_definitions.0.temperature], values: [0.1, 0.2, 0.3]}}\n"
    )

    assert len(grid.combinations) == 12
    assert len({combination.slug for combination in grid.combinations}) == 12


def test_derive_fills_in_texts_and_keeps_the_type_of_a_single_placeholder() -> None:
    grid = lay(
        "_grid:\n"
        "  sweep: {agent_definitions.player.temperature: [0.5], game.calendar.max_days: [4]}\n"
        "  derive:\n"
        "    experiment_metadata.description: '{{{game.lobby}}} at {agent_definitions.other.temperature}'\n"
        "    agent_definitions.other.temperature: '{agent_definitions.0.temperature}'\n"
    )
    (one,) = experiments(grid)

    assert one.agent_definitions[1].temperature == 0.5
    assert one.experiment_metadata.description == "{classic-7} at 0.5"


def test_derived_keys_are_in_order_however_they_are_spelt() -> None:
    grid = lay(
        "_grid:\n"
        "  sweep: {seed: [7]}\n"
        "  derive:\n"
        "    experiment_metadata.description: 'at {agent_definitions.1.max_tokens}'\n"
        "    agent_definitions.other.max_tokens: '{seed}'\n"
    )

    assert experiments(grid)[0].experiment_metadata.description == "at 7"
    with pytest.raises(ConfigError, match="needs itself"):
        lay("_grid: {sweep: {seed: [1]}, derive: {agent_definitions.0.max_tokens: '{agent_definitions.player}'}}\n")


def test_a_key_that_only_a_default_fills_can_vary() -> None:
    grid = lay("_grid: {sweep: {game.flags.sheriff: [binary, typed]}}\n")

    assert [one.settings_as(GameConfig).flags.sheriff for one in experiments(grid)] == ["binary", "typed"]


def test_names_are_the_values_and_numbers_of_those_that_do_not_fit() -> None:
    grid = lay("_grid: {sweep: {game.lobby: [classic-7, [Sheriff, Godfather]], seed: [1]}}\n")
    texts = lay("_grid: {sweep: {agent_definitions.0.persona: [null, nurse, one who never gives in, org/model-7]}}\n")
    first, second = grid.combinations

    assert first.slug == "lobby-classic-7_seed-1"
    assert second.slug == "lobby-2_seed-1"
    assert slugs(texts)[1:3] == ["persona-nurse", "persona-3"]
    assert slugs(texts)[3] == f"persona-model-7_{texts.combinations[3].identity[:6]}"
    assert [one.experiment_metadata.experiment_name for one in experiments(grid)] == [
        f"trial-{first.slug}",
        f"trial-{second.slug}",
    ]
    assert first.loaded.resolved["experiment_metadata"] == {
        "experiment_name": f"trial-{first.slug}",
        "description": "plain",
    }


def test_resolved_config_of_a_combination_gives_its_experiment_again() -> None:
    for combination in lay("_grid: {sweep: {seed: [1, 2]}}\n").combinations:
        assert Experiment.model_validate(combination.loaded.resolved) == combination.loaded.experiment


def slugs(grid: Grid) -> list[str]:
    return [combination.slug for combination in grid.combinations]


def test_names_have_as_much_of_a_key_as_tells_it_from_others() -> None:
    section = "{game.flags.mafia_parity: [true], agent_definitions.0.top_p: [null], agent_definitions.1.top_p: [0.5]}"

    assert slugs(lay(f"_grid: {{sweep: {section}}}\n")) == ["mafia_parity-true_1.top_p-0.5"]


def test_names_stay_when_values_are_added_and_never_clash() -> None:
    few = slugs(lay("_grid: {sweep: {game.lobby: [classic-7], seed: [1, 2]}}\n"))
    more = lay("_grid: {sweep: {game.lobby: [classic-7, classic-10], seed: [3, 2, 1]}}\n")
    names = ["a/long-model", "b/long-model", "long model", "LONG-MODEL", "long-model", "x" * 60, "x" * 61, "/", "ü"]
    texts = lay(f"_grid: {{sweep: {{agent_definitions.0.persona: {names}}}}}\n")

    assert few == ["lobby-classic-7_seed-1", "lobby-classic-7_seed-2"]
    assert {*few} < {*slugs(more)}
    assert len({slug.casefold() for slug in slugs(texts)}) == len(names)
    assert slugs(texts)[0].startswith("persona-long-model_")
    assert all(len(slug) <= GRID_SLUG_CHARS_MAX for slug in slugs(texts))


def test_an_experiment_that_changed_has_another_name_in_the_directory() -> None:
    (one,) = lay("_grid: {sweep: {seed: [1]}}\n").combinations
    (other,) = lay("_grid: {sweep: {seed: [1]}}\n", overrides=("retry_config.max_retries=9",)).combinations

    assert one.slug == other.slug == "seed-1"
    assert slug_beside(other, []) == "seed-1"
    assert slug_beside(other, ["SEED-1"]) == f"seed-1_{other.identity[:6]}"
    assert slug_beside(other, ["seed-1", f"seed-1_{other.identity[:6]}"]) == f"seed-1_{other.identity[:16]}"


def test_names_stay_short_however_much_varies() -> None:
    keys = ", ".join(f"game.flags.{flag}: [{value}]" for flag, value in (
        ("sheriff", "typed"), ("haunt_pool", "guilty"), ("spy", "ears"), ("retri", "revive"), ("amnesiac", "any_free")
    ))  # fmt: skip
    grid = lay(f"_grid: {{sweep: {{{keys}}}}}\n", overrides=(f"experiment_metadata.experiment_name={'n' * 80}",))
    (one,) = experiments(grid)

    assert len(one.experiment_metadata.experiment_name) <= NAME_CHARS_MAX
    assert one.experiment_metadata.experiment_name.endswith(grid.combinations[0].slug)


def test_identity_is_that_of_the_results_whatever_else_the_file_says() -> None:
    (plain,) = lay("_grid: {sweep: {seed: [1]}}\n").combinations
    (extended, _) = lay("_grid: {sweep: {seed: [1, 2]}}\n").combinations
    (longer,) = lay("_grid: {sweep: {seed: [1]}}\n", overrides=("conversation_config.conversations=9",)).combinations
    (written,) = lay("_grid: {sweep: {seed: [1], retry_config.max_retries: [2]}}\n").combinations
    (other,) = lay("_grid: {sweep: {seed: [1], retry_config.max_retries: [3]}}\n").combinations

    assert plain.identity == extended.identity == longer.identity
    assert plain.identity == written.identity, "a default that is written out is the same setting"
    assert plain.identity != other.identity


def test_a_combination_can_keep_the_name_it_had() -> None:
    (one,) = lay("_grid: {sweep: {seed: [1]}}\n").combinations
    kept = renamed("trial", one, "older-0123456789")

    assert kept.slug == "older-0123456789"
    assert kept.loaded.experiment.experiment_metadata.experiment_name == "trial-older-0123456789"
    assert kept.identity == one.identity


LOBBY = "_grid: {sweep: {game.lobby: [classic-7]}}\n"


def test_profile_and_flags_are_laid_over_the_file_before_the_grid() -> None:
    section = (
        "_grid: {sweep: {seed: [1, 2]}}\n"
        "profiles:\n"
        "  wide: {_grid: {sweep: {seed: [1, 2, 3]}}, game: {lobby: classic-10}}\n"
        "  single: {_grid: null}\n"
    )

    assert len(lay(section, profile="wide").combinations) == 3
    assert {one.settings_as(GameConfig).lobby for one in experiments(lay(section, profile="wide"))} == {"classic-10"}
    assert len(lay(section, overrides=("_grid.sweep.seed=[7]",)).combinations) == 1
    assert {one.seed for one in experiments(lay(LOBBY, seed=9))} == {9}
    assert isinstance(read(section, profile="single"), Loaded)


def test_one_experiment_is_not_made_of_a_grid() -> None:
    lay("_grid: {sweep: {seed: [1, 2]}}\n")

    with pytest.raises(ConfigError, match="grid of 2 "):
        load_experiment(FILE)


def test_combinations_share_the_questions_of_one_file() -> None:
    question = {"question_id": "q", "question_type": "open_ended", "question": "Why?"}
    Path("questions.jsonl").write_text(json.dumps(question) + "\n")
    talk = TALK.replace("topics: [bridges]", "questions: [questions.jsonl]") + ANN
    FILE.write_text(f"{talk}_grid: {{sweep: {{seed: [1, 2], discussion.max_rounds: [1, 2]}}}}\n")
    grid = load(FILE)
    assert isinstance(grid, Grid)
    discussions = [one.settings_as(DiscussionConfig) for one in experiments(grid)]

    assert len(discussions) == 4
    assert len({id(discussion.question_at(0)) for discussion in discussions}) == 1
    assert {discussion.max_rounds for discussion in discussions} == {1, 2}


def test_place_of_a_swept_value_is_that_in_the_grid() -> None:
    grid = lay("_grid:\n  sweep:\n    seed:\n      - 1\n      - 2\n")

    assert [one.loaded.locate(("seed",)) for one in grid.combinations] == ["trial.yaml:13", "trial.yaml:14"]
    assert grid.combinations[0].loaded.locate(("game", "lobby")) == "trial.yaml:4"


def test_values_in_words_are_on_one_line() -> None:
    assert in_words({"a.b": "two\nlines", "c": [1], "d": 0.5}).count("=") == 3
