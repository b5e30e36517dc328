"""What a file loads: its values, those of a profile and of flags, defaults, files that it names; its schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import mac_runner.config
from mac_runner.backends.ollama import OllamaConfig
from mac_runner.backends.testing import ScriptedConfig, filled, flag_of
from mac_runner.config import (
    Experiment,
    Grid,
    decoding_of,
    identity_of,
    load,
    load_experiment,
    reply_form_of,
    shareable,
)
from mac_runner.config.testing import file_schema, parse_document, schema_text
from mac_runner.environments.discussion import DiscussionConfig
from mac_runner.environments.town_of_salem import GameConfig
from mac_runner.errors import ConfigError
from mac_runner.latency import Calibration, Calibrations, StepModel
from mac_runner.section import Section
from mac_runner.types import JsonObject
from tests.config.conftest import (
    ANN,
    FILE,
    GAME,
    NANO,
    OLLAMA,
    OPENAI,
    OURS,
    PLAIN,
    SCRIPTED,
    TALK,
    VLLM,
    loaded,
    on_fleet,
    refused,
    with_model,
)

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


def played(text: str, **flags: object) -> GameConfig:
    """The section of the game."""
    return loaded(text, **flags).experiment.settings_as(GameConfig)


def test_load_fills_in_every_default() -> None:
    found = loaded(GAME)

    assert found.experiment.settings_as(GameConfig).lobby == "classic-10"
    assert found.experiment.retry_config.max_retries == 2
    assert found.resolved["game"] == found.experiment.settings_as(GameConfig).model_dump(mode="json")
    assert found.resolved["profile"] == "embedded"
    assert "profiles" not in found.resolved


SHORT = """\
name: trial
environment: town_of_salem
conversations: 3
model_definitions:
  folk:
    backend: scripted
    scripted_config: {policy: random}
agent_definitions:
  - {agent_id: player, model: folk}
