"""`constrained_decoding` and `reply_form`: what follows from them, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mac_runner.config import Loaded, decoding_of, identity_of, reply_form_of
from tests.config.conftest import GAME, TALK

Load = Callable[..., Loaded]

SCRIPTED = "backend: scripted, scripted_config: {policy: random}"
OPENAI = "backend: openai, openai_config: {model: m, base_urls: [http://h/v1]}"
PLAIN = "backend: openai, openai_config: {model: m, base_urls: [http://h/v1], endpoint: completions}"
OURS = "backend: openai, openai_config: {model: m, base_urls: [http://h/v1], endpoint: completions, server: vllm}"
VLLM = "backend: vllm, vllm_config: {model: m}"
OLLAMA = "backend: ollama, ollama_config: {model: m}"
NANO = "backend: nano, nano_config: {model: m}"
ENGINES = (OPENAI, OURS, VLLM, OLLAMA, NANO)
ECHO = GAME.replace("town_of_salem", "echo").replace("role: player", "role: participant") + "echo: {rounds: 1}\n"
PANEL = TALK + "  - {agent_id: a, role: participant, model: m}\n"


def text_of(base: str, definition: str) -> str:
    """The experiment with `definition` as its only model."""
    name, rest = ("m", "agent_definitions:") if base is PANEL else ("folk", "agent_definitions:")
    before = base[: base.index("model_definitions:")]
    return f"{before}model_definitions: {{{name}: {{{definition}}}}}\n{base[base.index(rest) :]}"


def test_forms_follow_from_backend_and_environment(load: Load, subtests: pytest.Subtests) -> None:
    rows = [
        (GAME, SCRIPTED, "none", "markup"),
        (PANEL, SCRIPTED, "none", "json"),
        (GAME, PLAIN, "none", "markup"),
        (GAME, f"{PLAIN}, reply_form: json", "none", "json"),
        (PANEL, PLAIN, "none", "json"),
        *((GAME, engine, "schema", "json") for engine in ENGINES),
        *((GAME, f"{engine}, constrained_decoding: json_object", "json_object", "json") for engine in ENGINES),
        *((GAME, f"{engine}, constrained_decoding: none", "none", "markup") for engine in ENGINES),
        *((GAME, f"{engine}, constrained_decoding: none, reply_form: json", "none", "json") for engine in ENGINES),
        *((GAME, f"{engine}, constrained_decoding: none, reply_form: markup", "none", "markup") for engine in ENGINES),
        *((PANEL, f"{engine}, constrained_decoding: none", "none", "json") for engine in ENGINES),
    ]
    for base, definition, decoding, form in rows:
        with subtests.test(definition, environment=base[30:90]):
            experiment = load(text_of(base, definition)).experiment
            (model,) = experiment.model_definitions.values()

            assert (decoding_of(model), reply_form_of(experiment, model)) == (decoding, form)


CONTRADICTIONS = [
    *((GAME, f"{engine}, reply_form: markup", 'reply_form: found the text "markup"; `constr') for engine in ENGINES),
    (
        GAME,
        f"{VLLM}, reply_form: markup, constrained_decoding: json_object",
        'reply_form: found the text "markup"; `c',
    ),
    (GAME, f"{SCRIPTED}, constrained_decoding: json_object", "constrained_decoding: the backend 'scripted'"),
    (GAME, f"{PLAIN}, constrained_decoding: json_object", "constrained_decoding: the backend 'openai'"),
    (GAME, f"{SCRIPTED}, reply_form: json", 'reply_form: found the text "json"; scripted players write markup'),
    (PANEL, f"{VLLM}, reply_form: markup", "reply_form: found the text \"markup\"; the environment 'discussion' asks"),
    (ECHO, f"{VLLM}, reply_form: json", "reply_form: found the text \"json\"; the environment 'echo' asks for no form"),
    (GAME, f"{VLLM}, constrained_decoding: grammar", 'constrained_decoding: found the text "grammar"; allowed: one of'),
]


def test_contradictions_are_refused_with_their_key(
    refusal: Callable[..., list[str]], subtests: pytest.Subtests
) -> None:
    for base, definition, text in CONTRADICTIONS:
        with subtests.test(definition):
            (line,) = refusal(text_of(base, definition))

            assert f": model_definitions.{'m' if base is PANEL else 'folk'}.{text}" in line


def test_each_makes_another_run_and_its_default_does_not(load: Load) -> None:
    plain = identity_of(load(text_of(GAME, VLLM)).experiment)
    written = identity_of(load(text_of(GAME, f"{VLLM}, constrained_decoding: schema, reply_form: null")).experiment)
    free = f"{VLLM}, constrained_decoding: none"
    others = {identity_of(load(text_of(GAME, more)).experiment) for more in (free, f"{free}, reply_form: json")}

    assert written == plain
    assert len(others | {plain}) == 3
