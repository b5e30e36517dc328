"""Exported files read by the trainers' own classes, and learned from for one step (`.ci/trainers`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import datasets
import pytest
from openai.types.chat import ChatCompletionMessageParam
from pydantic import TypeAdapter
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer, SFTConfig, SFTTrainer
from verifiers.v1.configs.agent import WireAgentConfig
from verifiers.v1.state import State
from verifiers.v1.task import WireTaskData
from verifiers.v1.trace import Trace
from verifiers.v1.utils.trace_store import read_episodes
from verl.utils.dataset.multiturn_sft_dataset import MultiTurnSFTDataset

import mac_runner
from mac_runner import RunView
from tests.cli.lab import experiment, scripted
from tests.trainers.learner import learning, play

_TEMPLATE: Final = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture(autouse=True)
def no_leaks() -> None:
    """In place of the check for all tests: torch and the trainers leave threads and files behind."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunView:
    return play(tmp_path_factory.mktemp("run"), learning(conversations=1))


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer of bytes."""
    roles = [f"<|{role}|>" for role in ("system", "user", "assistant", "end", "pad")]
    found = Tokenizer(models.BPE())
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    found.train_from_iterator(
        ["the town"], trainers.BpeTrainer(vocab_size=300, special_tokens=roles, initial_alphabet=alphabet)
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=found, eos_token="<|end|>", pad_token="<|pad|>", chat_template=_TEMPLATE
    )


@pytest.fixture
def model(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> Qwen2ForCausalLM:
    """A model of no size. It comes from a directory, from which a trainer reads its reference."""
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        max_position_embeddings=65_536,
    )
    Qwen2ForCausalLM(config).save_pretrained(tmp_path / "model")
    found: Qwen2ForCausalLM = Qwen2ForCausalLM.from_pretrained(tmp_path / "model")
    return found


def loaded(run: RunView, to: Path, name: str, **more: Any) -> datasets.Dataset:
    """The dataset of a format, as its users load it."""
    (made,) = mac_runner.export(run, to, format=name, **more)
    found = datasets.load_dataset("parquet", data_files=str(made.path), split="train", cache_dir=str(to / "cache"))
    assert len(found) == made.rows
    return found


def arguments(to: Path) -> dict[str, Any]:
    return {
        "output_dir": str(to),
        "max_steps": 1,
        "per_device_train_batch_size": 2,
        "report_to": [],
        "use_cpu": True,
        "bf16": False,
        "save_strategy": "no",
        "disable_tqdm": True,
    }


def replies(run: RunView) -> list[str]:
    """The usable replies of a run."""
    return [row["text"] for row in run.turns().to_pylist() if row["receipt"] in ("act", "observation")]


def test_trl_learns_from_the_replies_alone(
    run: RunView, tmp_path: Path, tokenizer: PreTrainedTokenizerFast, model: Qwen2ForCausalLM
) -> None:
    dataset = loaded(run, tmp_path, "trl-sft")
    config = SFTConfig(**arguments(tmp_path), max_length=None)
    trainer = SFTTrainer(model=model, args=config, train_dataset=dataset, processing_class=tokenizer)

    said = []
    for row in trainer.train_dataset:
        ids = [one for one, is_learned in zip(row["input_ids"], learned(row), strict=True) if is_learned]
        said.append(tokenizer.decode(ids).removesuffix("<|end|>"))
    assert said == replies(run)
    assert trainer.train().training_loss > 0


def learned(row: dict[str, Any]) -> list[bool]:
    """Which tokens of a row are learned."""
    return [label != -100 for label in row["labels"]] if "labels" in row else list(map(bool, row["completion_mask"]))


def test_trl_tells_liked_replies_from_others(
    run: RunView, tmp_path: Path, tokenizer: PreTrainedTokenizerFast, model: Qwen2ForCausalLM
) -> None:
    dataset = loaded(run, tmp_path, "trl-kto", only=["learner"])
    assert {*dataset["label"]} == {True, False}
    config = KTOConfig(**arguments(tmp_path), max_length=None)
    trainer = KTOTrainer(model=model, args=config, train_dataset=dataset, processing_class=tokenizer)

    assert [row["label"] for row in trainer.train_dataset] == list(dataset["label"])
    assert trainer.train().training_loss > 0


def test_trl_prefers_the_better_reply(
    tmp_path: Path, tokenizer: PreTrainedTokenizerFast, model: Qwen2ForCausalLM
) -> None:
    parent = play(tmp_path, experiment(conversations=1, models={"m": scripted("random")}))
    keys = [turn.key for turn in parent.conversation(0).turns if turn.round > 2][:6]
    found = []
    for place, key in enumerate(keys):
        forked = mac_runner.fork(
            tmp_path / "small", 0, turn=key, draws=8, out=tmp_path / f"fork{place}", progress=False
        )
        dataset = loaded(forked, tmp_path / f"out{place}", "trl-dpo")
        if len(dataset):
            found.append(dataset)
    dataset = datasets.concatenate_datasets(found)
    config = DPOConfig(**arguments(tmp_path), max_length=None)
    trainer = DPOTrainer(model=model, args=config, train_dataset=dataset, processing_class=tokenizer)

    assert all(one > other for one, other in zip(dataset["chosen_value"], dataset["rejected_value"], strict=True))
    assert len(trainer.train_dataset) == len(dataset)
    assert trainer.train().training_loss > 0


def test_verl_learns_from_the_replies_alone(run: RunView, tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    (made,) = mac_runner.export(run, tmp_path, format="verl-sft")
    files = sorted(map(str, made.path.parent.glob(made.path.name)))
    rows = MultiTurnSFTDataset(files, tokenizer, {"pad_mode": "no_padding", "max_length": 65_536})

    said = [
        tokenizer.decode(row["input_ids"][row["loss_mask"].bool()]) for row in map(rows.__getitem__, range(len(rows)))
    ]
    prompts = {row["turn"]: json.loads(row["messages"]) for row in run.table("prompts").to_pylist()}
    whole = {turn for turn, prompt in prompts.items() if all(each["role"] != "assistant" for each in prompt)}
    usable = [row for row in run.turns().to_pylist() if row["receipt"] in ("act", "observation")]
    assert len(rows) == made.rows
    assert [text.removesuffix("<|end|>") for text in said] == [row["text"] for row in usable if row["turn"] in whole]


def test_verifiers_has_a_branch_for_each_turn_with_its_tokens(run: RunView, tmp_path: Path) -> None:
    (made,) = mac_runner.export(run, tmp_path, format="verifiers", only=["learner"])
    lines = [path.read_bytes() for path in sorted(made.path.parent.glob(made.path.name))]
    (tmp_path / "traces.jsonl").write_bytes(b"".join(lines))
    (episode,) = read_episodes(tmp_path, Trace[WireTaskData, State, WireAgentConfig])
    found = {rollout.turn: rollout for rollout in mac_runner.rollouts(run.conversation(0), only=["learner"])}

    assert episode.ok
    assert episode.num_turns == len(found)
    assert episode.run is not None
    assert episode.run.work.policy.start == 0
    branches = 0
    for trace in episode.traces:
        own = [rollout for rollout in found.values() if rollout.agent == trace.agent.name]
        assert trace.agent.trainable == any(rollout.trainable for rollout in own)
        assert trace.reward == own[0].reward
        assert {name: reward.score for name, reward in trace.rewards.items() if name != "reward"} == own[0].rewards
        for branch, rollout in zip(trace.branches, own, strict=True):
            assert branch.token_ids == [*rollout.prompt_ids, *rollout.completion_ids]
            assert sum(branch.sampled_mask) == (len(rollout.completion_ids) if rollout.trainable else 0)
            assert sum(branch.logprobs) == pytest.approx(sum(rollout.logprobs) if rollout.trainable else 0)
            branches += 1
    assert branches == len(found)


def test_chat_messages_are_those_of_the_service(run: RunView, tmp_path: Path) -> None:
    (made,) = mac_runner.export(run, tmp_path, format="openai-chat")
    messages = TypeAdapter(list[ChatCompletionMessageParam])
    lines = [json.loads(line) for line in next(made.path.parent.glob(made.path.name)).read_text().splitlines()]

    assert len(lines) == made.rows
    said = [messages.validate_python(line["messages"])[-1]["content"] for line in lines]
    assert said == replies(run)