"""


def test_short_keys_and_the_role_of_a_game_may_be_left_to_it() -> None:
    short = loaded(SHORT)

    assert short.resolved == loaded(GAME).resolved
    assert identity_of(short.experiment) == identity_of(loaded(GAME).experiment)
    assert short.locate(("conversation_config", "conversations")) == "trial.yaml:3"
    assert loaded(f"{SHORT}conversation_config: {{samples_per_task: 3}}\n").experiment.spec.section == "game"


def test_short_keys_are_taken_in_profiles_flags_and_grids() -> None:
    profiles = "profiles: {more: {conversations: 5, description: x}}\n"
    counts = (
        loaded(SHORT + profiles, profile="more"),
        loaded(GAME + profiles, profile="more"),
        loaded(SHORT, overrides=["conversations=5"]),
        loaded(GAME, overrides=["conversation_config.conversations=4", "conversations=5"]),
    )

    assert {found.experiment.conversation_config.conversations for found in counts} == {5}
    FILE.write_text(f"{SHORT}_grid: {{sweep: {{seed: [1]}}, derive: {{description: 'on {{environment}}'}}}}\n")
    grid = load(FILE)
    assert isinstance(grid, Grid)
    assert grid.combinations[0].loaded.experiment.experiment_metadata.description == "on town_of_salem"


def test_short_and_long_keys_of_derived_values_are_the_same_keys() -> None:
    def grid(derive: str) -> str:
        return f"{SHORT}_grid: {{sweep: {{seed: [1, 2]}}, derive: {{{derive}}}}}\n"

    FILE.write_text(grid("description: 'n={conversations}', conversation_config.conversations: '{seed}'"))
    found = load(FILE)
    assert isinstance(found, Grid)
    said = [each.loaded.experiment.experiment_metadata.description for each in found.combinations]
    assert said == ["n=1", "n=2"]
    for derive, expected in {
        "conversations: '{conversation_config.conversations}'": "needs itself",
        "conversations: '3', conversation_config.conversations: '4'": "'conversations' is the same key",
    }.items():
        (line,) = refused(grid(derive))
        assert expected in line


def test_a_slip_in_a_short_key_is_answered_alone() -> None:
    (line,) = refused(SHORT, overrides=["conversations.x=0"])
    assert "'conversations' is a single value" in line
    (line,) = refused(SHORT.replace("environment: town_of_salem", "environment: twon_of_salem"))
    assert "twon_of_salem" in line
    (line,) = refused(SHORT.replace("conversations:", "conversation:"))
    assert line.startswith("trial.yaml:3: conversation: unknown key; allowed: ")
    assert line.endswith("(did you mean 'conversations'?)")
    (line,) = refused(GAME.replace("conversations:", "conversation:"))
    assert line.endswith("(did you mean 'conversations'?)")


def test_a_short_key_is_refused_where_it_stands_and_beside_the_long_one() -> None:
    for more, expected in {
        "conversation_config: {conversations: 3}": "3: conversations: conversation_config.conversations (trial.",
        "experiment_metadata: {experiment_name: a}": "1: name: experiment_metadata.experiment_name (trial.yaml:10)",
        "experiment_metadata: []": "10: experiment_metadata: found an empty list; allowed: a mapping",
        "profiles: {embedded: {nmae: x}}": "10: profiles.embedded.nmae: unknown key",
        "profiles: {b: {name: x, experiment_metadata: {experiment_name: z}}}": "10: name: experiment_metadata.exp",
    }.items():
        (line,) = refused(f"{SHORT}{more}\n")
        assert line.startswith(f"trial.yaml:{expected}")
    for wrong, expected in {
        "conversations: 0": "3: conversations: found 0; allowed: at least 1",
        "": "2: conversation_config.conversations: is missing; write `conversations:` at the top of the file",
    }.items():
        assert refused(SHORT.replace("conversations: 3", wrong))[0].startswith(f"trial.yaml:{expected}")


def test_schema_takes_short_keys_or_long_ones_and_not_both() -> None:
    for text, is_right in {
        SHORT: True,
        f"{SHORT}conversation_config: {{samples_per_task: 3}}\n": True,
        f"{SHORT}conversation_config: {{conversations: 3}}\n": False,
        SHORT.replace("name: trial\n", ""): False,
        SHORT.replace("conversations: 3", "conversations: few"): False,
    }.items():
        assert is_valid(text) is is_right, text


def test_resolved_config_gives_the_experiment_again() -> None:
    for profile in (None, "embedded", "small", "server", "blank"):
        found = loaded(GAME + PROFILES, profile=profile)

        assert Experiment.model_validate(found.resolved) == found.experiment


def test_profile_is_merged_key_by_key_and_a_list_replaces() -> None:
    game = played(GAME + PROFILES, profile="small")

    assert game.lobby == ("Sheriff", "Doctor")
    assert (game.calendar.max_days, game.calendar.vote_rounds) == (3, 2)


def test_profile_replaces_a_model_definition_whole() -> None:
    models = loaded(GAME + PROFILES, profile="server").experiment.model_definitions

    assert list(models) == ["folk", "spare"]
    assert models["folk"].backend == "ollama"
    assert isinstance(models["folk"].backend_settings, OllamaConfig)


def test_profile_named_in_the_file_is_the_default() -> None:
    text = GAME + PROFILES.replace("profile: embedded", "profile: small")

    assert loaded(text).experiment.profile == "small"
    assert loaded(text, profile="embedded").experiment.profile == "embedded"
    assert played(text, profile="embedded") != played(text)


def test_set_comes_after_the_profile_and_seed_last() -> None:
    flags = ["game.lobby=classic-7", "game.calendar.max_days=4", "seed=1", "game.calendar.max_days=5"]
    experiment = loaded(GAME + PROFILES, profile="small", overrides=flags, seed=9).experiment

    assert experiment.settings_as(GameConfig).lobby == "classic-7"
    assert experiment.settings_as(GameConfig).calendar.max_days == 5
    assert experiment.seed == 9


def test_set_makes_sections_the_file_left_out() -> None:
    flags = ["game.flags.mafia_parity=true", "retry_config={max_retries: 0, backoff_s: 2}"]
    experiment = loaded(GAME, overrides=flags).experiment

    assert experiment.settings_as(GameConfig).flags.mafia_parity is True
    assert (experiment.retry_config.max_retries, experiment.retry_config.backoff_s) == (0, 2.0)


def test_set_finds_an_agent_by_index_or_id() -> None:
    for agent in ("0", "player"):
        found = loaded(GAME, overrides=[f"agent_definitions.{agent}.stop=[x]"])
        assert found.experiment.agent_definitions[0].stop == ("x",)


def test_set_finds_names_that_hold_dots() -> None:
    text = GAME.replace("folk", "folk-1.5").replace("agent_id: player", "agent_id: p.1")
    overrides = ["model_definitions.folk-1.5.scripted_config.capacity=5", "agent_definitions.p.1.max_tokens=6"]

    experiment = loaded(text, overrides=overrides).experiment

    scripted = experiment.model_definitions["folk-1.5"].backend_settings
    assert isinstance(scripted, ScriptedConfig)
    assert scripted.capacity == 5
    assert experiment.agent_definitions[0].max_tokens == 6


def test_locate_names_where_each_value_was_written() -> None:
    found = loaded(GAME + PROFILES, profile="small", overrides=["retry_config.max_retries=1"], seed=3)

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
    assert {path: found.locate(path) for path in located} == located


def test_a_file_that_cannot_be_read_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: .*No such"):
        load_experiment(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="a directory"):
        load_experiment(tmp_path)


def test_section_of_another_environment_is_left_out() -> None:
    assert loaded(TALK + ANN).resolved["game"] is None
    assert played(GAME + "game:\n") is not None


def test_forms_follow_from_backend_and_environment(subtests: pytest.Subtests) -> None:
    panel = TALK + ANN.replace("m}", "folk}")
    rows = [(GAME, SCRIPTED, "none", "markup"), (panel, SCRIPTED, "none", "json"), (GAME, PLAIN, "none", "markup")]
    rows += [(GAME, f"{PLAIN}, reply_form: json", "none", "json"), (panel, PLAIN, "none", "json")]
    for engine in (OPENAI, OURS, VLLM, OLLAMA, NANO):
        rows += [
            (GAME, engine, "schema", "json"),
            (GAME, f"{engine}, constrained_decoding: json_object", "json_object", "json"),
            (GAME, f"{engine}, constrained_decoding: none", "none", "markup"),
            (GAME, f"{engine}, constrained_decoding: none, reply_form: json", "none", "json"),
            (GAME, f"{engine}, constrained_decoding: none, reply_form: markup", "none", "markup"),
            (panel, f"{engine}, constrained_decoding: none", "none", "json"),
        ]
    for base, definition, decoding, form in rows:
        with subtests.test(definition, environment=base[30:90]):
            experiment = loaded(with_model(base, definition)).experiment
            (model,) = experiment.model_definitions.values()

            assert (decoding_of(model), reply_form_of(experiment, model)) == (decoding, form)


QUESTION = json.dumps({"question_id": "q", "question_type": "binary", "question": "Now?"})

ASKING = TALK.replace("topics: [bridges]", "questions: [q.jsonl]") + ANN


def test_questions_are_named_relative_to_the_experiment_file() -> None:
    Path("q.jsonl").write_text(QUESTION)
    discussion = loaded(ASKING).experiment.settings_as(DiscussionConfig)

    assert [discussion.question_at(index).question_id for index in range(2)] == ["q", "q"]
    Path("q.jsonl").write_text(f"{QUESTION}\n{QUESTION}\n")
    (message,) = refused(ASKING)
    assert message.startswith("q.jsonl:2: ")
    assert " q.jsonl:1" in message


def test_a_template_that_cannot_be_read_is_refused() -> None:
    for data, expected in ((b"", "0 characters"), (b"\xff", "not UTF-8")):
        Path("t.jinja").write_bytes(data)

        (message,) = refused(TALK.replace("topics:", "prompt: {template_file: t.jinja}, topics:") + ANN)
        assert message.startswith("trial.yaml:3: discussion.prompt.template_file: t.jinja")
        assert expected in message


def test_identities_that_are_shown_or_hidden_are_taken() -> None:
    for rounds, reveal in ((1, "reveal_from_round: 1"), (1, "presence_mode: hidden"), (2, "presence_mode: all_ai")):
        section = f"topics: [bridges], max_rounds: {rounds}, identity_reveal_config: {{{reveal}}}"
        loaded(TALK.replace("topics: [bridges]", section) + ANN)


def test_a_fleet_is_loaded_with_its_defaults_and_need_not_be_written() -> None:
    written = loaded(f"{GAME}fleet: {{gpus: [0, 4]}}\n", overrides=on_fleet("engine: nano")).experiment.fleet

    assert written is not None
    assert (written.gpus, written.max_agents_per_gpu) == ((0, 4), 2)
    assert loaded(GAME, overrides=on_fleet("engine: vllm")).experiment.fleet is None


def test_limits_are_read_and_refused_with_their_line() -> None:
    limits = loaded(f"{GAME}limits: {{tokens: 5, hours: 0.5}}\n").experiment.limits

    assert limits is not None
    assert (limits.tokens, limits.usd, limits.hours) == (5, None, 0.5)
    for value in ("tokens: 0", "tokens: 2.5", "usd: 0", "hours: -1", "replies: 5"):
        (line,) = refused(f"{GAME}limits: {{{value}}}\n")
        assert line.startswith(f"trial.yaml:12: limits.{value.partition(':')[0]}: ")


def test_a_limit_of_dollars_needs_the_price_of_every_model() -> None:
    priced = GAME.replace("    backend: scripted", "    usd_per_hour: 0\n    backend: scripted")

    assert loaded(f"{priced}limits: {{usd: 5}}\n").experiment.limits is not None
    (line,) = refused(f"{GAME}limits: {{usd: 5}}\n")
    assert line.startswith("trial.yaml:12: limits.usd: needs the price of every model, and 'folk' has none; write usd_")


def test_all_combinations_of_a_grid_have_one_limit() -> None:
    rows = "[{seed: 1, limits.tokens: 5}, {seed: 2, limits.tokens: 6}]"

    (line,) = refused(f"{GAME}limits: {{hours: 1}}\n_grid: {{zip: {{rows: {rows}}}}}\n")
    assert line.startswith("trial.yaml:12: limits: differs between combinations")


def test_a_template_keeps_braces_that_are_no_field() -> None:
    assert filled(["--port={port}", '{"a": {"b": 1}}', "{gpus}"], {"port": "1", "gpus": "0,1"}) == (
        "--port=1",
        '{"a": {"b": 1}}',
        "0,1",
    )
    assert flag_of("speculative_config.num_tokens") == "--speculative-config.num_tokens"


def test_a_grid_may_have_a_fleet_that_one_combination_uses() -> None:
    axis = "fleet: {gpus: 1}\n_grid: {sweep: {model_definitions.folk: [{%s}, {%s}]}}\n"
    FILE.write_text(GAME + axis % (SCRIPTED, "backend: fleet, fleet_config: {model: m}"), encoding="utf-8")

    found = load(FILE)

    assert isinstance(found, Grid)
    assert len(found.combinations) == 2
    (line,) = refused(GAME + axis % (SCRIPTED, SCRIPTED.replace("random", "cautious")))
    assert "no model has" in line


STEPS = StepModel(step_ms=8.0, token_ms=0.4, prompt_token_ms=0.02, context_token_ms=0.0005)

LATENCY = "latency: {calibration: {file: c.json, in_flight: 4, prompt_tokens: 1000, context_tokens: 2000}, quantum: 10}"

OF_MODEL = GAME.replace("agent_definitions:", f"    {LATENCY}\nagent_definitions:")

OF_GAME = f"{GAME}game:\n  calendar: {{discussion_mode: information_lag}}\n  {LATENCY}\n"
"""The experiment with a model's latency, and with the clock of the game, from a calibration."""


