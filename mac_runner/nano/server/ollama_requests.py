"""Ollama's requests → jobs. Pure.

Options that say where and how a model is loaded are taken and mean nothing here; those that would change an answer
and are not known to the engine are refused. Prompts are never shortened, whatever `truncate` and `shift` say.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field, JsonValue

from mac_runner.nano.sampling_params import SamplingParams
from mac_runner.nano.server.bodies import Body, Many, require_absent
from mac_runner.nano.server.job import ANY_OBJECT, Chat, Job, overlaid, schema_text
from mac_runner.nano.server.limits import MESSAGES_MAX, TOP_LOGPROBS_MAX
from mac_runner.nano.server.refusals import invalid

OLLAMA_DEFAULTS = SamplingParams(temperature=0.8, top_k=40, top_p=0.9)
"""What Ollama's interface holds to where neither the request nor the model says anything."""

_NEUTRAL: dict[str, tuple[float | bool, ...]] = {
    "mirostat": (0,),
    "tfs_z": (1,),
    "typical_p": (1,),
    "penalize_newline": (True,),
    "repeat_last_n": (-1,),
}
"""Options of samplers that nano has not, each with the value that turns it off; penalties look at the whole text."""


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
    embedding_only: JsonValue = None
    f16_kv: JsonValue = None
    logits_all: JsonValue = None
    low_vram: JsonValue = None
    main_gpu: JsonValue = None
    num_batch: JsonValue = None
    num_gpu: JsonValue = None
    num_keep: JsonValue = None
    num_thread: JsonValue = None
    numa: JsonValue = None
    use_mlock: JsonValue = None
    use_mmap: JsonValue = None
    vocab_only: JsonValue = None

    def params(self, defaults: SamplingParams) -> SamplingParams:
        """Everything but how long a completion is and what form it has."""
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


class OllamaMessage(Body):
    """A message of a chat."""

    role: Literal["system", "user", "assistant"]
    content: str = ""
    thinking: str | None = None
    # Refused unless they ask for nothing.
    images: JsonValue = None
    tool_calls: JsonValue = None

    def plain(self) -> dict[str, str]:
        """The message as a template takes it."""
        require_absent(self, "images", "tool_calls")
        return {"role": self.role, "content": self.content}


class OllamaBody(Body):
    """What the two ways to generate have in common."""

    model: str
    stream: bool | None = None
    format: str | dict[str, JsonValue] | None = None
    options: Options | None = None
    keep_alive: JsonValue = None
    think: bool | Literal["low", "medium", "high"] | None = None
    truncate: bool | None = None
    shift: bool | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int | None, Field(ge=0, le=TOP_LOGPROBS_MAX)] = None

    @property
    def is_streamed(self) -> bool:
        """Ollama streams unless it is told not to."""
        return self.stream is not False

    def require_known(self, *names: str, can_think: bool) -> None:
        """Refuse what cannot be honoured, `names` among it, even where there is nothing to generate."""
        require_absent(self, *names)
        if self.think and not can_think:
            # The words of Ollama for a model that it cannot have think.
            raise invalid(f'"{self.model}" does not support thinking', "think")
        if self.think and self.format:
            raise invalid("think cannot be had together with format on this server: a form leaves no thoughts", "think")

    def chat(self, messages: tuple[dict[str, str], ...], defaults: SamplingParams, *, can_think: bool) -> Job:
        """A job of a conversation. A model that can think does, unless it is told not to or held to a form."""
        if not can_think:
            return self.completion(Chat(messages=messages), defaults)
        thinks = self.think is not False and not self.format
        chat = Chat(messages=messages, variables={"enable_thinking": thinks})
        return replace(self.completion(chat, defaults), thinks=thinks)

    def completion(self, prompt: str | Chat, defaults: SamplingParams) -> Job:
        """A job of one prompt, with everything that the options say."""
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
    tools: JsonValue = None

    def job(self, defaults: SamplingParams, *, has_template: bool, can_think: bool) -> Job | None:
        """What the engine is asked for; nothing by a chat without messages, which loads the model."""
        del has_template  # A chat needs one, and the tokenizer says so.
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
    suffix: JsonValue = None
    template: JsonValue = None
    context: JsonValue = None
    images: JsonValue = None

    def job(self, defaults: SamplingParams, *, has_template: bool, can_think: bool) -> Job | None:
        """What the engine is asked for; nothing without a prompt, which loads the model.

        The prompt is what a user says, unless it is `raw` or the model was never taught to talk.
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
        system = ({"role": "system", "content": self.system},) if self.system else ()
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
