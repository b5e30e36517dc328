"""`mac-run import mac-fairness`: each key of theirs is carried over or listed, and what is written can be played."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise, product
from pathlib import Path

import pytest

from mac_runner.config import Experiment, Grid, Loaded, load
from tests.cli.lab import AtOnce, Lab

QUESTION = {
    "question_id": "q1",
    "source_dataset": "own",
    "source_id": "1",
    "question_type": "multiple_choice",
    "context": "",
    "question": "Who was late?",
    "choices": [{"id": "A", "text": "The nurse"}, {"id": "B", "text": "The pilot"}],
    "correct_answer_id": "A",
    "schema_version": "2025-12-10",
}

SINGLE = """\
_grid:
  sweep:
    experiment_metadata.experiment_name: ["{runtime.timestamp}_two voices"]
    prompt_template_config.for_participant.choice_display_format: [arabic_paren]
experiment_metadata:
  experiment_name: _
  benchmark_subcategory: own
  schema_version: "2025-12-10"
  questions_file: data/own.jsonl
conversation_config: {routing_strategy: vanilla, max_rounds: 3}
retry_config:
  max_retries: 4
  answer_match_threshold: 0.8
  retry_on_validation_error: true
  retry_on_generation_error: true
identity_reveal_config: {reveal_persona: true, reveal_demographics: false, reveal_presence_mode: true}
prompt_template_config:
  for_participant: {choice_display_format: _}
model_definitions:
  small: {backend: ollama, model_name: "tiny:1b", ollama_config: {num_ctx: 2048}}
agent_definitions:
  - {agent_id: spkr_000, role: participant, persona: nurse, demographics: elderly Welsh, if_as_human: true,
     model: small, temperature: 0.7, max_tokens: 256}
  - {agent_id: spkr_001, role: participant, persona: null, demographics: null, if_as_human: false,
     model: small, temperature: 0.5, max_tokens: 128}
"""

FACTORIAL = """\
_grid:
  derive:
    experiment_metadata.questions_file: "data/{experiment_metadata.benchmark_subcategory}.jsonl"
  sweep:
    experiment_metadata.benchmark_subcategory: [own, other]
    agent_definitions.0.demographics: [elderly, null]
    agent_definitions.0.if_as_human: [true, false]
  broadcast:
    heat:
      paths: [agent_definitions.0.temperature, agent_definitions.1.temperature]
      values: [0.0, 0.7]
  zip:
    shown:
      - {identity_reveal_config.reveal_persona: false, identity_reveal_config.reveal_demographics: false,
         identity_reveal_config.reveal_presence_mode: false}
      - {identity_reveal_config.reveal_persona: true, identity_reveal_config.reveal_demographics: true,
         identity_reveal_config.reveal_presence_mode: true}
    _engines:
      - experiment_metadata.experiment_name: "{runtime.timestamp}_a"
        model_definitions.m.model_path: org/a
        model_definitions.m.vllm_config.tensor_parallel_size: 1
        agent_definitions.0.enable_thinking: false
      - experiment_metadata.experiment_name: "{runtime.timestamp}_b"
        model_definitions.m.model_path: org/b
        model_definitions.m.vllm_config.tensor_parallel_size: 2
    _node:
      - model_definitions.m.vllm_config.enforce_eager: true
experiment_metadata:
  experiment_name: _
  benchmark_subcategory: _
  schema_version: "2025-12-10"
  questions_file: _
conversation_config: {routing_strategy: vanilla, max_rounds: 3}
retry_config: {max_retries: 5, answer_match_threshold: 0.75, retry_on_validation_error: true,
               retry_on_generation_error: true}
prompt_template_config:
  for_participant: {choice_display_format: none, json_field_order: rationale_first}
model_definitions:
  m:
    backend: vllm
    model_path: _
    vllm_config: {tensor_parallel_size: _, max_model_len: 1024, enforce_eager: _, attention_backend: FLASHINFER}
agent_definitions:
  - {agent_id: spkr_000, role: participant, persona: baker, demographics: _, if_as_human: _, model: m,
     temperature: _, max_tokens: 512}
  - {agent_id: spkr_001, role: participant, persona: null, demographics: null, if_as_human: false, model: m,
     temperature: _, max_tokens: 512}
"""

ODD = """\
_grid:
  shuffle: true
  sweep:
    model_definitions.m.vllm_config.gpu_memory_utilization: [0.8, 0.9]
    agent_definitions.0.mood: [calm, cross]
  derive:
    experiment_metadata.questions_file: "data/{nowhere.at_all}.jsonl"