def measured(model: str = "m", gpu: str = "H100", engine: str = "vllm 1") -> Calibration:
    return Calibration(model=model, gpu=gpu, engine=engine, steps=STEPS, in_flight=(1, 4, 16), requests=90, error=0.01)


def write(*known: Calibration) -> None:
    Path("c.json").write_text(Calibrations(calibrations=known).model_dump_json())


def test_a_calibration_sets_the_times_of_a_model_and_of_the_games_clock() -> None:
    write(measured())

    for found in (loaded(OF_MODEL).experiment.model_definitions["folk"].latency, played(OF_GAME).latency):
        assert found is not None
        assert (found.prefill_ms, found.kernel_ms, found.quantum) == (20, 136, 10)
        assert found.calibration is None


def test_a_clock_from_a_calibration_is_the_experiment_with_its_numbers() -> None:
    write(measured())
    numbers = loaded(OF_GAME.replace(LATENCY, "latency: {prefill_ms: 20, kernel_ms: 136, quantum: 10}"))

    assert identity_of(loaded(OF_GAME).experiment) == identity_of(numbers.experiment)


UNUSABLE: list[tuple[str | list[Calibration] | None, str | None]] = [
    (None, "c.json: cannot be read: No such file or directory; name a file that exists"),
    ("{", "c.json is no calibration file: Invalid JSON"),
    (json.dumps({"calibrations": [{"model": "m"}]}), "is no calibration file at calibrations.0."),
    (json.dumps({"format": 2}), "is no calibration file at format: "),
    ([], "no calibration; the file has: none"),
    ([measured(), measured(gpu="A100")], "2 calibrations fit; choose one by model, gpu and engine"),
    ([measured(model="other")], None),
]


