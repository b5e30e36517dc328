"""The conversations of a group share what their prompts begin with, and nano finds it in its cache."""

from __future__ import annotations

from pathlib import Path

import mac_runner
from mac_runner.types import JsonObject

GAME = """
from mac_runner import Ask, game

@game
def topics(table):
    table.rules = f"Talk about number {table.random('topic').getrandbits(64)} " + "and its many divisors. " * 20
    for name in table.agents:
        yield Ask(name, "Say something.", default="")
    return {"done": True}
"""


def cached_share(model: Path, place: Path, k: int) -> float:
    nano: JsonObject = {"model": str(model), "num_threads": 1, "kv_cache_gib": 0.02, "max_num_seqs_upper_bound": 1}
    content: JsonObject = {
        "experiment_metadata": {"experiment_name": f"k{k}"},
        "conversation_config": {
            "environment": f"{place / 'topics.py'}:topics",
            "conversations": 8,
            "samples_per_task": k,
        },
        "model_definitions": {"m": {"backend": "nano", "nano_config": nano}},
        "agent_definitions": [{"agent_id": "Ann", "role": "player", "model": "m", "max_tokens": 4}],
    }
    run = mac_runner.run(content, out=place / f"k{k}", progress=False)
    turns = [turn for conversation in run for turn in conversation.turns]
    assert len(turns) >= 8
    return sum(turn.tokens.cached for turn in turns) / sum(turn.tokens.prompt for turn in turns)


def test_samples_of_a_deal_hit_the_prefix_cache(model_directory: Path, tmp_path: Path) -> None:
    (tmp_path / "topics.py").write_text(GAME)

    alone, grouped = cached_share(model_directory, tmp_path, 1), cached_share(model_directory, tmp_path, 4)

    assert alone < 0.3
    assert grouped > 0.5
