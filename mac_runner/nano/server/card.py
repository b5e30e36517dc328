"""What the server tells of its model: the answers to lists and inquiries are made of it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from math import prod
from pathlib import Path

from mac_runner.nano.architecture import ModelConfig
from mac_runner.nano.engine import InferenceEngine
from mac_runner.nano.weights import expected_shapes

_SHORT = (("B", 1_000_000_000), ("M", 1_000_000))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """A served model. `digest` tells two directories apart; it is made of their files' names, sizes and times."""

    name: str
    architecture: str
    num_parameters: int
    dtype: str
    context_tokens: int
    size_bytes: int
    changed_unix_s: float
    digest: str
    template: str
    shape: ModelConfig

    @property
    def can_think(self) -> bool:
        """Whether the chat template has a switch for thinking, as Qwen3's has."""
        return "enable_thinking" in self.template

    @property
    def parameter_size(self) -> str:
        """How many parameters, as people say it."""
        for unit, size in _SHORT:
            if self.num_parameters >= size:
                return f"{self.num_parameters / size:.1f}{unit}"
        return f"{self.num_parameters / 1000:.0f}K"


def card_of(engine: InferenceEngine, name: str | None) -> ModelCard:
    """The card of a loaded model, under the name of its directory or on the hub unless another is given."""
    files = sorted(path for path in engine.directory.iterdir() if path.is_file())
    stats = [(path.name, path.stat()) for path in files]
    weights = [stat.st_size for file, stat in stats if file.endswith(".safetensors")]
    marks = "\n".join(f"{file} {stat.st_size} {stat.st_mtime_ns}" for file, stat in stats)
    tokenizer = engine.tokenizer
    return ModelCard(
        name=name or _name_of(engine.config.model_path),
        architecture=engine.model_config.architecture,
        num_parameters=sum(prod(shape) for shape in expected_shapes(engine.model_config).values()),
        dtype=engine.model_config.dtype,
        context_tokens=engine.max_model_len,
        size_bytes=sum(weights),
        changed_unix_s=max((stat.st_mtime for _, stat in stats), default=0.0),
        digest=hashlib.sha256(marks.encode()).hexdigest(),
        template=(tokenizer.chat_template or "") if tokenizer is not None else "",
        shape=engine.model_config,
    )


def _name_of(model_path: str) -> str:
    directory = Path(model_path).expanduser()
    return directory.resolve().name if directory.is_dir() else model_path
