"""GRPO: a random model learns to share fruit from its own games, while it plays them.

The model is made here: 1.7 million random weights, and a tokenizer of single words. It plays `sharing.py` with itself.
Each deal is played `GROUP` times. A reply becomes more likely by how much its seat got, less what that seat got on
average in the games of the deal. New weights come in the middle of games. After a kill, start it again: it goes on.

    pip install '.[nano,data,report]' && python examples/grpo.py
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from torch.nn import functional

import mac_runner
from mac_runner import Policy, Rollout, stream

GROUP, BATCH, MAX_LAG = 8, 128, 1
SHAPE = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 2, "num_attention_heads": 4}
History = list[dict[str, float]]
LEARNING_RATE, CLIP, ENTROPY = 4e-4, 0.2, 0.05
SPECIAL = ["<end>", "<unknown>", "<system>", "<user>", "<assistant>"]
TEMPLATE = "{% for message in messages %}<{{ message.role }}> {{ message.content }} {% endfor %}<assistant>"


def experiment(player: Mapping[str, Any], conversations: int, seed: int) -> dict[str, Any]:
    """The experiment, in which `player` has both seats."""
    game = f"{Path(__file__).with_name('sharing.py')}:sharing"
    agent = {"agent_id": "learner", "role": "player", "model": "learner", "temperature": 1.0, "max_tokens": 1}
    return {
        "name": "sharing",
        "seed": seed,
        "conversation_config": {"environment": game, "conversations": conversations, "samples_per_task": GROUP},
        "settings": {"has_rules": False},
        "retry_config": {"max_retries": 0},
        "model_definitions": {"learner": player},
        "agent_definitions": [agent],
    }


def best(home: Path, seed: int) -> tuple[float, list[str]]:
    """What the best players get on average, and all words of the prompts."""
    keen = {"backend": "scripted", "scripted_config": {"policy": "keen"}}
    run = mac_runner.run(experiment(keen, 400, seed), out=home / "best", progress=False)
    texts = {message.content for game in run for turn in game.turns for message in game.prompt(turn.key).messages}
    words = {word for text in texts for word, _ in pre_tokenizers.Whitespace().pre_tokenize_str(text)}
    return fmean(game.outcome["total"] / 2 for game in run), sorted(words)


def make_model(home: Path, words: Sequence[str], seed: int, shape: Mapping[str, int]) -> dict[str, Tensor]:
    """Write a random model of the Llama kind, and return its weights."""
    vocabulary = {word: number for number, word in enumerate([*SPECIAL, *words])}
    width, inner, norms = shape["hidden_size"], shape["intermediate_size"], ["model.norm"]
    matrices = {"model.embed_tokens": (len(vocabulary), width), "lm_head": (len(vocabulary), width)}
    for layer in (f"model.layers.{number}" for number in range(shape["num_hidden_layers"])):
        matrices |= {f"{layer}.self_attn.{name}_proj": (width, width) for name in "qkvo"}
        matrices |= {f"{layer}.mlp.{name}_proj": (inner, width) for name in ("gate", "up")}
        matrices[f"{layer}.mlp.down_proj"] = (width, inner)
        norms += [f"{layer}.input_layernorm", f"{layer}.post_attention_layernorm"]
    torch.manual_seed(seed)
    weights = {f"{name}.weight": torch.randn(size) * size[1] ** -0.5 for name, size in matrices.items()}
    weights |= {f"{name}.weight": torch.ones(width) for name in norms}
    weights["model.embed_tokens.weight"] *= width**0.5
    kind = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "eos_token_id": 0}
    kind |= {"vocab_size": len(vocabulary), "max_position_embeddings": 256}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=SPECIAL[1]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(SPECIAL)
    home.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(home / "tokenizer.json"))
    (home / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    (home / "config.json").write_text(json.dumps({**shape, **kind}))
    save_file(weights, home / "model.safetensors")
    return weights


def logits_of(weights: Mapping[str, Tensor], shape: Mapping[str, int], ids: Tensor) -> Tensor:
    """The same model with gradients: tokens [row, place] to logits [row, place, word]."""
    (rows, length), width, heads = ids.shape, shape["hidden_size"], shape["num_attention_heads"]
    half = width // heads // 2
    angles = torch.outer(torch.arange(length), 10_000.0 ** (-torch.arange(half) / half))

    def norm(x: Tensor, name: str) -> Tensor:
        return functional.rms_norm(x, (width,), weights[f"{name}.weight"], 1e-6)

    def project(x: Tensor, name: str) -> Tensor:
        return functional.linear(x, weights[f"{name}_proj.weight"])

    def rotated(x: Tensor) -> Tensor:
        one, two = x.chunk(2, dim=-1)
        return torch.cat((one * angles.cos() - two * angles.sin(), two * angles.cos() + one * angles.sin()), dim=-1)

    x = weights["model.embed_tokens.weight"][ids]
    for layer in (f"model.layers.{number}" for number in range(shape["num_hidden_layers"])):
        y = norm(x, f"{layer}.input_layernorm")
        q, k, v = (project(y, f"{layer}.self_attn.{n}").view(rows, length, heads, -1).transpose(1, 2) for n in "qkv")
        seen = functional.scaled_dot_product_attention(rotated(q), rotated(k), v, is_causal=True)
        x = x + project(seen.transpose(1, 2).reshape(rows, length, width), f"{layer}.self_attn.o")
        y = norm(x, f"{layer}.post_attention_layernorm")
        inner = functional.silu(project(y, f"{layer}.mlp.gate")) * project(y, f"{layer}.mlp.up")
        x = x + project(inner, f"{layer}.mlp.down")
    return functional.linear(norm(x, "model.norm"), weights["lm_head.weight"])


class Learner:
    """The weights and their optimizer. With a `sign` of -1 it learns to do badly."""

    def __init__(self, weights: Mapping[str, Tensor], shape: Mapping[str, int], sign: float) -> None:
        self._weights = {name: weight.clone().requires_grad_() for name, weight in sorted(weights.items())}
        self.optimizer = torch.optim.Adam(self._weights.values(), LEARNING_RATE, (0.9, 0.95))
        self._shape, self._sign = shape, sign

    def step(self, rollouts: Sequence[Rollout]) -> dict[str, Tensor]:
        """Learn from rollouts, and return a copy of the new weights."""
        rewards = defaultdict[str, list[float]](list)
        for r in rollouts:
            rewards[r.group_id].append(r.reward or 0.0)
        # A place in `then`, `gain` and `said` is of the token after it.
        size = len(rollouts), max(len(r.prompt_ids) + len(r.completion_ids) for r in rollouts)
        ids, said, then, gain = (torch.zeros(size, dtype=kind) for kind in (torch.long, torch.bool, None, None))
        for row, r in enumerate(rollouts):
            start, end = len(r.prompt_ids), len(r.prompt_ids) + len(r.completion_ids)
            ids[row, :end] = torch.tensor([*r.prompt_ids, *r.completion_ids])
            said[row, start - 1 : end - 1] = True
            then[row, start - 1 : end - 1] = torch.tensor([*r.logprobs])
            gain[row, start - 1 : end - 1] = self._sign * ((r.reward or 0.0) - fmean(rewards[r.group_id]))
        now = logits_of(self._weights, self._shape, ids)[said].log_softmax(-1)
        chosen = now.gather(-1, ids.roll(-1, 1)[said].unsqueeze(-1)).squeeze(-1)
        # The weights have changed since the reply was made. The ratio corrects for that, within limits.
        ratio, gain = (chosen - then[said]).exp(), gain[said]
        gained = torch.minimum(ratio * gain, ratio.clamp(1 - CLIP, 1 + CLIP) * gain).mean()
        entropy = -(now.exp() * now).sum(-1).mean()
        self.optimizer.zero_grad()
        (-gained - ENTROPY * entropy).backward()
        torch.nn.utils.clip_grad_norm_(self._weights.values(), 1.0)
        self.optimizer.step()
        return {name: weight.detach().clone() for name, weight in self._weights.items()}


async def learn(home: Path, games: int, *, seed: int = 0, sign: float = 1.0, shape: dict[str, int] = SHAPE) -> History:
    """Play and learn. For each version: the mean reward of the rollouts it learned from, their mean and largest lag."""
    optimum, words = await asyncio.to_thread(best, home, seed)
    kept = home / "trainer.pt"
    state: Any = torch.load(kept) if kept.exists() else {"history": History(), "used": set[str]()}
    history, used, version = state["history"], state["used"], len(state["history"])
    file = home / f"{version}.safetensors" if version else None
    learner = Learner(load_file(file) if file else make_model(home / "model", words, seed, shape), shape, sign)
    learner.optimizer.load_state_dict(state.get("optimizer", learner.optimizer.state_dict()))
    nano = {"model": str(home / "model"), "num_threads": 1, "max_num_seqs_upper_bound": 64, "kv_cache_gib": 0.05}
    player = {"backend": "nano", "nano_config": nano, "record_tokens": True, "constrained_decoding": "none"}
    policy = Policy("learner", max_lag=MAX_LAG, batch=BATCH, version=version, weights=file)
    ready, groups = list[Rollout](), defaultdict[Any, list[Rollout]](list)
    async with stream(experiment(player, games, seed), policy=policy, out=home / "run", progress=False) as run:
        async for game in run:
            groups[game.ended.group] += [] if game.task_id in used else mac_runner.rollouts(game)
            if len(groups[game.ended.group]) == 2 * GROUP:
                ready += groups.pop(game.ended.group)
            if len(ready) < 2 * BATCH:
                continue
            lags = [version - r.policy_version[0] for r in ready if r.policy_version is not None]
            reward = fmean(r.reward or 0.0 for r in ready) / optimum
            history.append({"version": version, "reward": reward, "lag": fmean(lags), "max_lag": max(lags)})
            print(*(f"{name} {value:.4g}" for name, value in history[-1].items()), flush=True)
            used |= {r.conversation for r in ready}
            weights, ready = await asyncio.to_thread(learner.step, ready), []
            # The order counts: a version whose files are not whole has not been made, and its games are not used.
            save_file(weights, file := home / f"{version + 1}.safetensors")
            torch.save({**state, "optimizer": learner.optimizer.state_dict()}, new := kept.with_suffix(".new"))
            new.replace(kept)
            version = await run.update_weights(file, version + 1, blocking=False)
    return history


def plot(history: Sequence[Mapping[str, float]], path: Path) -> None:
    """Draw reward and lag over versions."""
    import altair

    line = altair.Chart(altair.Data(values=[*history]), width=480, height=160).mark_line().encode(x="version:Q")
    altair.vconcat(line.encode(y=altair.Y("reward:Q", title="share of the best")), line.encode(y="lag:Q")).save(path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--home", type=Path, default=Path("runs/grpo"), help="where the model, run and plot go")
    parser.add_argument("--conversations", type=int, default=7_680)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    plot(asyncio.run(learn(asked.home, asked.conversations, seed=asked.seed)), asked.home / "learning.svg")
