"""What a file is refused with: every line of it has a place, says what is wrong, and what to write instead."""

from __future__ import annotations

import re
from typing import NamedTuple

import pytest
from syrupy.assertion import SnapshotAssertion

from mac_runner.backends.testing import NANO_ARGS
from mac_runner.config import Experiment, recorded
from mac_runner.config.testing import GRID_COMBINATIONS_MAX, belongs, parse_document
from mac_runner.problems import CONFIG_PROBLEMS_MAX
from mac_runner.section import leaf_fields
from mac_runner.serve import main
from tests.config.conftest import (
    ANN,
    GAME,
    NANO,
    OLLAMA,
    OPENAI,
    OURS,
    PLAIN,
    SCRIPTED,
    SWEPT,
    TALK,
    VLLM,
    loaded,
    on_fleet,
    refused,
    with_model,
)

PLACE = re.compile(r"trial\.yaml:\d+: |--set \S*: |--set \S+:\d+: |--seed: |--profile: |\w+\.jsonl: ")


class File(NamedTuple):
    """A file with something replaced and something behind it, and the flags of the command."""

    base: str = GAME
    old: str = ""
    new: str = ""
    more: str = ""
    flags: tuple[str, ...] = ()
    profile: str | None = None
    seed: int | None = None

    @property
    def text(self) -> str:
        assert self.old in self.base
        return (self.base.replace(self.old, self.new) if self.old else self.base) + self.more


VALUES = (
    "seed='3'",
    "seed=true",
    "seed=1.0",
    "seed=",
    "seed=null",
    "game.flags.mafia_parity='no'",
    "game.flags.mafia_parity=0",
    "game.flags.sheriff=bin",
    "game.flags=[]",
    "retry_config=",
    "retry_config=null",
    "retry_config.backoff_s=x",
    "retry_config.backoff_s=-1",
    "retry_config.request_deadline_s=0",
    "game.calendar.max_days=1000",
    "game.lobby=3",
    "game.lobby=[]",
    "game.lobby=[Doctor, 3]",
    "game.seats={player: x}",
    "agent_definitions={}",
    "agent_definitions=[]",
    "agent_definitions.0.role=''",
    "experiment_metadata.experiment_name=../up",
    "model_definitions={a b: {backend: vllm}}",
    f"game.flags.sheriff={'x' * 100_000}",
)
INTO_NOTHING = (
    "seed",
    "=3",
    "game..lobby=x",
    "agent_definitions.0.role.x=1",
    "profile=vllm",
    "game.lobby=]",
    "game.flags.mafia_parity=yes",
    "agent_definitions.2.role=x",
    "agent_definitions.playr.role=x",
    "model_definitions.flok.backend=vllm",
    "gmae.lobby=x",
    "game.lobbby=x",
    "seed=x",
)
MISPLACED = (
    "temperature",
    "discussion.temperature",
    "discussion.choice_format",
    "lobby",
    "agent_definitions.0.speak_after_within_round",
    "game.max_retries",
    "game.temprature",
    # A slip beside its key and a key like no other get the allowed keys.
    "retry_config.max_retires",
    "game.calender",
    "gmae",
    "nonsense_of_mine",
)

