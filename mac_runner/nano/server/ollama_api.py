"""Ollama's paths: chat, generate, and what its clients ask about the server and its model. Thin."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from fastapi import Request, Response

from mac_runner.nano.errors import NanoError
from mac_runner.nano.outputs import TrainingSample
from mac_runner.nano.recommended import recommended_sampling
from mac_runner.nano.server.job import Job
from mac_runner.nano.server.ollama_replies import (
    SPOKEN_VERSION,
    Course,
    OllamaEnvelope,
    error_body,
    listed,
    running,
    shown,
)
from mac_runner.nano.server.ollama_requests import OLLAMA_DEFAULTS, ChatRequest, GenerateRequest, ShowRequest
from mac_runner.nano.server.refusals import given_up, refusal_of
from mac_runner.nano.server.service import Generation, Service
from mac_runner.nano.server.thoughts import OPEN, Stage, ThoughtParser
from mac_runner.nano.server.wire import NDJSON, Stream, answer, encoded, read_request, unless_gone

_TAG_TOKENS_MAX = 16
"""In how many tokens a prompt's last word is, even where each is a single byte."""


class OllamaApi:
    """The handlers."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._defaults = recommended_sampling(service.engine.engine.directory, OLLAMA_DEFAULTS)

    async def version(self) -> Response:
        """Whose interface is spoken."""
        return answer({"version": SPOKEN_VERSION})

    async def tags(self) -> Response:
        """The models there are."""
        return answer(listed(self._service.card))

    async def running(self) -> Response:
        """The models that are loaded."""
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
        generation = await service.begin(job, stream=True)
        parser = self._parser(job, generation)
        if body.is_streamed:
            return Stream(self._lines(generation, envelope, parser, began_s), NDJSON)
        try:
            sample, course = await unless_gone(request.receive, self._finished(generation, began_s))
        finally:
            generation.cancel()
        return answer(envelope.whole(sample, parser.parse(sample.text or ""), course))

    def _parser(self, job: Job, generation: Generation) -> ThoughtParser:
        """What tells thought and answer apart; some templates open the thought at the end of the prompt."""
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

    async def _lines(
        self, generation: Generation, envelope: OllamaEnvelope, parser: ThoughtParser, began_s: float
    ) -> AsyncGenerator[bytes]:
        """A stream of lines, those that are there together at once; an error in the middle is told, and ends it."""
        clock, first_token_s, lines = self._service.times.monotonic_s, None, b""
        try:
            async for _, delta in generation.pieces():
                first_token_s = clock() if first_token_s is None else first_token_s
                said = parser.push(delta.text)
                if delta.sample is not None:
                    said = said.then(parser.finish())
                lines += encoded(envelope.piece(delta, said)) + b"\n"
                if delta.sample is not None:
                    course = Course(began_s=began_s, first_token_s=first_token_s, ended_s=clock())
                    yield lines + encoded(envelope.last_piece(delta.sample, course)) + b"\n"
                elif not generation.has_more:
                    yield lines
                    lines = b""
        except NanoError as error:
            yield lines + encoded(error_body(refusal_of(error))) + b"\n"
        finally:
            generation.cancel()
