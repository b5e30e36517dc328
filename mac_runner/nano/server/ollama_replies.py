"""What became of a job → Ollama's objects. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from mac_runner.nano.outputs import Delta, TrainingSample
from mac_runner.nano.server.card import ModelCard
from mac_runner.nano.server.openai_replies import JsonObject, Spell, token_rows
from mac_runner.nano.server.refusals import Refusal
from mac_runner.nano.server.thoughts import Said

SPOKEN_VERSION = "0.30.0"
"""The release of Ollama whose interface is spoken here, as far as it goes."""
NEVER = "2100-01-01T00:00:00Z"
_NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """When things happened to a request, in seconds of one clock."""

    began_s: float
    first_token_s: float
    ended_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OllamaEnvelope:
    """What all objects of one answer begin with. `spell` writes a token, where log-probabilities are asked for."""

    model: str
    created_unix_s: float
    is_chat: bool
    spell: Spell | None

    def piece(self, delta: Delta, said: Said) -> JsonObject:
        """A piece of a stream, and what was said in it."""
        rows = delta.token_ids, delta.logprobs, delta.top_logprobs
        return self._head(said) | {"done": False} | self._logprobs(*rows)

    def last_piece(self, sample: TrainingSample, course: Course) -> JsonObject:
        """The end of a stream."""
        return self._head(Said()) | _end(sample, course)

    def whole(self, sample: TrainingSample, said: Said, course: Course) -> JsonObject:
        """The answer in one piece."""
        rows = sample.completion_tokens, sample.logprobs, sample.top_logprobs or ()
        return self._head(said) | _end(sample, course) | self._logprobs(*rows)

    def loaded(self) -> JsonObject:
        """The answer to a request that only has the model loaded, which it always is."""
        return self._head(Said()) | {"done": True, "done_reason": "load"}

    def _head(self, said: Said) -> JsonObject:
        head: JsonObject = {"model": self.model, "created_at": timestamp(self.created_unix_s)}
        thought = {"thinking": said.thinking} if said.thinking else {}
        if self.is_chat:
            return head | {"message": {"role": "assistant", "content": said.content, **thought}}
        return head | {"response": said.content, **thought}

    def _logprobs(self, ids: Sequence[int], logprobs: Sequence[float], tops: Sequence[Sequence[object]]) -> JsonObject:
        if self.spell is None:
            return {}
        rows = list(zip(ids, logprobs, tops or [()] * len(ids), strict=True))
        return {"logprobs": token_rows(rows, self.spell)}  # type: ignore[arg-type]


def error_body(refusal: Refusal) -> JsonObject:
    """An error as Ollama's clients read it."""
    return {"error": refusal.message}


def listed(card: ModelCard) -> JsonObject:
    """The list of the one model."""
    return {"models": [_entry(card) | {"modified_at": timestamp(card.changed_unix_s)}]}


def running(card: ModelCard, context_tokens: int) -> JsonObject:
    """The list of loaded models: this one, for as long as the server runs."""
    loaded = {"expires_at": NEVER, "size_vram": 0, "context_length": context_tokens}
    return {"models": [_entry(card) | loaded]}


def shown(card: ModelCard, defaults: JsonObject) -> JsonObject:
    """All there is to know of the model."""
    family = card.shape.architecture.removesuffix("ForCausalLM").lower()
    shape = {f"{family}.{name}": value for name, value in asdict(card.shape).items() if isinstance(value, int | float)}
    return {
        "modelfile": "",
        "parameters": "\n".join(f"{name} {value}" for name, value in defaults.items()),
        "template": card.template,
        "details": _details(card),
        "model_info": {
            "general.architecture": family,
            "general.parameter_count": card.num_parameters,
            f"{family}.context_length": card.context_tokens,
            **shape,
        },
        "capabilities": ["completion", "thinking"] if card.can_think else ["completion"],
        "modified_at": timestamp(card.changed_unix_s),
    }


def timestamp(unix_s: float) -> str:
    """A moment as RFC 3339 writes it."""
    return datetime.fromtimestamp(unix_s, UTC).isoformat().replace("+00:00", "Z")


def _end(sample: TrainingSample, course: Course) -> JsonObject:
    return {
        "done": True,
        "done_reason": sample.finish_reason,
        "total_duration": _ns(course.ended_s - course.began_s),
        "load_duration": 0,
        "prompt_eval_count": len(sample.prompt_tokens),
        "prompt_eval_duration": _ns(course.first_token_s - course.began_s),
        "eval_count": len(sample.completion_tokens),
        "eval_duration": _ns(course.ended_s - course.first_token_s),
    }


def _entry(card: ModelCard) -> JsonObject:
    return {
        "name": card.name,
        "model": card.name,
        "size": card.size_bytes,
        "digest": card.digest,
        "details": _details(card),
    }


def _details(card: ModelCard) -> JsonObject:
    family = card.architecture.removesuffix("ForCausalLM").lower()
    return {
        "parent_model": "",
        "format": "safetensors",
        "family": family,
        "families": [family],
        "parameter_size": card.parameter_size,
        "quantization_level": card.dtype,
    }


def _ns(duration_s: float) -> int:
    return round(duration_s * _NS_PER_S)
