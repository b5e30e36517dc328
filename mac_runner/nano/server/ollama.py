"""Ollama's interface: chat, generate, and what its clients ask about the server and its model.

Options about loading a model are accepted without effect. Options that would change an answer and are not known to the
engine are refused. Prompts are never shortened, whatever `truncate` and `shift` say.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Annotated, Literal

from fastapi import Request, Response
from pydantic import Field, JsonValue

from mac_runner.nano.sampling_params import SamplingParams, recommended_sampling
from mac_runner.nano.sequence import Delta, TrainingSample
from mac_runner.nano.server.answers import (
    NDJSON,
    JsonObject,
    Stream,
    answer,
    encoded,
    given_up,
    invalid,
    long_answer,
    ollama_error,
    unless_gone,
)
from mac_runner.nano.server.bodies import MESSAGES_MAX, TOP_LOGPROBS_MAX, Body, Many, read_request, require_absent
from mac_runner.nano.server.openai import Spell, token_rows
from mac_runner.nano.server.service import (
    ANY_OBJECT,
    Chat,
    Generation,
    Job,
    ModelCard,
    Piece,
    Service,
    overlaid,
    schema_text,
)
from mac_runner.nano.server.thoughts import OPEN, Said, Stage, ThoughtParser

OLLAMA_DEFAULTS = SamplingParams(temperature=0.8, top_k=40, top_p=0.9)
"""Ollama's defaults, for settings that neither the request nor the model gives."""
_NEUTRAL: dict[str, tuple[float | bool, ...]] = {
    "mirostat": (0,),
    "tfs_z": (1,),
    "typical_p": (1,),
    "penalize_newline": (True,),
    "repeat_last_n": (-1,),
}
"""Options of samplers that nano lacks, with the values that turn them off; penalties see the whole text."""
SPOKEN_VERSION = "0.30.0"
"""The release of Ollama whose interface this is."""
NEVER = "2100-01-01T00:00:00Z"
_NS_PER_S = 1_000_000_000
_TAG_TOKENS_MAX = 16
"""The last tokens of a prompt that hold its last word, even if each is a single byte."""


