"""The protocol of OpenAI, with the additions of vLLM's server where `openai_config.server` says so. Pure.

The fields of a body depend on what the server understands. A setting that only vLLM knows is refused for other servers
when the backend is built, because a server silently ignores what it does not know.

The limit on a reply is `max_tokens` unless the configuration says otherwise. OpenAI's newest models insist on its
successor `max_completion_tokens`, with an error; older servers silently ignore that one and answer without a limit.

What servers of this protocol say in the body takes precedence over their status:

| answer | what follows |
|---|---|
| no quota left, which OpenAI sends as 429 | as with a wrong key: waiting does not help |
| 500 of a vLLM whose engine has ended | sent again; a canary shows whether the endpoint died over this request |
| 400 of a vLLM that still works on the request | sent again: it has not noticed that the first sending ended |
| 200 of LM Studio for a path that it does not have | as with 404, for this request alone |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec import UNSET, Meta, Struct

from mac_runner.backends.base import JSON_OBJECT, structured_outputs
from mac_runner.backends.chat_template import OPEN_THOUGHT, ChatShape, apart, plain_text, switches_of
from mac_runner.backends.http.answer import (
    Dialect,
    SendingError,
    Standing,
    Treatment,
    converted,
    encoded,
    malformed,
    refused,
)
from mac_runner.backends.http.errors import ErrorBody, Meaning
from mac_runner.backends.http.settings import OpenaiConfig
from mac_runner.backends.redaction import Redactor, own_reason, token_count, tokens_of
from mac_runner.backends.updates import policy_of
from mac_runner.errors import Verdict
from mac_runner.problems import CONFIG_NAMES_MAX
from mac_runner.types import (
    FinishReason,
    JsonObject,
    JsonValue,
    PolicySpan,
    Prompt,
    Reply,
    Request,
    Sampling,
    TokenTrace,
)

NO_QUOTA: Final = "insufficient_quota"
ENGINE_ENDED: Final = "EngineCore encountered an issue"
"""What vLLM's server answers to every request from the end of its engine to its own."""
STILL_RUNNING: Final = "already running"
"""What vLLM says about a request id while it has not noticed that the first sending was given up."""
NO_SUCH_PATH: Final = "Unexpected endpoint or method"
"""What LM Studio says, with status 200, for a path that it does not serve."""
_NAMES_CHARS_MAX: Final = 2000
"""The length of a list of a server's models in an error."""

_OPTIONAL: Final = (
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "top_k",
    "min_p",
    "repetition_penalty",
    "reasoning_effort",
    "verbosity",
)


class OpenaiDialect(Dialect):
    """How the servers of one model are spoken to; with `has_tokens` they are asked for token ids."""

    config: OpenaiConfig
    look_path = "/models"
    section = "openai_config"
    urls = "base_urls"
    address = "that the base_url has its path (usually /v1)"

    def __init__(self, config: OpenaiConfig, *, has_tokens: bool) -> None:
        self.config = config
        self.servers = config.base_urls
        self.has_tokens = has_tokens
        self.has_template = config.endpoint == "chat"
        self.path = "/chat/completions" if self.has_template else "/completions"
        self.key_variable = config.api_key_env
        others = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}
        self.remedy = f"reply_limit_parameter: {others[config.reply_limit_parameter]}"

    def body(self, request: Request, shape: ChatShape) -> bytes:
        """The body of a request to a server with a chat template of this `shape`."""
        fields = self._common(request.sampling)
        if self.has_template:
            fields["messages"] = [
                {"role": message.role, "content": message.content} for message in shape.fit(request.prompt.messages)
            ]
        else:
            fields["prompt"] = plain_text(request.prompt.messages)
        fields.update(self._constraint(request.prompt))
        return encoded(fields)

    def reply(self, body: JsonObject, _request: Request, redactor: Redactor) -> Reply:
        """The reply in an answer without an error."""
        return read_completion(body, has_tokens=self.has_tokens, redactor=redactor)

    def lack(self, body: JsonObject, redactor: Redactor) -> str | None:
        """Why a server with this list of models cannot serve ours; None if it has it."""
        try:
            names = [model.id for model in converted(body.get("data"), list[_Model], "data", redactor)]
        except SendingError:
            raise SendingError("it lists no models", standing=Standing.SHAKY) from None
        if self.config.model in names:
            return None
        known = redactor.quoted(", ".join(sorted(names)[:CONFIG_NAMES_MAX]), _NAMES_CHARS_MAX) or "none"
        return f"it has no model {self.config.model!r}; it has: {known}"

    def error_in(self, body: JsonObject) -> JsonObject | None:
        """The part of a body with status 200 that has an error: the whole, or the choice that failed half-way."""
        choices = body.get("choices")
        if not choices:
            return super().error_in(body)
        first = choices[0] if isinstance(choices, list) else None
        return first if isinstance(first, dict) and first.get("error") else None

    def said(self, status: int, error: ErrorBody) -> Meaning | Treatment | None:
        """What an error means by its words, where they say more than the status."""
        if ENGINE_ENDED in error.text and status >= 500:
            return Treatment(Verdict.RETRY, Standing.CUT_OFF)
        if NO_QUOTA in error.codes or (status == 200 and NO_SUCH_PATH in error.text):
            return Meaning.DENIED
        return Meaning.BUSY if STILL_RUNNING in error.text else None

    def _common(self, sampling: Sampling) -> JsonObject:
        config = self.config
        fields: JsonObject = {
            "model": config.model,
            "temperature": sampling.temperature,
            config.reply_limit_parameter: sampling.max_tokens,
        }
        for name in _OPTIONAL:
            value = getattr(sampling, name)
            if value is not None:
                fields[name] = value
        if sampling.stop:
            fields["stop"] = list(sampling.stop)
        template: JsonObject = {**config.chat_template_kwargs, **switches_of(sampling.thinking)}
        if template:
            fields["chat_template_kwargs"] = template
        if self.has_tokens:
            fields["return_token_ids"] = True
            fields["logprobs"] = True if self.has_template else 1
        return fields

    def _constraint(self, prompt: Prompt) -> Mapping[str, JsonValue]:
        """What constrains the decoding to the legal replies, as far as the server can.

        OpenAI's `strict` allows no optional keys, which the schemas have, and its protocol has no form for a list of
        choices. There the prompt's words have to do, as for an engine that cannot constrain anything.
        """
        if self.config.server == "vllm":
            return {"structured_outputs": form} if (form := structured_outputs(prompt)) else {}
        if prompt.schema is None or not self.has_template:
            return {}
        if prompt.schema is JSON_OBJECT:
            return {"response_format": {"type": "json_object"}}
        schema: JsonObject = {"name": "reply", "schema": dict(prompt.schema)}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}


