"""A small model learns Town of Salem from games of the scripted players, and plays it under nano.

`python sft_players.py --out DIR` plays the teachers' games, trains, writes a model for nano to `DIR/model` and lets it
play. docs/learning.md has the recipe, its time and its figures. It needs `pip install '.[nano,data]'`.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet
import torch
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers, trainers
from tokenizers.models import BPE
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

import mac_runner

NAMES = (
    *("Abel", "Beatrice", "Caleb", "Dorothea", "Elias", "Felicity", "Gideon", "Hester", "Isaac", "Josephine"),
    *("Kenelm", "Lydia", "Matthias", "Naomi", "Obadiah", "Prudence", "Quentin", "Rosamund", "Silas", "Tabitha"),
)
ROLES = ("Sheriff", "Doctor", "Escort", "Vigilante", "Lookout", "Godfather", "Jester")
MARK = "\n--\n"  # Before it is the record, the same for all players: sft_players.jinja.
END, REPLY = "<|end|>", "<|reply|>"
WAIT = f"<wait/>{END}"
CHAT = (
    "{% for message in messages %}{% if message.role == 'user' %}{{ message.content }}\n<|reply|>"
    "{% elif message.role == 'assistant' %}{{ message.content }}<|end|>{% endif %}{% endfor %}"
)
PROMPTS = Path(__file__).with_suffix(".jinja").resolve()
_NAME = re.compile("|".join(NAMES))
_THOUGHT = re.compile(r"<thinking>.*?</thinking>\s*", re.DOTALL)


# Games.


def experiment(name: str, conversations: int, players: Mapping[str, Mapping[str, Any]], **game: Any) -> dict[str, Any]:
    """Games of `social-7` between `players`, models by name."""
    return {
        "name": name,
        "environment": "town_of_salem",
        "conversations": conversations,
        "game": {"lobby": "social-7", "notes": False, "tools": [], "template_file": str(PROMPTS), **game},
        "model_definitions": dict(players),
        "agent_definitions": [
            {
                "agent_id": name,
                "role": "player",
                "model": name,
                "reasoning": "off",
                "max_tokens": 96,
                "temperature": 0.5,
            }
            for name in players
        ],
    }


def scripted(policy: str) -> dict[str, Any]:
    """A scripted player."""
    return {"backend": "scripted", "scripted_config": {"policy": policy}}


def learned(model: Path) -> dict[str, Any]:
    """The model in a directory, under nano. Nothing constrains its replies."""
    return {
        "backend": "nano",
        "constrained_decoding": "none",
        "reply_form": "markup",
        "nano_config": {"model": str(model), "kv_cache_gib": 0.5, "num_threads": 1},
    }


class Turn(NamedTuple):
    """One turn: how long the record was, in characters, what else its player was shown, the reply."""

    record_chars: int
    own: str
    reply: str


class Game(NamedTuple):
    """One game: its whole record, and the turns to learn from."""

    record: str
    turns: list[Turn]


def teach(out: Path, games: int, **game: Any) -> list[Game]:
    """Games of the heuristic player against itself, and among players who act at random."""
    found = []
    for name, players in {
        "alone": {"heuristic": scripted("heuristic")},
        "mixed": {"heuristic": scripted("heuristic"), "random": scripted("random")},
    }.items():
        run = mac_runner.run(experiment(name, games // 2, players, **game), out=out / name)
        mac_runner.export(run, out / f"{name}-rows", format="trl-sft", only=["heuristic"])
        found += games_of(out / f"{name}-rows")
    return found


def games_of(rows: Path) -> list[Game]:
    """The games in an export for `SFTTrainer`."""
    records, turns = defaultdict[str, str](str), defaultdict[str, list[Turn]](list)
    for file in sorted(rows.rglob("*.parquet")):
        for row in pyarrow.parquet.read_table(file).to_pylist():
            record, _, own = row["prompt"][0]["content"].partition(MARK)
            game, record = row["conversation"], f"{record}\n"
            records[game] = max(records[game], record, key=len)
            reply = _THOUGHT.sub("", row["completion"][0]["content"])
            turns[game].append(Turn(len(record), f"{MARK[1:]}{own}\n{REPLY}", reply + END))
    return [Game(records[game], turns[game]) for game in records]


# Tokens.


def make_tokenizer(games: Sequence[Game], size: int) -> Tokenizer:
    """Names and roles are one token each; what stands between them is joined to as few tokens as `size` allows."""
    tokenizer = Tokenizer(BPE())
    words = Regex("|".join((*NAMES, *ROLES)))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(words, "isolated"),
            pre_tokenizers.Split("\n", "merged_with_previous"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END, REPLY],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    texts = (text for game in games for text in (game.record, *(part for turn in game.turns for part in turn[1:])))
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


class Batch(NamedTuple):
    """The tokens of a game: the record, [1, R], and turns that leave it at `starts`, [B] and [B, L]."""

    record: Tensor
    starts: Tensor
    turns: Tensor
    is_reply: Tensor


def encode(tokenizer: Tokenizer, game: Game, turns: Sequence[Turn], chance: random.Random) -> Batch:
    """Some turns of a game. Its players get other names each time, so the model learns no name by heart."""
    others = dict(zip(NAMES, chance.sample(NAMES, len(NAMES)), strict=True))

    def renamed(text: str) -> str:
        return _NAME.sub(lambda name: others[name[0]], text)

    record = game.record[: max(turn.record_chars for turn in turns)]
    encoded = tokenizer.encode(renamed(record))
    ends = [end for _, end in encoded.offsets]
    starts = [bisect_right(ends, len(renamed(record[: turn.record_chars]))) for turn in turns]
    rows = [tuple(tokenizer.encode(renamed(text)).ids for text in (turn.own, turn.reply)) for turn in turns]
    tokens = torch.zeros(len(rows), max(len(own) + len(reply) for own, reply in rows), dtype=torch.long)
    is_reply = torch.zeros_like(tokens, dtype=torch.bool)
    for row, (own, reply) in enumerate(rows):
        tokens[row, : len(own) + len(reply)] = torch.tensor(own + reply)
        is_reply[row, len(own) : len(own) + len(reply)] = True
    return Batch(torch.tensor([encoded.ids]), torch.tensor(starts), tokens, is_reply)


# The model.


@dataclass(frozen=True)
class Shape:
    """The shape of the model, under the names of a Hugging Face configuration."""

    vocab_size: int = 3072
    hidden_size: int = 128
    intermediate_size: int = 384
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int = 4
    max_position_embeddings: int = 4096
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-6


class Rope(nn.Module):
    """Rotary positions."""

    def __init__(self, dim: int, shape: Shape) -> None:
        super().__init__()
        angles = torch.outer(
            torch.arange(shape.max_position_embeddings).float(),
            shape.rope_theta ** (-torch.arange(0, dim, 2).float() / dim),
        )
        self.cos, self.sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        """Turn `x`, [batch, heads, length, dim], by the positions `at`, [batch, length]."""
        left, right = x.chunk(2, -1)
        return x * self.cos[at][:, None] + torch.cat((-right, left), -1) * self.sin[at][:, None]


class Layer(nn.Module):
    """One layer of a Llama, under its names."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        size, inner = shape.hidden_size, shape.intermediate_size
        self.heads = shape.num_attention_heads
        self.input_layernorm = nn.RMSNorm(size, shape.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(size, shape.rms_norm_eps)
        self.self_attn = nn.ModuleDict({f"{name}_proj": nn.Linear(size, size, bias=False) for name in "qkvo"})
        self.mlp = nn.ModuleDict(
            {
                "gate_proj": nn.Linear(size, inner, bias=False),
                "up_proj": nn.Linear(size, inner, bias=False),
                "down_proj": nn.Linear(inner, size, bias=False),
            }
        )

    def forward(
        self, x: Tensor, rope: Rope, at: Tensor, trunk: tuple[Tensor, Tensor] | None, mask: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The layer for `x`, which also sees the keys and values of `trunk` where `mask` says so."""
        batch, length, size = x.shape
        normed = self.input_layernorm(x)
        q, k, v = (
            self.self_attn[f"{name}_proj"](normed).view(batch, length, self.heads, -1).transpose(1, 2) for name in "qkv"
        )
        q, k = rope(q, at), rope(k, at)
        keys, values = k, v
        if trunk is not None:
            keys, values = (
                torch.cat((one.expand(batch, -1, -1, -1), own), 2) for one, own in zip(trunk, (k, v), strict=True)
            )
        seen = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, is_causal=mask is None)
        x = x + self.self_attn["o_proj"](seen.transpose(1, 2).reshape(batch, length, size))
        normed = self.post_attention_layernorm(x)
        gated = F.silu(self.mlp["gate_proj"](normed)) * self.mlp["up_proj"](normed)
        return x + self.mlp["down_proj"](gated), (k, v)


class Player(nn.Module):
    """A Llama that reads a game once: its record is the trunk, and each turn a branch that leaves it."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_hidden_layers))
        self.norm = nn.RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.rope = Rope(shape.hidden_size // shape.num_attention_heads, shape)
        nn.init.normal_(self.embed_tokens.weight, std=shape.hidden_size**-0.5)
        for layer in self.layers:
            for linear in (*layer.self_attn.values(), *layer.mlp.values()):
                nn.init.normal_(linear.weight, std=0.02)
            # A head begins by saying what it sees. Without this, naming one of the choices is not learned in an hour.
            nn.init.orthogonal_(layer.self_attn["v_proj"].weight)
            layer.self_attn["o_proj"].weight.data.copy_(layer.self_attn["v_proj"].weight.data.T / 2)

    def forward(self, record: Tensor, turns: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        """The last states of the record, [1, R], and of turns [B, L], each of which sees the record up to its start."""
        reach, length = torch.arange(record.shape[1]), torch.arange(turns.shape[1])
        sees_record = (reach < starts[:, None])[:, None, None].expand(-1, 1, len(length), -1)
        sees_own = (length <= length[:, None]).expand(len(starts), 1, -1, -1)
        mask = torch.cat((sees_record, sees_own), 3)
        x, y = self.embed_tokens(record), self.embed_tokens(turns)
        for layer in self.layers:
            x, known = layer(x, self.rope, reach[None], None, None)
            y, _ = layer(y, self.rope, starts[:, None] + length, known, mask)
        return self.norm(x), self.norm(y)

    def losses(self, states: Tensor, tokens: Tensor) -> Tensor:
        """The loss of each token, [N], after its state, [N, hidden]."""
        return F.cross_entropy(states @ self.embed_tokens.weight.T, tokens, reduction="none")

    def save(self, directory: Path, tokenizer: Tokenizer) -> None:
        """Write the model as nano loads it."""
        directory.mkdir(parents=True, exist_ok=True)
        config = {"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": True, "hidden_act": "silu"}
        config |= {"dtype": "float32", "eos_token_id": tokenizer.token_to_id(END), **asdict(self.shape)}
        (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
        save_file(
            {f"model.{name}": value for name, value in self.state_dict().items()}, directory / "model.safetensors"
        )
        tokenizer.save(str(directory / "tokenizer.json"))
        (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHAT}), encoding="utf-8")


def loss_of(player: Player, batch: Batch) -> Tensor:
    """The loss of the replies, and a part of the record's, which teaches to read. A vote counts as much as a speech."""
    record, turns = player(batch.record, batch.turns[:, :-1], batch.starts)
    said, tokens = batch.is_reply[:, 1:], batch.turns[:, 1:]
    share = (said / said.sum(1, keepdim=True))[said] / len(said)
    return (player.losses(turns[said], tokens[said]) * share).sum() + 0.3 * player.losses(
        record[0, :-1], batch.record[0, 1:]
    ).mean()


def train(
    player: Player, tokenizer: Tokenizer, games: Sequence[Game], steps: int, *, turns: int = 32, speed: float = 2.5e-3
) -> list[float]:
    """Learn from some turns of one game at each step; returns the losses."""
    chance, losses, warmup = random.Random(0), list[float](), min(60, steps // 10 + 1)  # noqa: S311 - no secret
    optimizer = torch.optim.AdamW(player.parameters(), lr=speed, betas=(0.9, 0.95), weight_decay=0.05)
    for step in range(steps):
        done = step / steps
        rate = 1 if done < 0.3 else 0.02 + 0.49 * (1 + math.cos(math.pi * (done - 0.3) / 0.7))
        for group in optimizer.param_groups:
            group["lr"] = speed * rate * min(1, (step + 1) / warmup)
        game = chance.choice(games)
        waits, acts = ([turn for turn in game.turns if (turn.reply == WAIT) is is_wait] for is_wait in (True, False))
        chosen = chance.sample(acts, min(turns * 3 // 4, len(acts)))
        chosen += chance.sample(waits, min(turns - len(chosen), len(waits)))
        loss = loss_of(player, encode(tokenizer, game, chosen, chance))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(player.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        if step % 100 == 99:
            print(f"step {step + 1}: loss {sum(losses[-100:]) / 100:.3f}", flush=True)
    return losses


# From games to a player, and back to games.


def legal(conversation: mac_runner.EndedConversation) -> dict[str, float]:
    """The share of the model's turns whose first reply was legal, of all and by what it chose to do."""
    found = defaultdict[str, list[bool]](list)
    for turn in conversation.turns:
        if turn.model == "learned" and not turn.attempt:
            act = re.match(r"<(\w+)", turn.text)
            for kind in ("all", act[1] if act else "nothing"):
                found[kind].append(turn.receipt.kind == "act")
    return {kind: sum(shares) / len(shares) for kind, shares in found.items()}


def play(model: Path, out: Path, deals: int) -> mac_runner.RunView:
    """The learned player and the scripted ones, each against each, on both sides of every deal."""
    players = {"learned": learned(model), "heuristic": scripted("heuristic"), "random": scripted("random")}
    settings = experiment("play", deals, players, pairings={"round_robin": "all"})
    return mac_runner.run({**settings, "metrics": [f"{Path(__file__).resolve()}:legal"]}, out=out)


def main() -> None:
    """Teach, train, play."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/sft_players"))
    parser.add_argument("--games", type=int, default=800, help="games of the teachers")
    parser.add_argument("--steps", type=int, default=2000, help="32 turns of one game each")
    parser.add_argument("--deals", type=int, default=30, help="deals of each pair on each side")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    begun = time.process_time()
    games = teach(asked.out, asked.games)
    tokenizer, player = make_tokenizer(games[:: max(1, len(games) // 150)], Shape.vocab_size), Player(Shape())
    train(player, tokenizer, games, asked.steps)
    player.save(asked.out / "model", tokenizer)
    print(
        f"trained in {(time.process_time() - begun) / 60:.0f} minutes of CPU; games: {asked.out / 'play'}", flush=True
    )
    play(asked.out / "model", asked.out / "play", asked.deals)


if __name__ == "__main__":
    main()