PANEL = """\
experiment_metadata: {experiment_name: talk}
conversation_config: {environment: discussion, conversations: 2}
discussion:
  topics: [bridges]
model_definitions: {m: {backend: scripted, scripted_config: {policy: discussant}}}
agent_definitions:
  - {agent_id: ann, role: participant, model: m}
  - {agent_id: bob, role: participant, model: m}
  - agent_id: jud
    role: judge
    model: m
    role_specific_config: {speak_after_within_round: [ann]}
"""
DISCUSSIONS = (
    ("topics: [bridges]", "max_rounds: 3"),
    ("topics: [bridges]", "questions: [none.jsonl]"),
    ("topics: [bridges]", "topics: [x]\n  questions: [q.jsonl]"),
    ("topics: [bridges]", "topics: [x]\n  stopping: {min_rounds: 9}"),
    ("topics: [bridges]", "topics: [x]\n  routing_strategy: {topology: star}"),
    ("topics: [bridges]", "topics: [x]\n  routing_strategy: {topology: star, hub: anna}"),
    ("topics: [bridges]", "topics: [x]\n  routing_strategy: {topology: groups}"),
    ("topics: [bridges]", "topics: [x]\n  routing_strategy: {groups: {g: [ann, bo]}}"),
    ("topics: [bridges]", "topics: [x]\n  routing_strategy: {channels: {duo: [ann]}}"),
    ("topics: [bridges]", "topics: [x]\n  routing_strategy: {channels: {duo: [ann, bob], Duo: [ann, bob]}}"),
    ("topics: [bridges]", "topics: [x]\n  max_rounds: 1\n  identity_reveal_config: {presence_mode: all_ai}"),
    ("topics: [bridges]", "topics: [x]\n  prompt: {template_file: none.jinja}"),
    ("role: judge", "role: jugde"),
    ("[ann]", "[]"),
    ("[ann]", "[anne]"),
    ("agent_id: bob", "agent_id: ann"),
    ("bob, role: participant", "bob, role: judge"),
    ("[ann]", "[ann], visible_to: [amm]"),
    ("role: participant", "role: moderator"),
)
WAITS: tuple[dict[str, str], ...] = (
    {"a": "a"},
    {"a": "b", "b": "a"},
    {"m": "a", "a": "b", "b": "c, a", "c": ""},
    {"ann": "bob, ban", "bob": ""},
)

SALEM = GAME + "  - {agent_id: other, model: folk, %s}\n"
ECHO = GAME.replace("town_of_salem", "echo").replace("role: player", "role: participant") + "echo: {rounds: 1}\n"
ECHOES = ECHO.replace("echo: {", "  - {agent_id: other, model: folk, %s}\necho: {")
IGNORED = (
    (SALEM, "role: banana"),
    (SALEM, "role: player, demographics: {age: old}"),
    (SALEM, "role: player, if_as_human: false"),
    (SALEM, "role: player, role_specific_config: {visible_to: []}"),
    (ECHOES, "role: caller"),
    (ECHOES, "role: participant, role_specific_config: {speak_after_within_round: [player]}"),
    (ECHOES, "role: participant, persona: nurse"),
    (ECHOES, "role: participant, demographics: {age: 7}"),
    (ECHOES, "role: participant, if_as_human: true"),
)

CONTRADICTIONS = (
    *((GAME, f"{engine}, reply_form: markup") for engine in (OPENAI, OURS, VLLM, OLLAMA, NANO)),
    (GAME, f"{VLLM}, reply_form: markup, constrained_decoding: json_object"),
    (GAME, f"{SCRIPTED}, constrained_decoding: json_object"),
    (GAME, f"{PLAIN}, constrained_decoding: json_object"),
    (GAME, f"{SCRIPTED}, reply_form: json"),
    (TALK + ANN.replace("m}", "folk}"), f"{VLLM}, reply_form: markup"),
    (ECHO, f"{VLLM}, reply_form: json"),
    (GAME, f"{VLLM}, constrained_decoding: grammar"),
)

COMMAND = "engine: command, command: [serve, '{port}']"
ENGINES = (
    "engine: command",
    "engine: command, command: [serve]",
    "engine: command, command: [serve, '{port}', '{modle}']",
    f"{COMMAND}, engine_args: {{a: 1}}",
    "command: [serve, '{port}']",
    "engine_args: {port: 8000}",
    "engine_args: {hf-token: hf_0123456789}",
    "engine: command, command: [env, HF_TOKEN=hf_0123456789, serve, --token=0123456789, --key, '0123', '{port}']",
    "engine_args: {max-num-seqs: 8}",
    "engine_args: {gpu_memory_util: 0.5}",
    "engine_args: {data_parallel_size: 2}",
    "engine_args: {--dtype: half}",
    "engine_args: {kv_cache_dtype: fp8, kv-cache-dtype: fp8}",
    "engine_args: {dtype: null}",
    "engine: nano, engine_args: {kv_cache: 1}",
    "engine_args: {chat-template: trial.yaml}",
    "engine: nano, chat_template: trial.yaml",
    f"{COMMAND}, chat_template: trial.yaml",
    "chat_template: none.jinja",
    "server: vllm",
    f"{COMMAND}, chat_template_kwargs: {{enable_thinking: false}}",
)
GPUS = ("[0, 1, 0]", "9", "[]", "0", "[-1]")

