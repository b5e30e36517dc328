"""OpenAI's paths: `/v1/chat/completions`, `/v1/completions`, `/v1/models`. Thin: what is said is in other modules."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator

from fastapi import Request, Response

from mac_runner.nano.errors import NanoError
from mac_runner.nano.outputs import TrainingSample
from mac_runner.nano.server.openai_replies import Envelope, error_body, model_object
from mac_runner.nano.server.openai_requests import ChatBody, CompletionBody
from mac_runner.nano.server.refusals import refusal_of
from mac_runner.nano.server.service import Generation, Service
from mac_runner.nano.server.wire import SSE, Stream, answer, encoded, read_request, unless_gone

_DONE = b"data: [DONE]\n\n"


class OpenaiApi:
    """The handlers."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def models(self) -> Response:
        """The list of the one model."""
        return answer({"object": "list", "data": [self._model()]})

    async def model(self, name: str) -> Response:
        """The model, if it is this one."""
        self._service.require_model(name)
        return answer(self._model())

    async def chat(self, request: Request) -> Response:
        """Answer a conversation."""
        return await self._complete(request, await read_request(ChatBody, request, self._service.thread))

    async def completions(self, request: Request) -> Response:
        """Complete prompts."""
        return await self._complete(request, await read_request(CompletionBody, request, self._service.thread))

    async def _complete(self, request: Request, body: ChatBody | CompletionBody) -> Response:
        service = self._service
        service.require_model(body.model)
        job, is_streamed = body.job(service.defaults), bool(body.stream)
        generation = await service.begin(job, stream=is_streamed)
        envelope = self._envelope(body)
        if is_streamed:
            return Stream(events_of(generation, envelope, tells_usage=body.tells_usage), SSE)
        try:
            samples = await unless_gone(request.receive, generation.samples())
        finally:
            generation.cancel()
        return answer(envelope.whole(generation.prompts, samples))

    def _envelope(self, body: ChatBody | CompletionBody) -> Envelope:
        is_chat, unix_s = isinstance(body, ChatBody), int(self._service.times.unix_s())
        return Envelope(
            id=f"{'chatcmpl' if is_chat else 'cmpl'}-{unix_s:x}-{self._service.number()}",
            created=unix_s,
            model=body.model,
            is_chat=is_chat,
            spell=self._service.spell,
            # 0 asks a text completion for the tokens that were chosen; false asks a chat for none.
            logprobs=body.logprobs is not None and body.logprobs is not False,
            token_ids=bool(body.return_token_ids),
        )

    def _model(self) -> dict[str, object]:
        return model_object(self._service.card.name, int(self._service.card.changed_unix_s))


async def events_of(generation: Generation, envelope: Envelope, *, tells_usage: bool) -> AsyncGenerator[bytes]:
    """A stream of events, those that are there together at once; an error in the middle is told, and ends it."""
    begun, offsets, samples, events = set[int](), Counter[int](), list[TrainingSample](), b""
    try:
        async for index, delta in generation.pieces():
            events += _event(envelope.chunk(index, delta, is_first=index not in begun, text_offset=offsets[index]))
            begun.add(index)
            offsets[index] += envelope.num_chars(delta)
            if delta.sample is not None:
                samples.append(delta.sample)
            # The last one goes out with what ends the stream.
            if not generation.has_more and len(samples) < generation.num_completions:
                yield events
                events = b""
        if tells_usage:
            events += _event(envelope.last_chunk(generation.prompts, samples))
        yield events + _DONE
    except NanoError as error:
        yield events + _event(error_body(refusal_of(error)))
    finally:
        generation.cancel()


def _event(content: object) -> bytes:
    return b"data: " + encoded(content) + b"\n\n"