experiment_metadata:
  experiment_name: odd
  benchmark_subcategory: own
  schema_version: "2025-12-10"
  questions_file: data/own.jsonl
  author: somebody
conversation_config: {routing_strategy: chain, max_rounds: 1}
retry_config: {max_retries: 5, answer_match_threshold: high, retry_on_validation_error: false,
               retry_on_generation_error: true}
identity_reveal_config: {reveal_persona: true, reveal_demographics: false, reveal_presence_mode: true}
prompt_template_config:
  for_participant: {choice_display_format: emoji, json_field_order: _}
  for_judge: {json_field_order: answer_first}
model_definitions:
  m: {backend: vllm, model_path: org/a, vllm_config: {gpu_device_ids: [2, 3], kv_cache_dtype: fp8}}
  gpt:
    backend: openai
    model_name: gpt-x
    api_config: {reasoning_effort: low, verbosity: low, max_retries: 2, timeout_seconds: 60, seed: 3}
agent_definitions:
  - {agent_id: spkr_000, role: participant, if_as_human: true, model: m, temperature: 0.5, max_tokens: 99, top_k: -1}
  - {agent_id: spkr_001, role: participant, if_as_human: true, model: gpt, temperature: 0.5, max_tokens: 99,
     top_p: 0.9, min_p: 0.1, enable_thinking: true, role_specific_config: {mood: calm}}
