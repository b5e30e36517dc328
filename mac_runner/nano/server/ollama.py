"""Ollama's interface: chat, generate, and what its clients ask about the server and its model.

Options about loading a model are accepted without effect. Options that would change an answer and are not known to the
engine are refused. Prompts are never shortened, whatever `truncate` and `shift` say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from enum import Enum, auto
from typing import Annotated, ClassVar, Literal, NamedTuple

from fastapi import Request, Response
from pydantic import Field, JsonValue

from mac_runner.nano.config import SamplingParams, recommended_sampling
from mac_runner.nano.sequence import TokenLogprob, TrainingSample, num_doubtful
from mac_runner.nano.server.http import (
    MESSAGES_MAX,
    TOP_LOGPROBS_MAX,
    Body,
    JsonObject,
    Many,
    RefusedError,
    answer,
    encoded,
    invalid,
    ollama_error,
    require_absent,
)
from mac_runner.nano.server.openai import Spell, token_rows
from mac_runner.nano.server.service import (
    ANY_OBJECT,
    Chat,
    Course,
    Job,
    ModelCard,
    Piece,
    SamplingBody,
    Service,
    answered,
    message_of,
    schema_text,
)

OLLAMA_DEFAULTS = SamplingParams(temperature=0.8, top_k=40, top_p=0.9)
"""Ollama's defaults, for settings that neither the request nor the model gives."""
_NEUTRAL = {"mirostat": 0, "tfs_z": 1, "typical_p": 1, "penalize_newline": True, "repeat_last_n": -1}
"""Options of samplers that nano lacks, with the values that turn them off; penalties see the whole text."""
SPOKEN_VERSION = "0.30.0"
"""The release of Ollama whose interface this is."""
NEVER = "2100-01-01T00:00:00Z"
OPEN = "<think>"
CLOSE = "</think>"
_NS_PER_S = 1_000_000_000
_TAG_TOKENS_MAX = 16
"""The last tokens of a prompt that hold its last word, even if each is a single byte."""


class Options(SamplingBody):
    """`options` of a request."""

    repetition_penalty: Annotated[float | None, Field(gt=0, alias="repeat_penalty")] = None
    num_predict: Annotated[int | None, Field(ge=-2)] = None
    num_ctx: Annotated[int | None, Field(ge=1)] = None
    # Refused unless they are turned off.
    mirostat: float | None = None
    mirostat_eta: float | None = None
    mirostat_tau: float | None = None
    tfs_z: float | None = None
    typical_p: float | None = None
    penalize_newline: bool | None = None
    repeat_last_n: int | None = None
    # About the memory and the machine.
    embedding_only: bool | None = None
    f16_kv: bool | None = None
    logits_all: bool | None = None
    low_vram: bool | None = None
    main_gpu: int | None = None
    num_batch: int | None = None
    num_gpu: int | None = None
    num_keep: int | None = None
    num_thread: int | None = None
    numa: bool | None = None
    use_mlock: bool | None = None
    use_mmap: bool | None = None
    vocab_only: bool | None = None

    def params(self, defaults: SamplingParams) -> SamplingParams:
        for name, neutral in _NEUTRAL.items():
            if getattr(self, name) not in (None, neutral):
                raise invalid(f"options.{name} is not supported by this server: leave it out", f"options.{name}")
        return super().params(defaults)


class OllamaFunction(Body):
    """A function that a model has called."""

    name: str
    arguments: dict[str, JsonValue]
    index: int | None = None


class OllamaToolCall(Body):
    """A call in an earlier answer, made by another server: this one offers no tools."""

    id: str | None = None
    function: OllamaFunction


