from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mac_runner.backends.ollama import OllamaConfig
from mac_runner.backends.testing import ScriptedConfig
from mac_runner.config import Experiment, Loaded, load_experiment
from mac_runner.environments.town_of_salem import GameConfig
from mac_runner.errors import ConfigError
from mac_runner.problems import CONFIG_PROBLEMS_MAX

Load = Callable[..., Loaded]
Refusal = Callable[..., list[str]]

PROFILES = """\
profile: embedded
game:
  lobby: classic-10
  calendar: {max_days: 9, vote_rounds: 2}
profiles:
  small:
    game:
      lobby: [Sheriff, Doctor]
      calendar: {max_days: 3}
  server:
    model_definitions:
      folk:
        backend: ollama
        ollama_config: {model: tiny}
      spare: {backend: scripted, scripted_config: {policy: random}}
  blank:
"""


def test_load_fills_in_every_default(load: Load, game_text: str) -> None:
    loaded = load(game_text)

    assert loaded.experiment.settings_as(GameConfig).lobby == "classic-10"
    assert loaded.experiment.retry_config.max_retries == 2
    assert loaded.resolved["game"] == loaded.experiment.settings_as(GameConfig).model_dump(mode="json")
    assert loaded.resolved["profile"] == "embedded"
    assert "profiles" not in loaded.resolved


def test_resolved_config_gives_the_experiment_again(load: Load, game_text: str) -> None:
    for profile in (None, "embedded", "small", "server", "blank"):
        loaded = load(game_text + PROFILES, profile=profile)

        assert Experiment.model_validate(loaded.resolved) == loaded.experiment


def test_profile_is_merged_key_by_key_and_a_list_replaces(load: Load, game_text: str) -> None:
    loaded = load(game_text + PROFILES, profile="small")

    assert loaded.experiment.profile == "small"
    assert loaded.experiment.settings_as(GameConfig).lobby == ("Sheriff", "Doctor")
    calendar = loaded.experiment.settings_as(GameConfig).calendar
    assert (calendar.max_days, calendar.vote_rounds) == (3, 2)


def test_profile_replaces_a_model_definition_whole(load: Load, game_text: str) -> None:
    models = load(game_text + PROFILES, profile="server").experiment.model_definitions

    assert list(models) == ["folk", "spare"]
    assert models["folk"].backend == "ollama"
    assert isinstance(models["folk"].backend_settings, OllamaConfig)


def test_profile_named_in_the_file_is_the_default(load: Load, game_text: str) -> None:
    text = game_text + PROFILES.replace("profile: embedded", "profile: small")

    assert load(text).experiment.profile == "small"
    assert load(text, profile="embedded").experiment.profile == "embedded"
    assert load(text, profile="embedded").resolved["game"] != load(text).resolved["game"]


def test_set_comes_after_the_profile_and_seed_last(load: Load, game_text: str) -> None:
    loaded = load(
        game_text + PROFILES,
        profile="small",
        overrides=["game.lobby=classic-7", "game.calendar.max_days=4", "seed=1", "game.calendar.max_days=5"],
        seed=9,
    )

    assert loaded.experiment.settings_as(GameConfig).lobby == "classic-7"
    assert loaded.experiment.settings_as(GameConfig).calendar.max_days == 5
    assert loaded.experiment.seed == 9


def test_set_makes_sections_the_file_left_out(load: Load, game_text: str) -> None:
    loaded = load(game_text, overrides=["game.flags.mafia_parity=true", "retry_config={max_retries: 0}"])

    assert loaded.experiment.settings_as(GameConfig).flags.mafia_parity is True
    assert loaded.experiment.retry_config.max_retries == 0


def test_set_finds_an_agent_by_index_or_id(load: Load, game_text: str) -> None:
    for agent in ("0", "player"):
        loaded = load(game_text, overrides=[f"agent_definitions.{agent}.stop=[x]"])
        assert loaded.experiment.agent_definitions[0].stop == ("x",)


def test_set_finds_names_that_hold_dots(load: Load, game_text: str) -> None:
    text = game_text.replace("folk", "folk-1.5").replace("agent_id: player", "agent_id: p.1")
    overrides = ["model_definitions.folk-1.5.scripted_config.capacity=5", "agent_definitions.p.1.max_tokens=6"]

    experiment = load(text, overrides=overrides).experiment

    scripted = experiment.model_definitions["folk-1.5"].backend_settings
    assert isinstance(scripted, ScriptedConfig)
    assert scripted.capacity == 5
    assert experiment.agent_definitions[0].max_tokens == 6


INTO_NOTHING = {
    "seed": "seed: no value; write --set KEY=VALUE",
    "=3": ": write the path as section.key",
    "game..lobby=x": "game..lobby: write the path as section.key",
    "agent_definitions.0.role.x=1": "agent_definitions.0.role.x: agent_definitions.0.role is a single value",
    "profile=vllm": "profile: profiles are laid over the file before --set; choose one with --profile",
    "game.lobby=]": "game.lobby:1: not valid YAML: ",
    "game.flags.mafia_parity=yes": "game.flags.mafia_parity:1: yes is ambiguous: write true or false",
    "agent_definitions.2.role=x": "agent_definitions.2.role: agent_definitions has no entry '2'; allowed: ",
    "agent_definitions.playr.role=x": "agent_definitions.playr.role: agent_definitions has no entry 'playr'; "
    "allowed: 0, player (did you mean 'player'?)",
    "model_definitions.flok.backend=vllm": "model_definitions.flok.backend: there is no model definition 'flok'; "
    "allowed: folk (did you mean 'folk'?)",
    "gmae.lobby=x": "gmae.lobby: gmae: unknown key; allowed: ",
    "game.lobbby=x": "game.lobbby: game.lobbby: unknown key; allowed: ",
    "seed=x": 'seed: seed: found the text "x"; allowed: a whole number',
}


def test_set_into_nothing_is_refused_naming_the_flag(
    refusal: Refusal, game_text: str, subtests: pytest.Subtests
) -> None:
    for override, expected in INTO_NOTHING.items():
        with subtests.test(override):
            (line,) = refusal(game_text, overrides=[override])

            assert line.startswith(f"--set {expected}")
    assert refusal(game_text, seed=-1)[0].startswith("--seed: seed: found -1")


def test_locate_names_where_each_value_was_written(load: Load, game_text: str) -> None:
    loaded = load(game_text + PROFILES, profile="small", overrides=["retry_config.max_retries=1"], seed=3)

    located = {
        ("experiment_metadata", "experiment_name"): "trial.yaml:2",
        ("game", "calendar", "vote_rounds"): "trial.yaml:15",
        ("game", "calendar", "max_days"): "trial.yaml:20",
        ("game", "lobby", 1): "trial.yaml:19",
        ("game", "flags", "sheriff"): "trial.yaml:13",
        ("retry_config", "max_retries"): "--set retry_config.max_retries",
        ("seed",): "--seed",
        ("profile",): "--profile",
    }
    assert {path: loaded.locate(path) for path in located} == located


def test_a_file_that_cannot_be_read_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: .*No such"):
        load_experiment(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="a directory"):
        load_experiment(tmp_path)


def test_thousands_of_unknown_keys_are_refused_with_a_bounded_text(refusal: Refusal, game_text: str) -> None:
    noise = "".join(f"    key_{number}: 1\n" for number in range(4_000))
    lines = refusal(game_text + "game:\n  flags:\n" + noise + "profiles:\n  embedded: {game: {flags: {x: 1}}}\n")

    assert len(lines) == CONFIG_PROBLEMS_MAX + 1
    assert lines[-1].startswith("... and more")