def test_a_calibration_that_cannot_be_used_is_refused_with_its_line() -> None:
    for content, told in UNUSABLE:
        if isinstance(content, list):
            write(*content)
        elif content is not None:
            Path("c.json").write_text(content)
        expected = told or "no calibration for model 'm'; the file has: other on H100 with vllm 1"
        for text, key in ((OF_MODEL, "model_definitions.folk.latency"), (OF_GAME, "game.latency")):
            (line,) = refused(text if told else text.replace("c.json,", "c.json, model: m,"))
            assert line.startswith("trial.yaml:")
            assert f"{key}.calibration" in line
            assert expected in line


def test_times_beside_a_calibration_or_beyond_the_longest_are_refused() -> None:
    write(measured())
    for quantum, expected in (
        ("kernel_ms: 10", "folk.latency.kernel_ms: "),
        ("quantum: 100000", "kernel_ms 1360000, above 600000"),
    ):
        (line,) = refused(OF_MODEL.replace("quantum: 10", quantum))

        assert expected in line


def test_a_new_calibration_takes_the_place_of_the_one_of_its_model_gpu_and_engine_alone() -> None:
    known = Calibrations(calibrations=(measured(), measured(gpu="A100")))
    new = measured().model_copy(update={"requests": 12})

    assert [(one.gpu, one.requests) for one in known.with_one(new).calibrations] == [("A100", 90), ("H100", 12)]


