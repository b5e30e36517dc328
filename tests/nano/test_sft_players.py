"""A small model learns the form of a game from scripted players: the example `sft_players.py`, in short."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

import mac_runner
from mac_runner.intervals import Interval, wilson

FILE = Path(__file__).parents[2] / "examples" / "sft_players.py"
SHORT: dict[str, Any] = {"calendar": {"max_days": 2}}


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sft_players", FILE)
    assert spec is not None
    assert spec.loader is not None
    sys.modules["sft_players"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small products are slower on two."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def legal_replies(example: ModuleType, player: Any, tokenizer: Tokenizer, place: Path) -> Interval:
    """The share of turns that the model answers with a legal act at the first try."""
    player.save(place / "model", tokenizer)
    settings = example.experiment("form", 3, {"learned": example.learned(place / "model")}, **SHORT)
    settings["agent_definitions"][0]["max_tokens"] = 24
    settings["retry_config"] = {"max_retries": 0}
    summary: Any = mac_runner.run(settings, out=place / "run", progress=False).summary
    share = wilson(summary["turns"] - summary["defaults"], summary["turns"])
    assert share is not None
    return share


def test_model_learns_from_scripted_players_to_reply_with_legal_acts(example: ModuleType, tmp_path: Path) -> None:
    torch.manual_seed(0)
    games = example.teach(tmp_path, 30, **SHORT)
    tokenizer = example.make_tokenizer(games, 2048)
    heads = {"num_attention_heads": 3, "num_key_value_heads": 3}
    shape = {"hidden_size": 96, "intermediate_size": 256, "num_hidden_layers": 2, **heads}
    player = example.Player(example.Shape(vocab_size=tokenizer.get_vocab_size(), **shape))

    untrained = legal_replies(example, player, tokenizer, tmp_path / "untrained")
    losses = example.train(player, tokenizer, games, 100, turns=16, speed=5e-3)
    trained = legal_replies(example, player, tokenizer, tmp_path / "trained")

    assert losses[-1] < losses[0]
    assert untrained.hi < 0.2
    assert trained.lo > 0.4


def test_turns_see_the_record_as_it_was_and_each_other_not_at_all(example: ModuleType) -> None:
    torch.manual_seed(0)
    player = example.Player(example.Shape(vocab_size=50, hidden_size=32, num_attention_heads=2, num_key_value_heads=2))
    record, turns, starts = torch.randint(50, (1, 9)), torch.randint(50, (3, 5)), torch.tensor([4, 9, 7])

    _, together = player(record, turns, starts)
    for place, start in enumerate(starts.tolist()):
        whole = torch.cat((record[0, :start], turns[place]))[None]
        alone, _ = player(whole, turns[:1, :1], torch.tensor([1]))
        assert torch.allclose(together[place], alone[0, start:], atol=1e-5)