# Completions. Chat and text completions differ in where text, token ids and log-probabilities are, and in nothing else.

_TokenIds: TypeAlias = tuple[Annotated[int, Meta(ge=0)], ...]
_Logprob: TypeAlias = Annotated[float, Meta(ge=-1e6, le=1e6)]
"""The bounds are far beyond any log-probability; 1e999 is an infinity to the decoder."""


class _Model(Struct):
    id: str


class _Choice(Struct):
    finish_reason: Any = None
    message: Any = UNSET
    text: Any = None
    token_ids: Any = None
    prompt_token_ids: Any = UNSET
    logprobs: Any = None
    weight_versions: Any = None


class _Completion(Struct):
    choices: Annotated[list[Any], Meta(min_length=1)]
    usage: Any = None
    prompt_token_ids: Any = None


class _Message(Struct):
    content: Any = None
    reasoning: Any = None
    reasoning_content: Any = None
    refusal: Any = None
    tool_calls: Any = None


class _TextPart(Struct, tag="text"):
    text: str


class _ThoughtText(Struct):
    type: Literal["text"]
    text: str


class _ThoughtPart(Struct, tag="thinking"):
    """Mistral has parts in a thought (https://docs.mistral.ai/capabilities/reasoning), Anthropic one text."""

    thinking: str | list[_ThoughtText]


class _VersionSpan(Struct):
    """Tokens that weights of one version made, as mac-serve and vLLM write it."""

    version: str | int


class _Entry(Struct):
    logprob: _Logprob


_REASONS: Final = {
    "stop": FinishReason.STOP,
    "eos": FinishReason.STOP,  # Together's, which has "stop" for stop sequences
    "stop_sequence": FinishReason.STOP,  # Text Generation Inference's, which has "stop" for the end-of-sequence token …
    "eos_token": FinishReason.STOP,  # … and this where it does not translate it
    "length": FinishReason.LENGTH,
    "model_length": FinishReason.LENGTH,  # Mistral's, where the model's context ends
}
_TOOL_CALL: Final = "the server took the reply for a call of its own tools; start it without tool parsing"
_REFUSALS: Final = {
    "content_filter": "the server's content filter cut the reply off",
    "tool_calls": _TOOL_CALL,
    "function_call": _TOOL_CALL,
}
_CUT_OFF: Final = frozenset({"abort", "error"})
_THOUGHTS: Final = ("reasoning", "reasoning_content")
"""Where servers put a thought: vLLM and OpenRouter in the first, SGLang, llama.cpp and DeepSeek in the second."""