class OllamaMessage(Body):
    """A message of a chat."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = ""
    thinking: str | None = None
    tool_calls: Many[OllamaToolCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None
    # Refused unless they ask for nothing.
    images: Many[JsonValue] | None = None

    def plain(self) -> JsonObject:
        require_absent(self, "images")
        calls = [{"type": "function", **call.model_dump(exclude_none=True)} for call in self.tool_calls or ()]
        return message_of(
            self.role, self.content or "", name=self.tool_name, tool_calls=calls, tool_call_id=self.tool_call_id
        )


class OllamaBody(Body):
    """The fields of both ways to generate."""

    model: str
    stream: bool | None = None
    format: str | dict[str, JsonValue] | None = None
    options: Options | None = None
    keep_alive: str | float | None = None
    think: bool | Literal["low", "medium", "high"] | None = None
    truncate: bool | None = None
    shift: bool | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int | None, Field(ge=0, le=TOP_LOGPROBS_MAX)] = None

    unsupported: ClassVar[tuple[str, ...]] = ()

    def job(self, defaults: SamplingParams, *, has_template: bool, can_think: bool) -> Job | None:
        """The job for the engine; None where there is nothing to generate, and the request only loads the model.

        A model that can think does, unless `think` is false, a `format` is given, or no template asks for thoughts.
        """
        require_absent(self, *self.unsupported)
        if self.think and not can_think:
            # Ollama's own words.
            raise invalid(f'"{self.model}" does not support thinking', "think")
        if self.think and self.format:
            raise invalid("think cannot be had together with format on this server: a form leaves no thoughts", "think")
        prompt = self.prompt_for(has_template=has_template)
        if not prompt:
            return None
        is_chat = not isinstance(prompt, str)
        thinks = is_chat and can_think and self.think is not False and not self.format
        variables = {"enable_thinking": thinks} if is_chat and can_think else {}
        options = self.options or Options()
        params = replace(
            options.params(defaults),
            json_schema=self._schema(),
            top_logprobs=(self.top_logprobs or 0) if self.logprobs else 0,
        )
        limit = options.num_predict
        if limit == 0:
            raise invalid("options.num_predict: is at least 1, or -1 for as long as there is room", "options")
        return Job(
            prompts=(prompt if isinstance(prompt, str) else Chat(messages=prompt, variables=variables),),
            params=params,
            limit=None if limit is None or limit < 0 else limit,
            context_tokens=options.num_ctx,
            thinks=thinks,
        )

    def prompt_for(self, *, has_template: bool) -> str | tuple[JsonObject, ...]:
        """The messages for the chat template, or else a text; empty where there is nothing to generate."""
        raise NotImplementedError

    def _schema(self) -> str | None:
        if not self.format:
            return None
        if isinstance(self.format, dict):
            return schema_text(self.format)
        if self.format != "json":
            raise invalid("format is 'json' or a JSON schema", "format")
        return ANY_OBJECT


class ChatRequest(OllamaBody):
    """`POST /api/chat`."""

    messages: Annotated[Many[OllamaMessage], Field(max_length=MESSAGES_MAX)] = ()
    # Refused unless they ask for nothing.
    tools: Many[JsonValue] | None = None

    unsupported: ClassVar[tuple[str, ...]] = ("tools",)

    def prompt_for(self, *, has_template: bool) -> tuple[JsonObject, ...]:
        del has_template  # A chat needs one, and the tokenizer reports its absence.
        return tuple(message.plain() for message in self.messages)


class GenerateRequest(OllamaBody):
    """`POST /api/generate`."""

    prompt: str = ""
    system: str | None = None
    raw: bool | None = None
    # Refused unless they ask for nothing.
    suffix: str | None = None
    template: str | None = None
    context: Many[int] | None = None
    images: Many[JsonValue] | None = None

    unsupported: ClassVar[tuple[str, ...]] = ("suffix", "template", "context", "images")

    def prompt_for(self, *, has_template: bool) -> str | tuple[JsonObject, ...]:
        """A user's message, unless it is `raw` or the model has no chat template."""
        if not self.prompt:
            return ""
        if self.raw and self.think:
            raise invalid(
                "think cannot be had together with raw: it is the chat template that asks for thoughts", "think"
            )
        if self.raw or not has_template:
            return f"{self.system}\n\n{self.prompt}" if self.system else self.prompt
        system: tuple[JsonObject, ...] = ({"role": "system", "content": self.system},) if self.system else ()
        return (*system, {"role": "user", "content": self.prompt})


class ShowRequest(Body):
    """`POST /api/show`."""

    model: str | None = None
    name: str | None = None
    verbose: bool | None = None


