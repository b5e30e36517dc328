"""What the fleet asks an engine over HTTP: its models, its counters, and orders such as to sleep.

Nothing here judges an engine's health: a page that is slow or fails costs a figure and nothing else. An engine is taken
for ended by the end of its process, and for stuck by the requests that it leaves without a reply.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import Final

from yarl import URL

from mac_runner.backends.http.answer import Answer, SendingError, encoded
from mac_runner.backends.http.client import HttpClient
from mac_runner.backends.http.stall import samples_of
from mac_runner.backends.redaction import Redactor
from mac_runner.types import JsonObject

LOOK_S: Final = 10.0
"""How long a look at an engine may take; readiness is looked for again and again."""
_FIGURES: Final = {
    "vllm:generation_tokens_total": "made",
    "nano_completion_tokens_total": "made",
    "vllm:prompt_tokens_total": "read",
    "nano_prompt_tokens_total": "read",
    "vllm:prefix_cache_queries_total": "sought",
    "vllm:prefix_cache_hits_total": "cached",
    "nano_prompt_tokens_cached_total": "cached",
    "vllm:num_requests_running": "in_flight",
    "vllm:num_requests_waiting": "in_flight",
    "nano_requests_running": "in_flight",
    "nano_requests_waiting": "in_flight",
}


class EngineRefusedError(Exception):
    """The engine answered, and not with success; or it did not answer.

    `status` is that of its answer; None where it did not answer.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """The counters of an engine since its start."""

    made: float = 0.0
    """Tokens generated."""
    read: float = 0.0
    """Tokens of prompts."""
    cached: float = 0.0
    """Tokens of prompts that were found in the cache."""

    @property
    def prefix_hits(self) -> float | None:
        """The share of prompt tokens that came from the cache; None before the first prompt."""
        return min(1.0, self.cached / self.read) if self.read else None


@dataclass(frozen=True, slots=True)
class Figures:
    """What a page says; None for what it does not say."""

    tokens: Tokens | None
    in_flight: int | None
    """Requests that the engine works on, or that wait in it."""


def figures_of(page: bytes) -> Figures:
    """The figures on a page for Prometheus."""
    found: dict[str, float] = {}
    for name, value in samples_of(page):
        if figure := _FIGURES.get(name):
            found[figure] = found.get(figure, 0.0) + value
    tokens = Tokens(
        made=found.get("made", 0.0), read=found.get("sought", found.get("read", 0.0)), cached=found.get("cached", 0.0)
    )
    return Figures(tokens if "made" in found else None, int(found["in_flight"]) if "in_flight" in found else None)


@dataclass(slots=True)
class Rate:
    """Tokens per second between two looks."""

    _made: float = 0.0
    _at_s: float | None = None
    per_s: float | None = field(default=None, init=False)

    def look(self, tokens: Tokens, now_s: float) -> None:
        """Take the counters at `now_s`. Counters that went back belong to an engine that was started again."""
        if self._at_s is not None and now_s > self._at_s:
            self.per_s = (tokens.made - self._made) / (now_s - self._at_s) if tokens.made >= self._made else None
        self._made, self._at_s = tokens.made, now_s


class EngineClient:
    """Asks the engines of a fleet. Every method raises EngineRefusedError, and nothing else, where one fails."""

    def __init__(self, *secrets: str) -> None:
        """`secrets` are what the engines may know, and what errors do not show."""
        self._redactor = Redactor(*secrets)
        self._http = HttpClient({}, self._redactor)

    async def close(self) -> None:
        """Close all connections."""
        await self._http.close()

    async def get(self, url: str, *, timeout_s: float = LOOK_S) -> bytes:
        """The body of a page."""
        return await self._body(f"GET {url}", self._http.get(URL(url), deadline_s=timeout_s))

    async def post(
        self, url: str, body: JsonObject | None, headers: Mapping[str, str] = {}, *, timeout_s: float
    ) -> bytes:
        """The body of the answer to an order."""
        content = b"" if body is None else encoded(body)
        answer = self._http.post(URL(url), content, request_id="fleet", deadline_s=timeout_s, headers=headers)
        return await self._body(f"POST {url}", answer)

    async def models(self, base_url: str, *, timeout_s: float = LOOK_S) -> list[str]:
        """The names of the models that an engine serves; the base URL ends in `/v1`."""
        try:
            listed = json.loads(await self.get(f"{base_url}/models", timeout_s=timeout_s))
            return [str(entry["id"]) for entry in listed["data"]]
        except (ValueError, KeyError, TypeError) as fault:
            raise EngineRefusedError(f"GET {base_url}/models: the answer lists no models") from fault

    async def figures(self, base_url: str) -> Figures:
        """What the engine's page for Prometheus says."""
        return figures_of(await self.get(base_url.removesuffix("/v1") + "/metrics"))

    async def _body(self, what: str, sending: Awaitable[Answer]) -> bytes:
        try:
            answer = await sending
        except SendingError as fault:
            raise EngineRefusedError(f"{what}: {fault}") from fault
        if answer.status // 100 == 2:
            return answer.body
        words = self._redactor.quoted(answer.body.decode("utf-8", "replace"))
        raise EngineRefusedError(f"{what}: status {answer.status}: {words}", answer.status)
