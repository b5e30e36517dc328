"""What can be wrong with a model's files: each an error of its own, which names what it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from mac_runner.nano import EngineConfig, InferenceEngine, SamplingParams, errors
from mac_runner.nano.testing import EMBEDDINGS, HEAD
from tests.nano.crowds import alone
from tests.nano.tiny_models import make_model, random_state_dict

NORM = "model.norm.weight"
Change = Callable[[Path], object]


def weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Change:
    def apply(directory: Path) -> None:
        tensors = load_file(directory / "model.safetensors")
        change(tensors)
        save_file(tensors, directory / "model.safetensors")

    return apply


def settings(**changes: object) -> Change:
    def apply(directory: Path) -> None:
        file = directory / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))

    return apply


def int_weights(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.int() for name, tensor in tensors.items()}


BROKEN: tuple[tuple[Change, type[errors.ModelError], str], ...] = (
    (lambda path: (path / "config.json").unlink(), errors.ModelNotFoundError, "config.json"),
    (lambda path: (path / "model.safetensors").unlink(), errors.ModelNotFoundError, "model.safetensors"),
    (lambda path: (path / "config.json").write_text("{"), errors.ModelError, "config.json"),
    (lambda path: (path / "config.json").write_text("[]"), errors.ModelError, "config.json"),
    (lambda path: (path / "model.safetensors").write_bytes(b"rubbish"), errors.ModelError, "model.safetensors"),
    (lambda path: (path / "config.json").write_bytes(b"\xff"), errors.ModelError, "config.json"),
    (lambda path: (path / "tokenizer.json").write_text("{"), errors.ModelError, "tokenizer.json"),
    (lambda path: (path / "tokenizer.json").write_bytes(b"\xff"), errors.ModelError, "tokenizer.json"),
    (lambda path: (path / "tokenizer_config.json").write_text("no"), errors.ModelError, "tokenizer_config.json"),
    (lambda path: (path / "chat_template.jinja").write_bytes(b"\xff"), errors.ModelError, "chat_template.jinja"),
    (settings(architectures=["GPT2LMHeadModel"]), errors.UnknownArchitectureError, "GPT2LMHeadModel"),
    (settings(architectures=None), errors.UnknownArchitectureError, "none named"),
    (settings(hidden_act="gelu"), errors.UnknownArchitectureError, "gelu"),
    (settings(rope_parameters={"rope_type": "longrope"}), errors.UnknownArchitectureError, "longrope"),
    (settings(num_hidden_layers=0), errors.ModelError, "num_hidden_layers"),
    (settings(num_key_value_heads=3), errors.ModelError, "3 KV heads"),
    (settings(hidden_size="wide"), errors.ModelError, "hidden_size"),
    (weights(lambda tensors: tensors.pop("model.norm.weight")), errors.MissingTensorError, "model.norm.weight"),
    (settings(num_hidden_layers=4), errors.MissingTensorError, "model.layers.3"),
    (settings(head_dim=15), errors.ModelError, "15 numbers"),
    (settings(rope_theta=0), errors.ModelError, "rope_theta"),
    (settings(rope_theta=float("inf")), errors.ModelError, "rope_theta"),
    (settings(rope_parameters={"rope_theta": -1.0}), errors.ModelError, "rope_theta"),
    (settings(rope_parameters={"rope_type": "linear", "factor": 0.0}), errors.ModelError, "factor"),
    (settings(rope_parameters={"rope_type": "yarn", "rope_theta": 1}), errors.ModelError, "rope_theta"),
    (settings(rope_parameters={"rope_type": "llama3", "low_freq_factor": 4.0}), errors.ModelError, "low_freq_factor"),
    (weights(lambda tensors: tensors.update(int_weights(tensors))), errors.WrongDtypeError, "torch.int32"),
    (weights(lambda tensors: tensors.update({HEAD: torch.ones(3, 3)})), errors.UnexpectedTensorError, HEAD),
    (weights(lambda tensors: tensors.update({HEAD: tensors[EMBEDDINGS] + 1})), errors.UnexpectedTensorError, HEAD),
    (
        settings(vocab_size=300),
        errors.WrongShapeError,
        r"embed_tokens.weight has shape \[272, 64\], expected \[300, 64\]",
    ),
    (settings(num_hidden_layers=2), errors.UnexpectedTensorError, "model.layers.2"),
)


def test_broken_model_is_named(tmp_path: Path) -> None:
    for index, (change, error, named) in enumerate(BROKEN):
        (directory := tmp_path / str(index)).mkdir()
        change(make_model(directory, "qwen2"))
        with pytest.raises(error, match=named) as raised:
            InferenceEngine(EngineConfig(model_path=str(directory)))
        assert type(raised.value) is error, named


def test_state_dict_without_numbers_is_refused_and_the_weights_stay(tmp_path: Path) -> None:
    directory, params = make_model(tmp_path, "qwen2"), SamplingParams(temperature=0.0, max_tokens=4)
    with alone(directory) as engine:
        before = engine.generate([[1, 2]], params)[0].completion_tokens
        whole = random_state_dict(directory, seed=1)
        for wrong in (None, whole[NORM].int(), whole[NORM].to("meta")):
            with pytest.raises(errors.ModelError, match=NORM) as raised:
                engine.update_weights({**whole, NORM: wrong})
            assert isinstance(raised.value, errors.WrongDtypeError) is (wrong is None or not wrong.is_meta)

        assert engine.generate([[1, 2]], params)[0].completion_tokens == before


def test_tied_model_may_name_its_output_layer(tmp_path: Path) -> None:
    directory = make_model(tmp_path, "qwen2")
    whole = random_state_dict(directory, seed=1)
    with alone(directory) as engine:
        for head in (whole[EMBEDDINGS], whole[EMBEDDINGS].clone()):
            engine.update_weights({**whole, HEAD: head}, blocking=True)

        assert engine.get_weight_version() == 2


def test_path_that_leads_nowhere_or_name_on_the_hub_that_cannot_be_had_is_named() -> None:
    for place in ("/no/such/model", "nobody/nothing"):
        with pytest.raises(errors.ModelNotFoundError, match=place):
            InferenceEngine(EngineConfig(model_path=place))


def test_weights_in_several_files_are_found_by_their_index(tmp_path: Path) -> None:
    make_model(tmp_path, "qwen2")
    tensors = load_file(tmp_path / "model.safetensors")
    names = sorted(tensors)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, held in parts.items():
        save_file({name: tensors[name] for name in held}, tmp_path / file)
    (tmp_path / "model.safetensors").unlink()
    index = {name: file for file, held in parts.items() for name in held}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))

    with alone(tmp_path) as engine:
        assert engine.model_config.num_layers == 3
    (tmp_path / "b.safetensors").unlink()
    with pytest.raises(errors.ModelNotFoundError, match=r"b\.safetensors"):
        InferenceEngine(EngineConfig(model_path=str(tmp_path)))


def test_model_without_a_tokenizer_is_served_with_token_ids(tmp_path: Path) -> None:
    make_model(tmp_path, "qwen2")
    (tmp_path / "tokenizer.json").unlink()

    with alone(tmp_path) as engine:
        assert engine.tokenizer is None


WRONG: tuple[dict[str, object], ...] = (
    {"block_size": 0},
    {"cache_type": "tree"},
    {"max_tokens_per_batch": 0},
    {"admission": "swap"},
    {"attention": "flash"},
    {"num_threads": 0},
    {"gpu_memory_utilization": 1.5},
    {"gpu_memory_utilization": "all"},
    {"dtype": "float64"},
    {"device": "tpu"},
    {"block_size": "16"},
    {"block_size": 16.0},
    {"max_model_len": 2.5},
    {"max_batch_size": True},
    {"max_waiting": None},
    {"num_threads": 1_000},
    {"num_blocks": 0},
    {"kv_cache_bytes": -5},
    {"tensor_parallel_size": 65},
    {"tensor_parallel_size": 0},
    {"tensor_parallel_gather": "pigeon"},
    {"data_parallel_size": 0},
    {"data_parallel_mode": "together"},
    {"divergence_check_every": 0},
    {"sync_every": 0},
    {"sync_every": 4, "data_parallel_size": 2},
    {"seed": "x"},
)


def test_setting_that_cannot_be_is_refused_by_name() -> None:
    for wrong in WRONG:
        with pytest.raises(errors.ConfigError, match=next(iter(wrong))):
            EngineConfig(model_path="x", **wrong)  # type: ignore[arg-type]


def test_context_is_the_shorter_of_the_models_and_what_is_asked_for(tmp_path: Path) -> None:
    directory = make_model(tmp_path, "qwen2", max_position_embeddings=10_000)
    for asked, found in ((None, 10_000), (64, 64), (1 << 24, 10_000)):
        with alone(directory, max_model_len=asked) as engine:
            assert engine.max_model_len == found


def test_step_that_is_full_of_running_requests_has_room_for_a_token_of_a_prompt() -> None:
    for size, most in ((99, 100), (100, 101), (300, 301)):
        config = EngineConfig(model_path="x", max_tokens_per_batch=100, max_batch_size=size)
        assert config.scheduling().max_tokens_per_batch == most


def test_memory_for_no_block_or_more_than_there_is_and_half_precision_on_a_cpu_are_refused(tmp_path: Path) -> None:
    directory = make_model(tmp_path, "qwen2")
    # Three layers of keys and values, two heads of 16 numbers of four bytes: in a block of 16 tokens.
    block_bytes = 3 * 2 * 2 * 16 * 4 * 16
    refused: tuple[tuple[dict[str, object], str], ...] = (
        ({"kv_cache_bytes": 100}, "block"),
        ({"num_blocks": 10**11}, f"{10**11 * block_bytes} bytes"),
        ({"num_blocks": 10**20}, f"{10**20 * block_bytes} bytes"),
        ({"dtype": "float16", "device": "cpu"}, "float16"),
    )
    for attention in ("auto", "torch"):
        for changes, told in refused:
            with pytest.raises(errors.ConfigError, match=told):
                InferenceEngine(EngineConfig(model_path=str(directory), attention=attention, **changes))  # type: ignore[arg-type]


def test_heads_that_the_kernels_do_not_read_are_refused_with_the_way_out(tmp_path: Path) -> None:
    directory = make_model(tmp_path, "llama", hidden_size=80, head_dim=20)
    with pytest.raises(errors.ConfigError, match=r"attention = 'torch'"), alone(directory, device="cpu"):
        pass
    with alone(directory, device="cpu", attention="torch") as engine:
        assert len(engine.generate([[1]], SamplingParams(max_tokens=3, ignore_eos=True))[0].completion_tokens) == 3