notes: [1]
"""

Import = Callable[[str], tuple[Path, list[str]]]


@pytest.fixture
def convert(lab: Lab, at_once: AtOnce) -> Import:
    """Import a text as `config/own/theirs.yaml` of a repository that has questions, as `ours/new.yaml`."""
    for folder in ("config/own", "data", "ours"):
        (lab.path / folder).mkdir(parents=True)
    for name in ("own", "other"):
        (lab.path / f"data/{name}.jsonl").write_text(json.dumps({**QUESTION, "question_id": name}) + "\n")

    def run(text: str) -> tuple[Path, list[str]]:
        (lab.path / "config/own/theirs.yaml").write_text(text)
        process = at_once("import mac-fairness config/own/theirs.yaml --out ours/new.yaml").done()
        return Path("ours/new.yaml"), process.stderr.splitlines()

    return run


def _one(path: Path) -> Experiment:
    found = load(path)
    assert isinstance(found, Loaded)
    return found.experiment


def test_a_single_experiment_means_what_it_meant(convert: Import) -> None:
    path, _ = convert(SINGLE)

    ours = _one(path)

    assert ours.name == "two-voices"
    assert ours.conversation_config.conversations == 1
    assert ours.retry_config.max_retries == 4
    assert ours.retry_config.when_exhausted == "fail"
    definition = ours.model_definitions["small"]
    assert (definition.backend, definition.constrained_decoding) == ("ollama", "json_object")
    assert definition.backend_settings.model_dump(exclude_defaults=True) == {"model": "tiny:1b", "num_ctx": 2048}
    settings = ours.environment_settings
    assert settings is not None
    written = settings.model_dump(mode="json")
    assert written["max_rounds"] == 3
    assert written["answers"]["near_match_threshold"] == 80
    assert written["routing_strategy"]["history_rounds"] == 1
    revealed = {"persona": True, "demographics": False, "presence_mode": "as_declared", "reveal_from_round": 2}
    assert written["identity_reveal_config"] == revealed
    assert (written["prompt"]["choice_format"], written["prompt"]["answer_order"]) == (
        "numerals_parenthesis",
        "answer_first",
    )
    agents = [(a.persona, a.demographics, a.if_as_human, a.temperature, a.max_tokens) for a in ours.agent_definitions]
    assert agents == [("nurse", "elderly Welsh", True, 0.7, 256), (None, {}, False, 0.5, 128)]


def test_a_grid_has_the_combinations_that_it_had(convert: Import) -> None:
    path, said = convert(FACTORIAL)

    grid = load(path)

    assert isinstance(grid, Grid)
    found = set()
    for combination in grid.combinations:
        ours = combination.loaded.experiment
        settings = (
            json.loads(ours.environment_settings.model_dump_json()) if ours.environment_settings is not None else {}
        )
        engine = ours.model_definitions["m"].backend_settings.model_dump()
        first, second = ours.agent_definitions
        assert first.temperature == second.temperature
        assert (engine["enforce_eager"], engine["max_model_len"]) == (True, 1024)
        reveal = settings["identity_reveal_config"]
        assert reveal["persona"] == reveal["demographics"] == (reveal["presence_mode"] == "as_declared")
        found.add(
            (
                settings["questions_sha256"],
                json.dumps(first.demographics),
                first.if_as_human,
                first.temperature,
                reveal["persona"],
                (engine["model"], engine["tensor_parallel_size"], first.thinking),
            )
        )
    digests = {digest for digest, *_ in found}
    engines = [("org/a", 1, False), ("org/b", 2, None)]
    wanted = product(sorted(digests), ['"elderly"', "{}"], [True, False], [0.0, 0.7], [True, False], engines)
    assert found == set(wanted)
    assert len(digests) == 2
    assert len(grid.combinations) == 64
    assert [line.partition(".yaml:")[2].partition(": ")[2].partition(": ")[0] for line in said[:-1]] == [
        "_grid.zip._engines.0.experiment_metadata.experiment_name",
        "experiment_metadata.schema_version",
    ]


def test_what_a_row_makes_of_another_key_varies_with_it(convert: Import) -> None:
    """With one round no identity is ever read, so it is hidden there."""
    swept = "  sweep:\n    conversation_config.max_rounds: [1, 3]\n"
    path, _ = convert(SINGLE.replace("max_rounds: 3", "max_rounds: _").replace("  sweep:\n", swept))

    grid = load(path)

    assert isinstance(grid, Grid)
    settings = [combination.loaded.experiment.environment_settings for combination in grid.combinations]
    told = [each.model_dump(mode="json") for each in settings if each is not None]
    assert [(each["max_rounds"], each["identity_reveal_config"]["persona"]) for each in told] == [(1, False), (3, True)]


def test_what_cannot_be_carried_over_is_listed_with_its_line_and_what_to_do(convert: Import) -> None:
    path, said = convert(ODD)

    listed = {line.split(": ", 2)[1]: line.split(": ", 2)[2] for line in said[:-1]}
    assert all(line.startswith("config/own/theirs.yaml:") for line in said[:-1])
    assert sorted(listed) == [
        "_grid.derive.experiment_metadata.questions_file",
        "_grid.shuffle",
        "_grid.sweep.agent_definitions.0.mood",
        "_grid.sweep.model_definitions.m.vllm_config.gpu_memory_utilization",
        "agent_definitions.1.enable_thinking",
        "agent_definitions.1.min_p",
        "agent_definitions.1.role_specific_config.mood",
        "agent_definitions.1.temperature",
        "agent_definitions.1.top_p",
        "conversation_config.routing_strategy",
        "experiment_metadata.author",
        "experiment_metadata.benchmark_subcategory",
        "experiment_metadata.schema_version",
        "identity_reveal_config.reveal_persona",
        "identity_reveal_config.reveal_presence_mode",
        "model_definitions.gpt.api_config.seed",
        "model_definitions.m.vllm_config.gpu_device_ids",
        "model_definitions.m.vllm_config.kv_cache_dtype",
        "notes",
        "prompt_template_config.for_judge.json_field_order",
        "prompt_template_config.for_participant.choice_display_format",
        "prompt_template_config.for_participant.json_field_order",
        "retry_config.answer_match_threshold",
        "retry_config.retry_on_validation_error",
    ]
    assert said[-1] == f"Keys that are not carried over: {len(listed)}"
    assert any(line.startswith("config/own/theirs.yaml:13: experiment_metadata.author: ") for line in said)
    assert "CUDA_VISIBLE_DEVICES" in listed["model_definitions.m.vllm_config.gpu_device_ids"]
    heading = [line for line in path.read_text().splitlines() if line.startswith("# - line ")]
    assert len(heading) == len(listed)


def test_keys_of_a_grid_that_lead_to_no_agent_are_listed_and_the_others_carried_over(convert: Import) -> None:
    strays = ("agent_definitions.-1.temperature", "agent_definitions.2.persona", "model_definitions.small.x.9.y")
    swept = "".join(f"    {stray}: [a, b]\n" for stray in strays)
    heat = "{paths: [agent_definitions.1.temperature, agent_definitions.5.temperature], values: [0.1, 0.2]}"

    path, said = convert(SINGLE.replace("  sweep:\n", f"  broadcast: {{heat: {heat}}}\n  sweep:\n{swept}"))

    reason = "is no key of mac-fairness; write what it means with a key of ours"
    left_out = [line.split(": ", 1)[1] for line in said if line.endswith(reason)]
    places = ("_grid.broadcast.heat.paths.1", *(f"_grid.sweep.{stray}" for stray in strays))
    assert left_out == [f"{place}: {reason}" for place in places]
    grid = load(path)
    assert isinstance(grid, Grid)
    assert [each.loaded.experiment.agent_definitions[1].temperature for each in grid.combinations] == [0.1, 0.2]


def test_of_what_is_carried_over_in_part_the_rest_is_there(convert: Import) -> None:
    ours = _one(convert(ODD)[0])

    m, gpt = (ours.model_definitions[name].backend_settings.model_dump() for name in ("m", "gpt"))
    assert m["tensor_parallel_size"] == 2
    assert (gpt["base_urls"], gpt["api_key_env"]) == (("https://api.openai.com/v1",), "OPENAI_API_KEY")
    assert (gpt["timeout_s"], gpt["reply_limit_parameter"]) == (60, "max_completion_tokens")
    assert ours.retry_config.max_attempts == 3
    first, second = ours.agent_definitions
    assert (first.temperature, second.temperature, second.top_p, first.top_k) == (0.5, 1.0, None, None)
    assert (second.reasoning_effort, second.verbosity, first.reasoning_effort) == ("low", "low", None)


def test_a_model_of_anthropic_thinks_and_draws_as_it_did(convert: Import) -> None:
    """One that thinks is sent no temperature."""
    told: dict[str, list[tuple[bool | None, str | None, float]]] = {
        "{effort: low, base_url: null}": [(False, "low", 0.7), (False, "low", 0.5)],
        "{thinking: adaptive}": [(True, None, 1.0), (True, None, 1.0)],
    }
    for api, due in told.items():
        text = SINGLE.replace("ollama,", "anthropic,").replace("ollama_config: {num_ctx: 2048}", f"api_config: {api}")
        path, said = convert(text)
        ours = _one(path)

        assert ours.model_definitions["small"].backend_settings.model_dump()["api_version"] == "2023-06-01"
        assert [(a.thinking, a.reasoning_effort, a.temperature) for a in ours.agent_definitions] == due
        assert sum(".temperature: mac-fairness" in line for line in said) == 2 * ("thinking" in api)
        path.unlink()


@pytest.mark.parametrize("sign", ["colon", "dot", "paren"])
@pytest.mark.parametrize("marker", ["letter", "arabic", "roman"])
def test_every_choice_format_has_one_of_ours(convert: Import, marker: str, sign: str) -> None:
    ours = _one(convert(SINGLE.replace("arabic_paren", f"{marker}_{sign}"))[0])

    assert ours.environment_settings is not None
    found = ours.environment_settings.model_dump()["prompt"]["choice_format"]
    words = {"letter": "letters", "arabic": "numerals", "paren": "parenthesis"}
    assert found == f"{words.get(marker, marker)}_{words.get(sign, sign)}"


def test_questions_are_found_and_what_wants_a_look_has_a_comment_above_it(convert: Import, at_once: AtOnce) -> None:
    """From the root of their repository; without --out the experiment is printed."""
    text = convert(SINGLE)[0].read_text()

    assert "questions:\n  - ../data/own.jsonl\n" in text
    marked = [after.split(":")[0].strip() for line, after in pairwise(text.splitlines()) if "# " in line]
    assert marked[-5:] == ["seed", "near_match_threshold", "reveal_from_round", "when_exhausted", "demographics"]
    at_once("import mac-fairness config/own/theirs.yaml").done("- data/own.jsonl")


def test_questions_that_are_not_found_are_named_where_a_person_looks(convert: Import) -> None:
    text = convert(SINGLE.replace("data/own.jsonl", "data/lost.jsonl"))[0].read_text()

    assert "# not found from config/own/theirs.yaml: data/lost.jsonl; put the files there\n  questions:" in text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1]", "theirs.yaml:1: an experiment file is a mapping"),
        ("a: 1", "model_definitions: is missing"),
        ("a: [", "theirs.yaml:"),
        (SINGLE.replace("  sweep:\n", "  sweep: [1]\n  other:\n"), "_grid.sweep: found a list"),
        (SINGLE.replace("[arabic_paren]", "3"), "choice_display_format: found 3; it lists values"),
    ],
)
def test_a_file_that_is_none_of_theirs_is_refused(lab: Lab, at_once: AtOnce, text: str, said: str) -> None:
    (lab.path / "theirs.yaml").write_text(text)

    at_once("import mac-fairness theirs.yaml --out new.yaml").refused(said)

    assert not (lab.path / "new.yaml").exists()


def test_a_file_that_is_there_is_not_written_over(lab: Lab, at_once: AtOnce) -> None:
    (lab.path / "theirs.yaml").write_text(SINGLE)
    with lab.unchanged():
        at_once("import mac-fairness theirs.yaml --out theirs.yaml").refused()
