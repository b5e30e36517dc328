from __future__ import annotations

import json

from mac_runner.backends.nano.engine import params_of
from mac_runner.nano import SamplingParams
from mac_runner.types import EFFORT_KEYS, Message, Prompt, Sampling
from tests.sim.requests import EVERY_SETTING

MESSAGES = (Message(role="user", content="go"),)
PLAIN = Prompt(messages=MESSAGES)
MODEL = SamplingParams(temperature=0.6, top_k=20, top_p=0.95, repetition_penalty=1.1)


def test_every_setting_for_drawing_tokens_is_honoured() -> None:
    params = params_of(EVERY_SETTING, PLAIN, defaults=MODEL, room_tokens=100)

    assert {name: getattr(params, name) for name in Sampling.__slots__ if name not in EFFORT_KEYS} == {
        name: getattr(EVERY_SETTING, name) for name in Sampling.__slots__ if name not in EFFORT_KEYS
    }


def test_what_an_agent_leaves_open_is_the_models_own() -> None:
    params = params_of(Sampling(temperature=0.3, max_tokens=7), PLAIN, defaults=MODEL, room_tokens=100)

    assert (params.top_k, params.top_p, params.repetition_penalty) == (20, 0.95, 1.1)


def test_reply_is_no_longer_than_there_is_room() -> None:
    assert params_of(Sampling(max_tokens=7), PLAIN, defaults=MODEL, room_tokens=3).max_tokens == 3


def test_schema_holds_before_choices() -> None:
    schema = {"type": "object"}
    both = Prompt(messages=MESSAGES, schema=schema, choices=("a",))
    one = Prompt(messages=MESSAGES, choices=("a", "b"))

    held = params_of(Sampling(), both, defaults=MODEL, room_tokens=9)

    assert held.json_schema is not None
    assert (json.loads(held.json_schema), held.choices) == (schema, ())
    assert params_of(Sampling(), one, defaults=MODEL, room_tokens=9).choices == ("a", "b")
