"""One request of one token after each start and wake, so that the cache holds what all prompts begin with."""

from __future__ import annotations

from os.path import commonprefix
from typing import Final

from mac_runner.fleet.probe import EngineClient, EngineRefusedError
from mac_runner.types import JsonObject

SAMPLES_MAX: Final = 16
"""How many first prompts the common prefix is found from."""
_ABOUT_THE_REQUEST: Final = frozenset({400, 404, 413, 422})


class CommonPrefix:
    """What the system messages of a model's prompts begin with, found from the first of them."""

    def __init__(self) -> None:
        self.text: str | None = None
        """None before the first message."""
        self._samples = 0

    def see(self, system: str) -> None:
        """Take a system message; later ones than the first SAMPLES_MAX change nothing."""
        if self._samples >= SAMPLES_MAX:
            return
        self._samples += 1
        self.text = system if self.text is None else commonprefix((self.text, system))  # noqa: RUF071 - of texts


async def warm_up(client: EngineClient, base_url: str, model: str, prefix: str, *, timeout_s: float) -> None:
    """Have an engine read `prefix` and write one token. Raises EngineRefusedError."""
    messages: list[JsonObject] = [{"role": "user", "content": "Hello."}]
    if prefix:
        messages.insert(0, {"role": "system", "content": prefix})
    body: JsonObject = {"model": model, "messages": messages, "max_tokens": 1, "temperature": 0.0}  # type: ignore[dict-item]
    try:
        await client.post(f"{base_url}/chat/completions", body, timeout_s=timeout_s)
    except EngineRefusedError as refusal:
        if refusal.status not in _ABOUT_THE_REQUEST:
            raise
        # It answers. A template that knows no system message, or a prefix that is too long, is for real prompts to
        # complain about.