class Said(NamedTuple):
    """What a piece of text adds to the thought and to the answer."""

    thinking: str = ""
    content: str = ""

    def then(self, more: Said) -> Said:
        return Said(self.thinking + more.thinking, self.content + more.content)


class Stage(Enum):
    """Where a completion is."""

    BEFORE = auto()  # If it begins with the tag, a thought comes first.
    THOUGHT = auto()
    ANSWER = auto()


class ThoughtParser:
    """Splits the text of one completion into `<think>` thought `</think>` answer, which comes in pieces of any size.

    What could still become a tag is held back. White space beside a tag is dropped; what is held back of it is looked
    at once, however many pieces it comes in. A text that begins in `Stage.ANSWER` is passed on as it is.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._blank: list[str] = []
        self._held = ""
        self._is_after_tag = stage is Stage.THOUGHT

    def push(self, text: str) -> Said:
        """What the next piece adds."""
        self._held += text
        if self._stage is Stage.BEFORE:
            self._look_for_thought()
        thinking = self._thought() if self._stage is Stage.THOUGHT else ""
        return Said(thinking, self._answer() if self._stage is Stage.ANSWER else "")

    def finish(self) -> Said:
        """The text that was held back, at the end."""
        text, self._blank, self._held = "".join((*self._blank, self._held)), [], ""
        return Said(thinking=text) if self._stage is Stage.THOUGHT else Said(content=text)

    def _look_for_thought(self) -> None:
        start = self._held.lstrip()
        self._blank.append(self._held[: len(self._held) - len(start)])
        self._held = start
        if start.startswith(OPEN):
            self._enter(Stage.THOUGHT, start.removeprefix(OPEN))
        elif not OPEN.startswith(start):
            self._stage = Stage.ANSWER

    def _thought(self) -> str:
        thought, tag, rest = self._held.partition(CLOSE)
        if tag:
            said = self._shown(thought.rstrip())
            self._enter(Stage.ANSWER, rest)
            return said
        sure = thought[: len(thought) - num_doubtful(thought, (CLOSE,))]
        said = sure.rstrip()
        self._held = thought[len(sure) :]
        text = self._shown(said)
        self._blank.append(sure[len(said) :])
        return text

    def _answer(self) -> str:
        text, self._held = self._held, ""
        return self._shown(text)

    def _enter(self, stage: Stage, rest: str) -> None:
        self._stage, self._blank, self._held, self._is_after_tag = stage, [], rest, True

    def _shown(self, text: str) -> str:
        """A text with the white space held back before it; nothing until there is a text."""
        if self._is_after_tag:
            text = text.lstrip()
        if not text:
            return ""
        if self._is_after_tag:
            self._is_after_tag, self._blank = False, []
        text, self._blank = "".join((*self._blank, text)), []
        return text


@dataclass(slots=True, kw_only=True)
class OllamaWriter:
    """The objects of one answer. `spell` writes a token where log-probabilities are asked for."""

    model: str
    created_unix_s: float
    is_chat: bool
    spell: Spell | None
    parser: ThoughtParser = field(default_factory=lambda: ThoughtParser(Stage.ANSWER))
    media_type: str = "application/x-ndjson"

    @property
    def is_long(self) -> bool:
        return self.spell is not None

    def piece(self, piece: Piece) -> bytes:
        return _line(self.chunk(piece))

    def chunk(self, piece: Piece) -> JsonObject:
        delta = piece.delta
        said = self.parser.push(delta.text)
        if delta.sample is not None:
            said = said.then(self.parser.finish())
        return self.head(said) | {"done": False} | self._logprobs(delta.token_ids, delta.logprobs, delta.top_logprobs)

    def end(self, samples: Sequence[TrainingSample], course: Course) -> bytes:
        return _line(self.head(Said()) | _end(samples[0], course))

    def error(self, refusal: RefusedError) -> bytes:
        return _line(ollama_error(refusal))

    def whole(self, samples: Sequence[TrainingSample], course: Course) -> JsonObject:
        (sample,) = samples
        said = self.parser.push(sample.text or "").then(self.parser.finish())
        logprobs = self._logprobs(sample.completion_tokens, sample.logprobs, sample.top_logprobs or ())
        return self.head(said) | _end(sample, course) | logprobs

    def head(self, said: Said) -> JsonObject:
        head: JsonObject = {"model": self.model, "created_at": timestamp(self.created_unix_s)}
        thought = {"thinking": said.thinking} if said.thinking else {}
        if self.is_chat:
            return head | {"message": {"role": "assistant", "content": said.content, **thought}}
        return head | {"response": said.content, **thought}

    def _logprobs(
        self, ids: Sequence[int], logprobs: Sequence[float], tops: Sequence[Sequence[TokenLogprob]]
    ) -> JsonObject:
        return {} if self.spell is None else {"logprobs": token_rows(ids, logprobs, tops, self.spell)}


def _line(content: object) -> bytes:
    return encoded(content) + b"\n"


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


def _ns(duration_s: float) -> int:
    return round(duration_s * _NS_PER_S)


def timestamp(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat().replace("+00:00", "Z")


def _family(card: ModelCard) -> str:
    return card.shape.architecture.removesuffix("ForCausalLM").lower()


def _details(card: ModelCard) -> JsonObject:
    family = _family(card)
    return {
        "parent_model": "",
        "format": "safetensors",
        "family": family,
        "families": [family],
        "parameter_size": _size(card.num_parameters),
        "quantization_level": card.shape.dtype,
    }


def _size(num_parameters: int) -> str:
    """A number of parameters, for people."""
    for unit, size in (("B", 1_000_000_000), ("M", 1_000_000)):
        if num_parameters >= size:
            return f"{num_parameters / size:.1f}{unit}"
    return f"{num_parameters / 1000:.0f}K"


class OllamaApi:
    """The handlers of Ollama's paths."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._card = service.card
        self._defaults = recommended_sampling(service.engine.engine.directory, OLLAMA_DEFAULTS)

    async def alive(self) -> Response:
        """What Ollama's command line asks before all else."""
        return Response("mac-serve is running", media_type="text/plain")

    async def version(self) -> Response:
        return answer({"version": SPOKEN_VERSION})

    async def tags(self) -> Response:
        return self._listed({"modified_at": timestamp(self._card.changed_unix_s)})

    async def running(self) -> Response:
        return self._listed({"expires_at": NEVER, "size_vram": 0, "context_length": self._service.context_tokens})

    def _listed(self, more: JsonObject) -> Response:
        card = self._card
        entry = {"name": card.name, "model": card.name, "size": card.size_bytes, "digest": card.digest}
        return answer({"models": [{**entry, "details": _details(card), **more}]})

    async def show(self, _: Request, body: ShowRequest) -> Response:
        # Older clients call the model `name`.
        self._service.require_model(body.model or body.name or "")
        card, family = self._card, _family(self._card)
        names = ("temperature", "top_k", "top_p", "min_p")
        shape = {
            f"{family}.{name}": value for name, value in asdict(card.shape).items() if isinstance(value, int | float)
        }
        return answer(
            {
                "modelfile": "",
                "parameters": "\n".join(f"{name} {getattr(self._defaults, name)}" for name in names),
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
        )

    async def complete(self, request: Request, body: OllamaBody) -> Response:
        service = self._service
        service.require_model(body.model)
        writer = OllamaWriter(
            model=body.model,
            created_unix_s=service.times.unix_s(),
            is_chat=isinstance(body, ChatRequest),
            spell=service.spell if body.logprobs else None,
        )
        job = body.job(self._defaults, has_template=bool(self._card.template), can_think=self._card.can_think)
        if job is None:
            return answer(writer.head(Said()) | {"done": True, "done_reason": "load"})
        # In pieces even where the answer is whole: the first one says when the prompt was computed.
        generation = await service.begin(job, request, stream=True)
        if job.thinks:
            # Some templates open the thought at the end of the prompt.
            end = service.text(generation.prompts[0][-_TAG_TOKENS_MAX:])
            writer.parser = ThoughtParser(Stage.THOUGHT if end.rstrip().endswith(OPEN) else Stage.BEFORE)
        return await answered(generation, writer, request, is_streamed=body.stream is not False)
