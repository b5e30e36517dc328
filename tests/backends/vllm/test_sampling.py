from __future__ import annotations

from mac_runner.backends.vllm.testing import sampling_settings
from mac_runner.types import JsonObject, Message, Prompt, Sampling
from tests.sim.requests import EVERY_SETTING

MESSAGES = (Message(role="user", content="ask"),)
PLAIN = Prompt(messages=MESSAGES)
SCHEMA: JsonObject = {"type": "object"}


def settings(
    sampling: Sampling, prompt: Prompt = PLAIN, *, defaults: JsonObject | None = None, traces: bool = False
) -> dict[str, object]:
    return sampling_settings(sampling, prompt, defaults=defaults or {}, traces=traces)


def test_every_setting_goes_through_under_its_name() -> None:
    assert settings(EVERY_SETTING) == {
        "temperature": 0.5,
        "max_tokens": 9,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "repetition_penalty": 1.1,
        "stop": ["END"],
        "seed": 3,
    }


def test_the_models_own_defaults_hold_where_nothing_is_set() -> None:
    made = settings(Sampling(top_p=0.5, seed=1), defaults={"top_p": 0.95, "top_k": 20, "temperature": 0.6})

    assert made == {"top_p": 0.5, "top_k": 20, "temperature": 1.0, "max_tokens": 512, "stop": [], "seed": 1}


def test_a_schema_constrains_the_reply_and_choices_do_where_there_is_none() -> None:
    assert settings(Sampling(), Prompt(messages=MESSAGES, schema=SCHEMA))["json"] == SCHEMA
    assert settings(Sampling(), Prompt(messages=MESSAGES, choices=("a", "b")))["choice"] == ["a", "b"]

    both = settings(Sampling(), Prompt(messages=MESSAGES, choices=("a",), schema=SCHEMA))
    assert both["json"] == SCHEMA
    assert "choice" not in both


def test_likelihoods_are_asked_for_only_to_be_recorded() -> None:
    assert settings(Sampling(), traces=True)["logprobs"] == 0
    assert "logprobs" not in settings(Sampling())