def read_completion(body: JsonObject, *, has_tokens: bool, redactor: Redactor) -> Reply:
    """The reply in `body`, the first where it has several. Raises SendingError.

    Every field that makes the reply is checked. What stands beside it, such as counts of tokens, may be anything.
    """
    completion = converted(body, _Completion, "completion", redactor)
    choice = converted(completion.choices[0], _Choice, "choices[0]", redactor)
    finish_reason = _finish_reason(choice.finish_reason, redactor)
    usage = _object(completion.usage)
    said, thought = _said(choice, finish_reason, usage, redactor)
    text, thinking = apart(said, thought)
    if not text and finish_reason not in _REASONS.values():
        raise malformed(f"finish_reason is {finish_reason}, and there is no text")
    return Reply(
        text=text,
        thinking=thinking,
        finish_reason=finish_reason,
        tokens=tokens_of(
            prompt=usage.get("prompt_tokens"),
            completion=usage.get("completion_tokens"),
            cached=_object(usage.get("prompt_tokens_details")).get("cached_tokens"),
        ),
        trace=_trace(completion, choice, redactor) if has_tokens else None,
        policy=_policy(choice, redactor),
    )


def _policy(choice: _Choice, redactor: Redactor) -> PolicySpan | None:
    if choice.weight_versions is None:
        return None
    spans = converted(choice.weight_versions, list[_VersionSpan], "weight_versions", redactor)
    return policy_of([span.version for span in spans])


def _finish_reason(reason: JsonValue, redactor: Redactor) -> FinishReason:
    if not isinstance(reason, str):
        return FinishReason.UNKNOWN
    if reason in _REFUSALS:
        raise refused(_REFUSALS[reason])
    if reason in _CUT_OFF:
        raise SendingError(f"the server gave the request up (finish_reason {reason!r})", standing=Standing.ANSWERED)
    return _REASONS.get(reason) or own_reason(reason, redactor.quoted)


def _object(value: JsonValue) -> JsonObject:
    """`value`, or an object without fields for anything else."""
    return value if isinstance(value, dict) else {}


def _said(choice: _Choice, finish_reason: FinishReason, usage: JsonObject, redactor: Redactor) -> tuple[str, str]:
    """The text, or what the server sent in its place, and the thought that it took out of it."""
    if choice.message is UNSET:
        return converted(choice.text, str, "text", redactor), ""
    message = converted(choice.message, _Message, "message", redactor)
    name = next((name for name in _THOUGHTS if getattr(message, name)), None)
    aside = "" if name is None else converted(getattr(message, name), str, name, redactor)
    is_cut_off = finish_reason is FinishReason.LENGTH and not (message.content or aside or message.refusal)
    hidden = token_count(_object(usage.get("completion_tokens_details")).get("reasoning_tokens"))
    if is_cut_off and (message.content is None or hidden):
        return OPEN_THOUGHT, ""  # Hosted models think without showing it.
    text, thought = _content(message.content, redactor)
    thought = thought or aside
    # A server that takes the thought out of the text sends no text when the thought did not end; one that sends a
    # refusal apart sends none beside it.
    if not text and message.refusal:
        return converted(message.refusal, str, "refusal", redactor), thought
    if not text and not thought and message.tool_calls:
        raise refused(_TOOL_CALL)
    return text, thought  # The protocol also has null for an empty reply.


def _content(content: JsonValue, redactor: Redactor) -> tuple[str, str]:
    """The text of a message, and the thought before it, as one text or as parts."""
    if content is None or isinstance(content, str):
        return content or "", ""
    parts = converted(content, list[_TextPart | _ThoughtPart], "content", redactor)
    text = "".join(part.text for part in parts if isinstance(part, _TextPart))
    thoughts = [part.thinking for part in parts if isinstance(part, _ThoughtPart)]
    return text, "".join(one if isinstance(one, str) else "".join(part.text for part in one) for one in thoughts)


def _trace(completion: _Completion, choice: _Choice, redactor: Redactor) -> TokenTrace:
    prompt_ids = completion.prompt_token_ids if choice.prompt_token_ids is UNSET else choice.prompt_token_ids
    ids = {"prompt_token_ids": prompt_ids, "token_ids": choice.token_ids}
    for name, found in ids.items():
        if found is None:
            text = f"the server sent no {name}; record_tokens needs vLLM 0.11 or later behind every base_url"
            raise SendingError(text, standing=Standing.ANSWERED, verdict=Verdict.FAIL_RUN)
    prompt, made = (converted(found, _TokenIds, name, redactor) for name, found in ids.items())
    logprobs = converted(choice.logprobs, dict[str, Any], "logprobs", redactor)
    listed = logprobs.get("token_logprobs", logprobs.get("content"))
    entries = converted(listed, list[_Logprob | _Entry], "logprobs", redactor)
    if len(entries) != len(made):
        raise malformed(f"{len(made)} token ids with {len(entries)} log-probabilities")
    likely = [entry.logprob if isinstance(entry, _Entry) else entry for entry in entries]
    try:
        return TokenTrace(prompt_ids=prompt, completion_ids=made, logprobs=likely)
    except ValueError as fault:
        raise malformed(f"token ids: {fault}") from None