ROOT = Path(__file__).parents[2]

EXAMPLES = sorted((ROOT / "experiments").glob("*.yaml"))

FIRST_LINE = "# yaml-language-server: $schema=../configs/experiment.schema.json"


def is_valid(text: str) -> bool:
    return jsonschema.Draft202012Validator(file_schema()).is_valid(parse_document(text.encode(), "f").value)


def test_schema_file_is_current() -> None:
    file = ROOT / "configs" / "experiment.schema.json"

    assert file.read_text(encoding="utf-8") == schema_text(), f"run python -m mac_runner.config.schema {file}"


def test_schema_is_itself_valid() -> None:
    jsonschema.Draft202012Validator.check_schema(file_schema())


def test_each_example_names_the_schema_and_satisfies_it(subtests: pytest.Subtests) -> None:
    assert {"discussion_small.yaml", "tos_100games.yaml"} <= {example.name for example in EXAMPLES}
    validator = jsonschema.Draft202012Validator(file_schema())
    for example in EXAMPLES:
        with subtests.test(example.name):
            text = example.read_text(encoding="utf-8")

            assert text.splitlines()[0] == FIRST_LINE
            validator.validate(parse_document(text.encode(), example.name).value)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_example_loads_in_each_of_its_profiles(example: Path) -> None:
    value: Any = parse_document(example.read_bytes(), example.name).value
    for profile in (None, "embedded", *value.get("profiles", {})):
        loaded = load(example, profile=profile)
        asked = [one.loaded for one in loaded.combinations] if isinstance(loaded, Grid) else [loaded]

        assert {one.experiment.profile for one in asked} == {profile or "embedded"}
        for one in asked:
            assert one.experiment.experiment_metadata.experiment_name.startswith(example.stem)


OVERLAYS = {
    "": True,
    "profiles: {a: {game: {calendar: {max_days: 3}}, conversation_config: {conversations: 1}}, b: }": True,
    "profiles: {a: {game: {calendar: {max_days: x}}}}": False,
    "profiles: {a: {profile: b}}": False,
    "profiles: {a: {model_definitions: {m: {backend: vllm, vllm_config: {model: q}}}}}": True,
    "profiles: {a: {model_definitions: {m: {backend: vllm}}}}": False,
    "profiles: {a: {model_definitions: {m: {vllm_config: {model: q}}}}}": False,
    "profiles: {a: {gmae: {}}}": False,
    "sede: 1": False,
}


def test_schema_lets_an_overlay_leave_out_what_the_file_may_not() -> None:
    assert {more: is_valid(GAME + more) for more in OVERLAYS} == OVERLAYS


def test_schema_holds_an_engine_to_its_own_section() -> None:
    assert not is_valid(GAME.replace("backend: scripted", "backend: vllm"))


def test_public_names_are_there_and_sorted() -> None:
    names = mac_runner.config.__all__

    assert sorted(set(names)) == names
    assert all(getattr(mac_runner.config, name).__doc__ for name in names)


def test_every_section_of_the_room_is_public() -> None:
    own = (section for section in Section.__subclasses__() if section.__module__.startswith("mac_runner.config."))
    sections = {section.__name__.removeprefix("_") for section in own}

    assert sections <= set(mac_runner.config.__all__)


def test_experiment_for_others_names_no_machine_variable_or_secret_at_any_depth() -> None:
    private: JsonObject = dict.fromkeys(("base_url", "api_key_env", "admin_key_env", "hf_token", "S3_KEY"), "canary")
    model: JsonObject = {
        "backend": "fleet",
        "fleet_config": {"model": "m", "engine_args": {"x": 1, **private}, **private},
    }
    shown = shareable({"model_definitions": {"m": model}})

    assert "canary" not in str(shown)
    assert str(shown).count("(left out)") == 2 * len(private)
    assert "'x': 1" in str(shown)