class Options(Body):
    """`options` of a request."""

    temperature: Annotated[float | None, Field(ge=0)] = None
    num_predict: Annotated[int | None, Field(ge=-2)] = None
    num_ctx: Annotated[int | None, Field(ge=1)] = None
    top_k: Annotated[int | None, Field(ge=0)] = None
    top_p: Annotated[float | None, Field(gt=0, le=1)] = None
    min_p: Annotated[float | None, Field(ge=0, le=1)] = None
    seed: int | None = None
    stop: str | Annotated[Many[str], Field(max_length=64)] | None = None
    repeat_penalty: Annotated[float | None, Field(gt=0)] = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
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
        """All settings but the length of a completion and its form."""
        for name, neutral in _NEUTRAL.items():
            if getattr(self, name) not in (None, *neutral):
                raise invalid(f"options.{name} is not supported by this server: leave it out", f"options.{name}")
        given = {
            "temperature": self.temperature,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "min_p": self.min_p,
            "seed": self.seed,
            "stop": (self.stop,) if isinstance(self.stop, str) else self.stop,
            "repetition_penalty": self.repeat_penalty,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
        }
        return overlaid(defaults, given)


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
        """The message for a template."""
        require_absent(self, "images")
        calls = [{"type": "function", **call.model_dump(exclude_none=True)} for call in self.tool_calls or ()]
        more = {"name": self.tool_name, "tool_calls": calls, "tool_call_id": self.tool_call_id}
        named = {name: value for name, value in more.items() if value}
        return {"role": self.role, "content": self.content or "", **named}


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

    @property
    def is_streamed(self) -> bool:
        """Whether the answer is a stream; Ollama's default."""
        return self.stream is not False

    def require_known(self, *names: str, can_think: bool) -> None:
        """Refuse what is not supported, `names` included, even where there is nothing to generate."""
        require_absent(self, *names)
        if self.think and not can_think:
            # Ollama's own words.
            raise invalid(f'"{self.model}" does not support thinking', "think")
        if self.think and self.format:
            raise invalid("think cannot be had together with format on this server: a form leaves no thoughts", "think")

    def chat(self, messages: tuple[JsonObject, ...], defaults: SamplingParams, *, can_think: bool) -> Job:
        """A job of a conversation. A model that can think does, unless `think` is false or a `format` is given."""
        if not can_think:
            return self.completion(Chat(messages=messages), defaults)
        thinks = self.think is not False and not self.format
        chat = Chat(messages=messages, variables={"enable_thinking": thinks})
        return replace(self.completion(chat, defaults), thinks=thinks)

    def completion(self, prompt: str | Chat, defaults: SamplingParams) -> Job:
        """A job of one prompt, with all options."""
        options = self.options or Options()
        params = replace(
            options.params(defaults),
            json_schema=self._schema(),
            top_logprobs=(self.top_logprobs or 0) if self.logprobs else 0,
        )
        limit = options.num_predict
        if limit == 0:
            raise invalid("options.num_predict: is at least 1, or -1 for as long as there is room", "options")
        is_open_ended = limit is None or limit < 0
        return Job(
            prompts=(prompt,),
            params=params if limit is None or limit < 0 else replace(params, max_tokens=limit),
            is_open_ended=is_open_ended,
            context_tokens=options.num_ctx,
        )

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

    def job(self, defaults: SamplingParams, *, has_template: bool, can_think: bool) -> Job | None:
        """The job for the engine; None for a chat without messages, which only loads the model."""
        del has_template  # A chat needs one, and the tokenizer reports its absence.
        self.require_known("tools", can_think=can_think)
        if not self.messages:
            return None
        return self.chat(tuple(message.plain() for message in self.messages), defaults, can_think=can_think)


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

    def job(self, defaults: SamplingParams, *, has_template: bool, can_think: bool) -> Job | None:
        """The job for the engine; None without a prompt, which only loads the model.

        The prompt is a user's message, unless it is `raw` or the model has no chat template.
        """
        self.require_known("suffix", "template", "context", "images", can_think=can_think)
        if not self.prompt:
            return None
        if self.raw and self.think:
            raise invalid(
                "think cannot be had together with raw: it is the chat template that asks for thoughts", "think"
            )
        if self.raw or not has_template:
            return self.completion(f"{self.system}\n\n{self.prompt}" if self.system else self.prompt, defaults)
        system: tuple[JsonObject, ...] = ({"role": "system", "content": self.system},) if self.system else ()
        return self.chat((*system, {"role": "user", "content": self.prompt}), defaults, can_think=can_think)


class ShowRequest(Body):
    """`POST /api/show`."""

    model: str | None = None
    name: str | None = None
    verbose: bool | None = None

    @property
    def asked_for(self) -> str:
        """The model; older clients call it `name`."""
        return self.model or self.name or ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """The times of a request, in seconds of one clock."""

    began_s: float
    first_token_s: float
    ended_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OllamaEnvelope:
    """The head of all objects of one answer. `spell` writes a token where log-probabilities are asked for."""

    model: str
    created_unix_s: float
    is_chat: bool
    spell: Spell | None

    def piece(self, delta: Delta, said: Said) -> JsonObject:
        """A piece of a stream."""
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
        """The answer to a request that only loads the model, which is always loaded."""
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


def listed(card: ModelCard) -> JsonObject:
    """The list of the one model."""
    return {"models": [_entry(card) | {"modified_at": timestamp(card.changed_unix_s)}]}


def running(card: ModelCard, context_tokens: int) -> JsonObject:
    """The list of loaded models: this one, while the server runs."""
    loaded = {"expires_at": NEVER, "size_vram": 0, "context_length": context_tokens}
    return {"models": [_entry(card) | loaded]}


def shown(card: ModelCard, defaults: JsonObject) -> JsonObject:
    """All about the model."""
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
    """A time as in RFC 3339."""
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