GRIDS = (
    "_grid: {}",
    "_grid: 3",
    "_grid: {swep: {seed: [1]}}",
    "_grid: {sweep: {seed: []}}",
    "_grid: {sweep: {seed: 4}}",
    "_grid:\n  sweep:\n    game.loby: [a]",
    "_grid: {sweep: {gme.lobby: [a]}}",
    "_grid: {sweep: {model_definitions.fol.backend: [a]}}",
    "_grid: {sweep: {agent_definitions.2.role: [a]}}",
    "_grid: {sweep: {seed.deep: [1]}}",
    "_grid: {sweep: {seed..x: [1]}}",
    "_grid:\n  sweep:\n    seed:\n    - 1\n    - -1",
    "_grid: {sweep: {seed: [1, 2, 1]}}",
    "_grid: {sweep: {profile: [a]}}",
    "_grid: {sweep: {experiment_metadata.experiment_name: [a]}}",
    "_grid: {sweep: {experiment_metadata: [a]}}",
    "_grid: {zip: {z: {seed: [1, 2], game.lobby: [a]}}}",
    "_grid: {zip: {z: [{seed: 1}, {game.lobby: a}]}}",
    "_grid: {zip: {z: []}}",
    "_grid: {zip: {z: 3}}",
    "_grid: {sweep: {seed: [1]}, zip: {z: [{seed: 2}]}}",
    "_grid: {sweep: {game: [{}], game.lobby: [a]}}",
    "_grid: {sweep: {seed: [1]}, broadcast: {seed: {paths: [game.lobby], values: [a]}}}",
    "_grid: {broadcast: {b: {paths: [seed]}}}",
    "_grid: {broadcast: {b: {paths: [seed], values: [1, 2], labels: [never]}}}",
    "_grid: {broadcast: {b: {paths: [seed], values: [1, 2], labels: [same, same]}}}",
    "_grid: {sweep: {seed: [1]}, derive: {seed: '3'}}",
    "_grid: {sweep: {seed: [1]}, derive: {game.lobby: '{game.loby}'}}",
    "_grid: {sweep: {seed: [1]}, derive: {game.lobby: '{retry_config.max_retries}'}}",
    "_grid: {sweep: {seed: [1]}, derive: {game.lobby: 'a{seed'}}",
    "_grid: {sweep: {seed: [1]}, derive: {experiment_metadata.description: 'a {game}'}}",
    "_grid: {sweep: {seed: [1]}, derive: {experiment_metadata.experiment_name: x}}",
    "_grid: {sweep: {seed: [1]}, derive: {game.lobby: '{seed.x}'}}",
    "_grid: {derive: {game.lobby: '{agent_definitions.0.role}', agent_definitions.0.role: 'x{game.lobby}'}}",
    "_grid: {sweep: {conversation_config.conversations: [1, 2]}}",
    # What is wrong in many combinations is said once.
    "_grid: {sweep: {seed: [1, 2, 3], game.lobby: [classic-7], retry_config.max_retries: [99]}}",
)

THINKING = ("model: folk", "model: folk, thinking: true, verbosity: low")
PROFILES = "profile: smal\nprofiles: {small: {}, large: {}}\n"
SEEDS = "_grid: {sweep: {seed: [1, 2]}}\n"
FILES = {
    "the model of an agent is none": File(old="model: folk", new="model: fork"),
    "conversations are no whole groups": File(flags=("conversation_config.samples_per_task=2",)),
    "a limit on the steps of what is built in": File(flags=("conversation_config.step_limit_s=5",)),
    "an agent id is taken twice": File(more="  - {agent_id: player, role: player, model: folk}\n"),
    "a backend has the section of another": File(flags=("model_definitions.folk.backend=vllm",)),
    "a backend would ignore thinking": File(GAME, *THINKING),
    "a backend would ignore a part of it": File(GAME, *THINKING, flags=(f"model_definitions.folk={{{OPENAI}}}",)),
    "seats of an agent that is none": File(flags=("game.seats={palyer: 10}",)),
    "an environment has the section of another": File(
        flags=("conversation_config.environment=discussion", "game.lobby=classic-7")
    ),
    "several problems": File(
        old="_name: trial\nconversation_config:\n  environment: town_of_salem\n  conversations: 3",
        new="_nam: trial\nconversation_config:\n  environment: town_of_salem\n  conversations: 0",
        more="sede: 3\nretry_config:\n  max_retires: 1\n",
    ),
    "profiles that are not chosen": File(more="profiles:\n  a: {gmae: {}, profile: b}\n  b: 3\n"),
    "profiles that are a list": File(more="profiles: [a]\n"),
    "a profile that a flag misspells": File(more=PROFILES.partition("\n")[2], profile="smal"),
    "a profile that the file misspells": File(more=PROFILES),
    "a key is missing in what a profile replaces": File(
        more="profiles:\n  bare:\n    model_definitions:\n      folk: {backend: scripted}\n", profile="bare"
    ),
    "a fleet that no model uses": File(more="fleet: {gpus: 2}\n"),
    "a seed that is none": File(seed=-1),
    "a flag sets what varies": File(more=SEEDS, flags=("seed=3",)),
    "the seed of the command sets what varies": File(more=SEEDS, seed=3),
    **{f"a file that is {text}": File(text) for text in ("3", "[a]", "just words", "~")},
}


def agents_waiting(waits: dict[str, str]) -> str:
    """The agents of a discussion, each of which waits for the ones given."""
    return "".join(
        f"  - {{agent_id: {agent}, role: participant, model: m, "
        f"role_specific_config: {{speak_after_within_round: [{others}]}}}}\n"
        for agent, others in waits.items()
    )


CASES: dict[str, dict[str, File]] = {
    "a value that may not be": {flag[:99]: File(flags=(flag,)) for flag in VALUES},
    "a flag that sets nothing": {flag: File(flags=(flag,)) for flag in INTO_NOTHING},
    "a key in the wrong place": {key: File(flags=(f"{key}=1",)) for key in MISPLACED},
    "a discussion": {new: File(PANEL, old, new) for old, new in DISCUSSIONS},
    "agents that wait": {str(waits): File(TALK, more=agents_waiting(waits)) for waits in WAITS},
    "what changes nothing": {setting: File(base % setting) for base, setting in IGNORED},
    "forms of replies": {definition: File(with_model(base, definition)) for base, definition in CONTRADICTIONS},
    "an engine of a fleet": {settings: File(flags=on_fleet(settings)) for settings in ENGINES},
    "GPUs of a fleet": {gpus: File(more=f"fleet: {{gpus: {gpus}}}\n", flags=on_fleet("engine: nano")) for gpus in GPUS},
    "a grid": {section: File(SWEPT, more=f"{section}\n") for section in GRIDS},
    "a file": FILES,
}


@pytest.mark.parametrize("subject", CASES)
def test_wording_of_refusals(subject: str, snapshot: SnapshotAssertion) -> None:
    """The texts are in `__snapshots__`."""
    said = {}
    for name, file in CASES[subject].items():
        lines = refused(file.text, overrides=file.flags, profile=file.profile, seed=file.seed)
        assert [line for line in lines if not PLACE.match(line) or len(line) > 450] == [], name
        said[name] = [line.partition("YAML: ")[0] for line in lines]  # What follows depends on the reader of YAML.

    assert said == snapshot