class OllamaApi:
    """The handlers of Ollama's paths."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._defaults = recommended_sampling(service.engine.engine.directory, OLLAMA_DEFAULTS)

    async def alive(self) -> Response:
        """What Ollama's command line asks before all else."""
        return Response("mac-serve is running", media_type="text/plain")

    async def version(self) -> Response:
        """The version of the interface."""
        return answer({"version": SPOKEN_VERSION})

    async def tags(self) -> Response:
        """All models."""
        return answer(listed(self._service.card))

    async def running(self) -> Response:
        """The loaded models."""
        return answer(running(self._service.card, self._service.context_tokens))

    async def show(self, request: Request) -> Response:
        """All about a model."""
        body = await read_request(ShowRequest, request, self._service.thread)
        self._service.require_model(body.asked_for)
        names = ("temperature", "top_k", "top_p", "min_p")
        return answer(shown(self._service.card, {name: getattr(self._defaults, name) for name in names}))

    async def chat(self, request: Request) -> Response:
        """Answer a conversation."""
        return await self._complete(request, await read_request(ChatRequest, request, self._service.thread))

    async def generate(self, request: Request) -> Response:
        """Complete a prompt."""
        return await self._complete(request, await read_request(GenerateRequest, request, self._service.thread))

    async def _complete(self, request: Request, body: ChatRequest | GenerateRequest) -> Response:
        service = self._service
        service.require_model(body.model)
        began_s = service.times.monotonic_s()
        envelope = OllamaEnvelope(
            model=body.model,
            created_unix_s=service.times.unix_s(),
            is_chat=isinstance(body, ChatRequest),
            spell=service.spell if body.logprobs else None,
        )
        job = body.job(self._defaults, has_template=bool(service.card.template), can_think=service.card.can_think)
        if job is None:
            return answer(envelope.loaded())
        generation = await service.begin(job, stream=True, receive=request.receive)
        parser = self._parser(job, generation)
        if body.is_streamed:
            return Stream(self._lines(generation, envelope, parser, began_s), NDJSON)
        try:
            sample, course = await unless_gone(request.receive, self._finished(generation, began_s))
        finally:
            generation.cancel()
        said = parser.parse(sample.text or "")
        if envelope.spell is not None:
            return await long_answer(lambda: envelope.whole(sample, said, course))
        return answer(envelope.whole(sample, said, course))

    def _parser(self, job: Job, generation: Generation) -> ThoughtParser:
        """The parser of thought and answer; some templates open the thought at the end of the prompt."""
        if not job.thinks:
            return ThoughtParser(Stage.ANSWER)
        end = self._service.text(generation.prompts[0][-_TAG_TOKENS_MAX:])
        return ThoughtParser(Stage.THOUGHT if end.rstrip().endswith(OPEN) else Stage.BEFORE)

    async def _finished(self, generation: Generation, began_s: float) -> tuple[TrainingSample, Course]:
        clock, first_token_s = self._service.times.monotonic_s, None
        async for _, delta in generation.pieces():
            first_token_s = clock() if first_token_s is None else first_token_s
            if delta.sample is not None:
                return delta.sample, Course(began_s=began_s, first_token_s=first_token_s, ended_s=clock())
        raise given_up("nothing came of it")

    def _lines(
        self, generation: Generation, envelope: OllamaEnvelope, parser: ThoughtParser, began_s: float
    ) -> AsyncGenerator[bytes]:
        """A stream of lines; its last object repeats no text."""
        clock, samples = self._service.times.monotonic_s, list[TrainingSample]()
        times_s = list[float]()  # Of the first token.

        def write(piece: Piece) -> bytes:
            if not times_s:
                times_s.append(clock())
            said = parser.push(piece.delta.text)
            if piece.delta.sample is not None:
                samples.append(piece.delta.sample)
                said = said.then(parser.finish())
            return _line(envelope.piece(piece.delta, said))

        def end() -> bytes:
            course = Course(began_s=began_s, first_token_s=times_s[0], ended_s=clock())
            return _line(envelope.last_piece(samples[0], course))

        return generation.streamed(write, end, lambda refusal: _line(ollama_error(refusal)))


def _line(content: object) -> bytes:
    return encoded(content) + b"\n"