def test_settings_that_change_nothing_are_read_in_recorded_runs() -> None:
    """Earlier versions let them pass, so there are runs that have them."""
    for base, setting in IGNORED:
        config = parse_document((base % setting).encode(), "trial.yaml").value
        assert isinstance(config, dict)
        assert len(recorded(config, "experiment.yaml").agent_definitions) == 2, setting
    loaded(SALEM % "role: player, if_as_human: null, demographics: {}")
    loaded(ECHOES % "role: participant")


def test_a_long_chain_of_waiting_is_followed_to_its_end() -> None:
    chain = {f"a{number}": f"a{number + 1}" for number in range(300)}

    (line,) = refused(TALK + agents_waiting({**chain, "a300": "a298"}))

    assert "a298 -> a299 -> a300 -> a298" in line


@pytest.mark.parametrize(
    "model",
    [
        "base_urls: ['http://u:{key}@h'], api_key_env: {key}",
        "base_urls: ['http://h/v1?key={key}']",
        "base_urls: ['http://h/v1#{key}']",
        "base_urls: ['http://{key}@h/v1']",
        "base_urls: ['{key}']",
    ],
)
def test_complaints_never_show_pydantic_or_a_pasted_key(model: str) -> None:
    key = "sk-canary-000"
    folk = f"{{backend: openai, openai_config: {{model: m, {model.format(key=key)}}}}}"
    for lines in (
        refused(GAME, overrides=[f"model_definitions.folk={folk}", f"api_key={key}"]),
        refused(f"{SWEPT}_grid: {{sweep: {{model_definitions.folk: [{folk}]}}}}\n"),
    ):
        printed = "\n".join(lines)

        assert "base_urls.0: this value" in printed
        assert ("environment variable" in printed) == ("api_key_env" in model)
        assert key not in printed
        assert "pydantic" not in printed


def test_hostile_text_is_printed_on_one_line_and_cannot_act_on_a_terminal() -> None:
    hostile = '"a\\nb\\u2028c\\e[31m"'
    for place in ("game: {flags: {sheriff: %s}}", "game: {%s: 1}", "profiles: {%s: 1}", "profile: %s"):
        (line,) = refused(GAME + place % hostile)

        assert line.isprintable(), place


def test_the_hint_of_every_leaf_at_the_top_names_its_place_and_every_synonym_leads_to_a_key() -> None:
    leaves = [path for path, _ in leaf_fields(Experiment) if len(path) > 1 and path[-1] not in Experiment.model_fields]
    unnamed = [path for path in leaves if not belongs((path[-1],), Experiment)]

    assert len(leaves) > 100
    assert unnamed == []


def test_each_flag_of_mac_serve_is_set_by_the_fleet_or_open_to_the_user() -> None:
    options = (max(option.opts, key=len).strip("-") for option in main.params)
    flags = {name.replace("-", "_") for name in options if name not in ("help", "version")}
    for name in sorted(flags - NANO_ARGS):
        (line,) = refused(GAME, overrides=on_fleet(f"engine: nano, engine_args: {{{name}: 1}}"))
        assert "by the fleet" in line or "over more GPUs" in line, line

    assert flags >= NANO_ARGS


def test_thousands_of_unknown_keys_are_refused_with_a_bounded_text() -> None:
    noise = "".join(f"    key_{number}: 1\n" for number in range(4_000))
    lines = refused(GAME + "game:\n  flags:\n" + noise + "profiles:\n  embedded: {game: {flags: {x: 1}}}\n")

    assert len(lines) == CONFIG_PROBLEMS_MAX + 1
    assert lines[-1].startswith("... and more")


def test_too_many_combinations_are_refused_before_any_is_made() -> None:
    seeds = ", ".join(map(str, range(100)))
    many = f"seed: [{seeds}], game.calendar.max_days: [{seeds}]"
    (line,) = refused(f"{SWEPT}_grid: {{sweep: {{{many}}}}}\n")

    assert f"10,000 combinations; at most {GRID_COMBINATIONS_MAX:,}" in line
